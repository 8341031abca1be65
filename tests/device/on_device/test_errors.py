"""Errors stay ordinary Python exceptions, name what happened, and leave the session usable."""

import os
import signal
import sys
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu import errors
from jgpu.device import current
from jgpu.errors import NotSupported


def works():
    return (torch.ones(2, device="cuda") + 1).sum().item() == 4


def read_for_ever(x):
    while True:
        x.sum().item()
        x = x @ x / x.norm()


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_wrong_class_is_no_row_of_zeros(wrong):
    right = F.one_hot(torch.tensor([0, 2], device="cuda"), 3)
    with pytest.raises(RuntimeError, match=f"index {wrong} is out of bounds"):
        F.one_hot(torch.tensor([0, wrong], device="cuda"), 3).sum().item()
    assert right.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert works()


def test_a_hook_that_raises_inside_backward():
    w = torch.ones(2, device="cuda", requires_grad=True)

    def hook(grad):
        raise ValueError("from the hook")

    y = w * 2
    y.register_hook(hook)
    with pytest.raises(ValueError, match="from the hook"):
        y.sum().backward()
    assert works()
    v = torch.ones(2, device="cuda", requires_grad=True)
    (v * 3).sum().backward()
    assert v.grad.tolist() == [3, 3]


def test_a_custom_function_that_raises_inside_backward():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("custom")

    w = torch.ones(2, device="cuda", requires_grad=True)
    with pytest.raises(KeyError, match="custom"):
        Bad.apply(w).sum().backward()
    assert works()


def test_a_dispatch_that_raises_inside_backward():
    class Shape(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad @ torch.ones(7, 7, device="cuda")

    w = torch.ones(2, 2, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Shape.apply(w).sum().backward()
    assert works()


def test_an_error_inside_backward_is_not_lost_where_python_has_to_look_names_up_anew():
    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.sum.dim_IntList:
                sys._clear_type_cache()
                raise ValueError("in the midst of backward")
            return func(*args, **(kwargs or {}))

    w = torch.ones(2, device="cuda", requires_grad=True)
    for _ in range(3):
        with pytest.raises(ValueError, match="in the midst of backward"), Refusing():
            (torch.ones(4, 2, device="cuda") * w).sum().backward()
    assert works()


def test_an_interrupt_inside_backward_is_a_keyboard_interrupt():
    w = torch.ones(2, device="cuda", requires_grad=True)
    y = w * 2
    y.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        y.sum().backward()
    assert works()


def test_an_interrupt_while_waiting_raises_at_once_and_leaves_the_session_usable():
    x = torch.randn(1000, 1000, device="cuda")
    for _ in range(40):
        x = x @ x
        x = x / x.norm()
    main, trips = threading.get_ident(), current.session.round_trips

    def interrupt():
        while current.session.round_trips == trips:  # until the main thread waits
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        read_for_ever(x)
    interrupter.join(20)
    assert works()


def test_an_index_out_of_range_is_an_index_error_that_names_op_and_line():
    table = nn.Embedding(10, 4).cuda()
    bad = torch.tensor([1, 50], device="cuda")
    kept = torch.ones(3, device="cuda")
    rows = table(bad)
    with pytest.raises(IndexError, match="embedding"):
        rows.sum().item()
    with pytest.raises(errors.PoisonedTensor):
        rows.sum().item()
    assert kept.tolist() == [1, 1, 1]
    assert table(torch.tensor([1], device="cuda")).shape == (1, 4)


def test_a_failure_is_reported_once():
    bad = nn.Embedding(4, 2).cuda()(torch.tensor([9], device="cuda"))
    with pytest.raises(IndexError):
        torch.cuda.synchronize()
    torch.cuda.synchronize()
    assert works()
    del bad


def test_more_memory_than_there_is_raises_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 42, device="cuda").sum().item()
    assert works()


def test_a_forked_child_gets_a_clear_error():
    x = torch.ones(2, device="cuda")
    assert works()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            (x + 1).sum().item()
            text = "no error"
        except BaseException as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "forked subprocess" in os.read(read, 1000).decode()
    assert works()


def test_threads_may_use_the_device():
    results = []

    def work(k):
        w = torch.full((4,), float(k), device="cuda", requires_grad=True)
        (w * w).sum().backward()
        results.append((k, w.grad.tolist()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [(k, [2.0 * k] * 4) for k in range(6)]


def test_round_trips_are_counted():
    session = current.session
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    before = session.round_trips
    y = x * 2 + 1
    y = y.relu().sum()
    assert session.round_trips == before
    y.item()
    assert session.round_trips == before + 1


def test_a_capsule_of_dlpack_would_hold_no_address():
    for make in (torch.to_dlpack, torch.utils.dlpack.to_dlpack):
        with pytest.raises(BufferError, match="no address in this process"):
            make(torch.ones(2, device="cuda"))
        assert make(torch.ones(2)) is not None


def test_writing_a_host_tensor_from_the_device_is_a_mixture():
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        torch.zeros(()).add_(torch.ones((), device="cuda"))


def test_what_a_program_may_not_name_is_refused_on_the_line_and_harms_nothing():
    x = torch.eye(3, device="cuda")
    with pytest.raises(NotSupported, match="quantised tensors"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), torch.eye(3))


def test_pivots_that_no_factorization_leaves_harm_nothing():
    x = torch.tensor([[0.0, 2.0, 1.0], [2.0, 0.0, 1.0], [1.0, 1.0, 3.0]])
    factors, pivots = torch.linalg.ldl_factor(x.cuda())
    good = torch.linalg.ldl_solve(factors, pivots, torch.eye(3).cuda())
    assert torch.equal(
        good.cpu(), torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x), torch.eye(3))
    )
    bad = torch.linalg.ldl_solve(factors, pivots.roll(1), torch.eye(3).cuda())
    with pytest.raises(IndexError, match="pivots are not those of a factorization"):
        bad.cpu()
    with pytest.raises(RuntimeError, match="LD must have the whole batch"):
        torch.linalg.ldl_solve(factors[None], pivots[None], torch.ones(4, 3, 1).cuda()).cpu()
    assert torch.equal(factors.cpu(), torch.linalg.ldl_factor(x).LD)


def numbers(dtype, *shape):
    return torch.ones(*shape, dtype=dtype, device="cuda")


#: calls whose types do not go together, which no shape shows
WRONG_TYPES = {
    "labels": lambda x: F.cross_entropy(x, x[:, 0].int()),
    "doubles": lambda x: nn.Linear(3, 2).to(x.device)(x.double()),
    "integers": lambda x: nn.Linear(3, 2).to(x.device)(x.long()),
    "half a product": lambda x: x.half() @ x.T,
    "batched": lambda x: torch.bmm(x[None], x.T[None].double()),
    "softmax": lambda x: x.long().softmax(0),
    "targets": lambda x: F.binary_cross_entropy(x * 0.5, x.long()),
    "truth": lambda x: torch.add(x, 1.0, alpha=True),
    "subtracted truth": lambda x: torch.rsub(x, x, alpha=True),
    "listed truth": lambda x: torch._foreach_add([x, x], [x, x], alpha=True),
    "imaginary": lambda x: x.mul_(1j),
    "index": lambda x: x[x[:, 0]],
    "selected": lambda x: x.index_select(0, x[0]),
    "added": lambda x: x.index_add(0, x[:3, 0], x[:3]),
    "added by short numbers": lambda x: x.index_add_(0, x[:3, 0].short(), x[:3]),
    "copied": lambda x: x.index_copy(0, x[:3, 0].int(), x[:3]),
    "filled": lambda x: x.index_fill(0, x[:3, 0].int(), 1.0),
    "put in places": lambda x: x.put(x[0], x[0]),
    "a mask of numbers": lambda x: x.masked_select(x.long()),
    "a scattered mask": lambda x: x.masked_scatter(x.byte(), x),
    "sorted by": lambda x: torch.searchsorted(x, x, sorter=x.int()),
    "spread of numbers": lambda x: x.long().std(),
    "largest truth": lambda x: (x > 0).argmax(),
    "put": lambda x: x.index_put((x[:, 0],), x),
    "in place": lambda x: x.long().add_(0.5),
    "sigmoid of complex": lambda x: torch.logit(x.long().cfloat()),
    "bits": lambda x: x | x,
    "bits of halves": lambda x: x.half() ^ 1,
    "bits of numbers and truths": lambda x: (x > 0) & x.bfloat16(),
    "bits in place": lambda x: x.bitwise_or_(1),
    "opposite bits": lambda x: ~x,
    "shifted": lambda x: torch.bitwise_left_shift(x, x),
    "a shift of halves": lambda x: torch.bitwise_right_shift(x.half(), 1),
    "whole and uniform": lambda x: x.long().uniform_(),
    "bytes of some range": lambda x: x.byte().uniform_(0, 2),
    "truths that are rand": lambda x: torch.rand(3, dtype=torch.bool, device=x.device),
    "uniform alike": lambda x: torch.rand_like(x.int()),
    "whole chances": lambda x: torch.bernoulli(x.long()),
    "whole rates": lambda x: torch.poisson(x.long()),
    "complex and random": lambda x: x.cfloat().random_(),
    "complex dropout": lambda x: F.dropout(x.cfloat(), 0.5),
    "complex spread": lambda x: torch.normal(x.cfloat(), x.cfloat()),
    "columns of labels": lambda x: F.cross_entropy(x, x[:, :1].long()),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_types_that_do_not_fit_are_told_on_the_line_in_torchs_words(name):
    call = WRONG_TYPES[name]
    with pytest.raises(Exception) as native:  # noqa: PT011 - each has its own
        call(torch.ones(4, 3))
    with pytest.raises(type(native.value)) as ours:
        call(torch.ones(4, 3, device="cuda"))
    assert str(ours.value) == str(native.value)
    torch.cuda.synchronize()  # nothing of it was sent


@pytest.mark.parametrize(
    "power",
    [
        lambda x, n: x**n,
        lambda x, n: x.pow_(n),
        lambda x, n: torch._foreach_pow([x, x], n)[1],
        lambda x, n: torch._foreach_pow([x, x], [1, n])[1],
    ],
)
def test_integers_have_no_negative_powers_whatever_powers_came_before(power):
    for _ in range(3):
        assert power(numbers(torch.long, 3) * 3, 2).tolist() == [9] * 3
        with pytest.raises(RuntimeError, match=r"^Integers to negative integer powers"):
            power(numbers(torch.long, 3) * 3, -1)
        assert power(numbers(torch.float32, 3) * 2, -1).tolist() == [0.5] * 3
    torch.cuda.synchronize()


#: calls whose types differ and natively go together
RIGHT_TYPES = {
    "layer norm": lambda x: F.layer_norm(x.bfloat16(), (3,), x[0], x[1]),
    "group norm": lambda x: F.group_norm(x.bfloat16(), 3, x[0], x[1]),
    "batch norm": lambda x: F.batch_norm(x.bfloat16(), x[0], x[1], x[2], x[3]),
    "weighted classes": lambda x: F.cross_entropy(x, x[:, 0].long(), x[0]),
    "ignored labels": lambda x: F.cross_entropy(x, x[:, 0].long(), ignore_index=1),
    "powers": lambda x: 2 ** x.long() + x.long() ** 2 + x.long().pow(x),
    "a remainder by zero": lambda x: x.remainder(x.long() * 0),
    "a quotient": lambda x: x.long() // 2 + x.long() % 3,
    "bits": lambda x: (x.long() << 1) & 3,
    "truths": lambda x: torch.add(x > 0, x > 2, alpha=True),
    "where": lambda x: torch.where(x > 0, x.long(), x.half()),
    "indices": lambda x: x[x[:, 0].long(), x[:, 0].int()],
    "shifted truths": lambda x: ((x > 1) << 2) + ((x > 1) << x.byte()) + ((x > 1) >> x.long()),
    "a shift by truths": lambda x: (x.byte() << (x > 1)) + x.long().__irshift__(x > 1),
    "truths to a power": lambda x: (x > 1).pow_(True) + (x > 1).pow_(False),
    "a gamma of an order": lambda x: torch.polygamma(2, x.long()),
}


@pytest.mark.parametrize("name", RIGHT_TYPES)
def test_types_that_differ_and_go_together_are_computed(name):
    native = torch.linspace(0.1, 1.9, 12).view(4, 3)
    expected = RIGHT_TYPES[name](native)
    result = RIGHT_TYPES[name](native.cuda())
    assert torch.equal(result.cpu(), expected) or torch.isnan(expected).any()
    assert result.dtype is expected.dtype


def made(call, where):
    """Type, sizes, strides and numbers of what a call returns there, or its error."""
    try:
        result = call(where)
        torch.cuda.synchronize()
    except Exception as error:
        kind = type(error)
        return kind if kind.__module__ == "builtins" else kind.__mro__[2], str(error)
    return result.dtype, result.shape, result.stride(), str(result.tolist())


def zeros(where, dtype, *shape):
    return torch.zeros(shape, dtype=dtype, device=where)


#: of no elements many kernels look at no type; a few look all the same
OF_NOTHING = {
    "softmax": lambda where, dtype: zeros(where, dtype, 2, 0).softmax(-1),
    "softmax of rows": lambda where, dtype: zeros(where, dtype, 0, 3).softmax(0),
    "product": lambda where, dtype: zeros(where, dtype, 2, 0) @ zeros(where, dtype, 0, 2),
    "rows": lambda where, dtype: zeros(where, dtype, 3, 2) @ zeros(where, dtype, 2, 0),
    "mixed": lambda where, dtype: zeros(where, dtype, 3, 3, 2) @ zeros(where, torch.float32, 2, 0),
    "batches": lambda where, dtype: zeros(where, dtype, 2, 2, 0) @ zeros(where, dtype, 2, 0, 2),
    "vectors": lambda where, dtype: torch.dot(zeros(where, dtype, 0), zeros(where, dtype, 0)),
    "uniform": lambda where, dtype: zeros(where, dtype, 2, 0).uniform_(),
    "rand_like": lambda where, dtype: torch.rand_like(zeros(where, dtype, 0)),
    "mean": lambda where, dtype: zeros(where, dtype, 2, 0).mean(),
    "normal": lambda where, dtype: zeros(where, dtype, 2, 0).normal_(),
    "normal of nothing's": lambda where, dtype: torch.normal(
        zeros(where, dtype, 0), zeros(where, dtype, 0)
    ),
    "randn": lambda where, dtype: torch.randn(0, 3, dtype=dtype, device=where),
    "randn_like": lambda where, dtype: torch.randn_like(zeros(where, dtype, 3, 0)),
    "exponential": lambda where, dtype: zeros(where, dtype, 0).exponential_(),
    "log-normal": lambda where, dtype: zeros(where, dtype, 0).log_normal_(),
    "geometric": lambda where, dtype: zeros(where, dtype, 0).geometric_(0.5),
    "a spread below 0": lambda where, dtype: zeros(where, dtype, 0).normal_(0, -1),
    "log-softmax": lambda where, dtype: zeros(where, dtype, 2, 0).log_softmax(-1),
    "log-softmax of rows": lambda where, dtype: zeros(where, dtype, 0, 3).t().log_softmax(0),
    "largest": lambda where, dtype: zeros(where, dtype, 0).argmax(),
    # what is written beside it has elements, each in a place of its own
    "put": lambda where, dtype: zeros(where, dtype, 2, 3).put_(
        zeros(where, torch.int64, 0), zeros(where, dtype, 0)
    ),
    "copied": lambda where, dtype: zeros(where, dtype, 2, 3).index_copy_(
        0, zeros(where, torch.int64, 0), zeros(where, dtype, 0, 3)
    ),
}


@pytest.mark.parametrize("name", OF_NOTHING)
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float32]
)
def test_what_has_no_elements_is_taken_or_refused_as_natively(name, dtype):
    native = made(lambda where: OF_NOTHING[name](where, dtype), "cpu")
    for _ in range(3):
        assert made(lambda where: OF_NOTHING[name](where, dtype), "cuda") == native


def test_looking_at_nothing_draws_nothing():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    torch.rand_like(zeros("cuda", torch.float32, 2, 0))
    zeros("cuda", torch.float64, 0).normal_()
    assert torch.equal(torch.rand(3), expected)


POWERS_OF_TRUTHS = {
    "power": lambda x, n: x**n,
    "base": lambda x, n: n**x,
    "listed": lambda x, n: torch._foreach_pow([x, x], n)[1],
    "tensor": lambda x, n: x ** torch.tensor(n),
}


@pytest.mark.parametrize("exponent", [True, False, 0, 1, 2])
@pytest.mark.parametrize("name", POWERS_OF_TRUTHS)
def test_powers_of_truths_are_of_the_native_type(name, exponent):
    def call(where):
        return POWERS_OF_TRUTHS[name](torch.tensor([True, False], device=where), exponent)

    native = made(call, "cpu")
    for _ in range(3):
        assert made(call, "cuda") == native


@pytest.mark.parametrize("number", [1 + 2j, 2j, 0j, 3 + 0j, float("inf"), float("nan"), 2**70, -1])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_a_mask_fills_with_any_number_as_natively(dtype, number):
    def call(where):
        x = torch.tensor([1, 0, 1], device=where).to(dtype)
        return x.masked_fill(torch.tensor([True, True, False], device=where), number)

    native = made(call, "cpu")
    for _ in range(3):
        ours = made(call, "cuda")
        if len(native) == 2:  # the number may be looked at by the device, which adds the line
            assert ours[1].startswith(native[1])
            assert issubclass(ours[0], native[0]) or native[0] is RuntimeError
        else:
            assert ours == native


def test_types_are_named_as_on_cuda():
    images, words = numbers(torch.uint8, 1, 3, 8, 8), numbers(torch.float32, 2)
    with pytest.raises(RuntimeError) as info:
        nn.Conv2d(3, 8, 3, bias=False).cuda()(images)
    assert str(info.value) == (
        "Input type (torch.cuda.ByteTensor) and weight type (torch.cuda.FloatTensor) should be the "
        "same"
    )
    with pytest.raises(RuntimeError, match=r"but got torch\.cuda\.FloatTensor instead"):
        nn.Embedding(4, 2).cuda()(words)


def test_looking_at_types_draws_nothing_and_warns_nobody():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = numbers(torch.long, 5)
        assert (x // 2 + x % 3 == x).tolist() == [True] * 5
        torch.bernoulli(numbers(torch.float64, 3)).cpu()
        x.random_().bernoulli_(0.5)
        for refused in (x.uniform_, x.normal_, lambda: torch.rand_like(x)):
            with pytest.raises(RuntimeError):
                refused()
    assert torch.rand(3).tolist() == expected.tolist()


def test_a_forked_child_is_told_on_the_line_that_makes_a_tensor():
    assert works()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.ones(2, device="cuda")
            text = "no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000).decode() == (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method"
    )
    assert works()
