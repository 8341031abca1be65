"""Wrong calls raise on their line what native PyTorch raises, and leave what they were given."""

import gc
import itertools
import re
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

from jgpu.device import current
from jgpu.device.likenative.checks import ranges
from jgpu.device.recording import infer

#: Error inputs that raise something else here, by op and number, each with the reason.
EXCEPTIONS = {
    ("gather", 6): "`out` and the index share memory: the device reads the index first",
    ("histogramdd", 0): "the executor refuses the program, in its own words",
    ("masked_fill", 2): "a meta kernel's words",
    ("masked_fill", 3): "the words of most ops",
    ("median", 0): "a limit of CUDA's kernel, which the host's does not have",
    ("narrow_copy", 1): "the host's kernel raises RuntimeError",
    ("narrow_copy", 6): "a meta kernel's words",
}


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def error_inputs(op):
    """Its error inputs, up to one of more dimensions than a tensor of the device may have."""
    try:
        yield from op.error_inputs("cuda")
    except RuntimeError as error:
        if "65 dimensions" not in str(error):
            raise


PARTS = 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_each_error_input_of_the_op_database_raises_on_its_line_what_it_declares(part):
    different, count = [], 0
    for op in op_db[part::PARTS]:
        if op.error_inputs_func is None or op.name.startswith("jiterator"):
            continue
        for number, given in enumerate(error_inputs(op)):
            sample = given.sample_input
            if given.error_type is Exception:  # declares nothing
                continue
            count += 1
            error = raised(lambda op=op, s=sample: op(s.input, *s.args, **s.kwargs))
            fits = isinstance(error, given.error_type) and re.search(given.error_regex, str(error))
            late = None if fits else raised(torch.cuda.synchronize)
            if not fits and (op.name, number) not in EXCEPTIONS:
                different.append((op.name, number, given.error_regex, error, late))
        late = raised(torch.cuda.synchronize)
        if late:
            different.append((op.name, late))
    assert different == []
    assert count > 50


def ones(*shape, dtype=torch.float32):
    return lambda device: torch.ones(shape, dtype=dtype, device=device)


def whole(*numbers):
    return lambda device: torch.tensor(numbers, device=device)


def assign(index, value):
    def call(device):
        x = torch.zeros(4, 5, device=device)
        x[index(device)] = value(device)

    return call


def call(function, *given, **named):
    """Call a function; makers among its arguments make tensors for the device."""

    def at(device):
        args = [item(device) if callable(item) else item for item in given]
        return function(*args, **named)

    return at


bad_shapes = {
    "values of another number": assign(whole(0, 1), ones(3)),
    "a mask of another length": assign(ones(3, dtype=torch.bool), ones(5)),
    "a mask of another shape": assign(ones(4, 4, dtype=torch.bool), ones(5)),
    "values for a mask": assign(ones(4, 5, dtype=torch.bool), ones(3)),
    "indices that do not broadcast": assign(lambda d: (whole(0, 1)(d), whole(0, 1, 2)(d)), ones(1)),
    "index_put": call(torch.index_put, ones(4), lambda d: (whole(0, 1)(d),), ones(3)),
    "index_add": call(torch.index_add, ones(4, 5), 0, whole(0, 1), ones(2, 4)),
    "index_reduce": call(torch.index_reduce, ones(4, 5), 0, whole(0, 1), ones(3, 5), "amax"),
    "put": call(torch.put, ones(4), whole(0, 1), ones(3)),
    "masked_scatter": call(torch.masked_scatter, ones(4), ones(3, dtype=torch.bool), ones(4)),
    "masked_fill": call(torch.masked_fill, ones(4), ones(4), 1.0),
    "select_scatter": call(torch.select_scatter, ones(3, 3), ones(2), 0, 0),
    "bucketize": call(torch.bucketize, ones(3), ones(2, 2)),
    "nll_loss of images": call(
        F.nll_loss, ones(2, 3, 4, 4), lambda d: torch.zeros(2, 4, 3, dtype=torch.int64, device=d)
    ),
}
bad_dimensions = {
    f"{name} of {shape} along {dim}": call(function, ones(*shape), dim)
    for name, function in {
        "softmax": F.softmax, "log_softmax": F.log_softmax, "sort": torch.sort,
        "argsort": torch.argsort, "max": torch.max, "min": torch.min, "median": torch.median,
        "mode": torch.mode, "cummax": torch.cummax,
    }.items()
    for shape, dim in (((3, 4), 5), ((3, 4), -3), ((0, 4), 0), ((), 1))
}  # fmt: skip
empty = {
    f"{name} of nothing": call(function, ones(0))
    for name, function in {
        "max": torch.max, "min": torch.min, "mode": torch.mode, "argmax": torch.argmax,
        "amax": torch.amax, "aminmax": torch.aminmax,
    }.items()
}  # fmt: skip
images = {
    f"{name} of {where}": call(function, ones(1, 4, 6, 6), ones(*shape), **named)
    for name, function, weights in (
        ("conv2d", F.conv2d, (2, 4, 3, 3)),
        ("conv_transpose2d", F.conv_transpose2d, (4, 2, 3, 3)),
    )
    for where, shape, named in (
        ("three groups", weights, {"groups": 3}),
        ("no groups", weights, {"groups": 0}),
        ("padding below zero", weights, {"padding": -1}),
        ("three paddings", weights, {"padding": (1, 1, 1)}),
        ("no stride", weights, {"stride": 0}),
        ("no dilation", weights, {"dilation": 0}),
        ("an empty kernel", (*weights[:2], 0, 0), {}),
        ("other channels", (5, 5, 3, 3), {}),
    )
} | {
    "a bias of another size": call(F.conv2d, ones(1, 4, 6, 6), ones(2, 4, 3, 3), ones(3)),
    "padding of the output": call(
        F.conv_transpose2d, ones(1, 4, 6, 6), ones(4, 2, 3, 3), output_padding=2
    ),
    "a pool without a kernel": call(F.max_pool2d, ones(1, 1, 6, 6), 0),
    "a pool with much padding": call(F.avg_pool2d, ones(1, 1, 6, 6), 2, padding=2),
    "a pool of nothing": call(F.adaptive_avg_pool2d, ones(1, 1, 0, 0), 2),
    "columns of padding below zero": call(F.unfold, ones(1, 4, 4, 4), 2, padding=-1),
}
numbers = {
    "uniform_": call(lambda x: x.uniform_(2, 1), ones(3)),
    "uniform_ from infinity": call(lambda x: x.uniform_(0, float("inf")), ones(3)),
    "normal_": call(lambda x: x.normal_(0, -1), ones(3)),
    "random_": call(lambda x: x.random_(2, 1), ones(3)),
    "random_ of bytes": call(lambda x: x.random_(0, 1000), ones(3, dtype=torch.uint8)),
    "cauchy_": call(lambda x: x.cauchy_(0, -1), ones(3)),
    "exponential_": call(lambda x: x.exponential_(-1), ones(3)),
    "log_normal_": call(lambda x: x.log_normal_(0, -1), ones(3)),
    "geometric_": call(lambda x: x.geometric_(1.5), ones(3)),
    "bernoulli_": call(lambda x: x.bernoulli_(1.5), ones(3)),
    "native_dropout": call(torch.native_dropout, ones(3), 1.5, True),
    "randint_like of bytes": call(torch.randint_like, ones(3, dtype=torch.uint8), 2**33),
    "randint_like of truth": call(torch.randint_like, ones(3, dtype=torch.bool), 3),
    "randint_like of complex numbers": call(torch.randint_like, ones(3, dtype=torch.cfloat), 3),
    "randint_like from more": call(torch.randint_like, ones(3), 3, 2),
    "no samples": call(torch.multinomial, ones(3), 0),
    "too many samples": call(torch.multinomial, ones(3), 4),
    "samples of integers": call(torch.multinomial, whole(1, 2), 1),
    "fill_ of bytes": call(lambda x: x.fill_(300), ones(3, dtype=torch.uint8)),
    "fill_ of half precision": call(lambda x: x.fill_(1e9), ones(3, dtype=torch.half)),
    "fill_ of a complex number": call(lambda x: x.fill_(1j), ones(3)),
    "full of bytes": lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d),
    "full_like of another type": call(torch.full_like, ones(3), 300, dtype=torch.uint8),
    "full_like of integers": call(torch.full_like, ones(3, dtype=torch.int32), 2**31),
    "masked_fill of half precision": call(
        torch.masked_fill, ones(3, dtype=torch.half), ones(3, dtype=torch.bool), -1e9
    ),
    "histc": call(torch.histc, ones(3), 3, 0, float("inf")),
    "gelu": call(F.gelu, ones(3), approximate="other"),
    "celu": call(F.celu, ones(3), 0.0),
    "smooth_l1_loss": call(F.smooth_l1_loss, ones(3), ones(3), beta=-1.0),
    "mvlgamma": call(torch.mvlgamma, ones(3), 0),
    "softshrink": call(F.softshrink, ones(3), -1.0),
    "cdist": call(torch.cdist, ones(3, 2), ones(3, 2), -1.0),
    "huber_loss": call(F.huber_loss, ones(3), ones(3), delta=0.0),
    "clamp to a complex number": call(torch.clamp, ones(3), 1j),
    "a number of 64 bits": call(torch.add, ones(3, dtype=torch.bool), 2**63),
    "alpha of a type of its own": call(torch.sub, ones(3), ones(3), alpha=True),
}
large = {
    "topk of many": call(torch.topk, ones(30_000), 30_001),
    "kthvalue of many": call(torch.kthvalue, ones(30_000), 30_001),
    "kthvalue of rows": call(torch.kthvalue, ones(20_000, 4), 0),
    "too many samples of many": call(torch.multinomial, ones(30_000), 30_001),
    "select_scatter into many": call(torch.select_scatter, ones(200, 300), ones(200), 0, 0),
    "slice_scatter into many": call(torch.slice_scatter, ones(200, 300), ones(9, 300), 0, 0, 8),
    "diagonal_scatter into many": call(torch.diagonal_scatter, ones(200, 300), ones(201)),
    "a pool of many": call(F.adaptive_avg_pool2d, ones(64, 64, 6, 6), (2, -1)),
    "columns of many": call(F.unfold, ones(64, 64, 6, 6), 9),
    "an index of many": call(torch.index_add, ones(300, 300), 0, whole(0, 1), ones(2, 299)),
}
types = {
    "polar": call(torch.polar, ones(3), ones(3, dtype=torch.float64)),
    "complex": call(torch.complex, ones(3), ones(3, dtype=torch.float64)),
    "logcumsumexp": call(torch.logcumsumexp, whole(1, 2), 0),
    "gcd": call(torch.gcd, ones(3), ones(3)),
    "lcm": call(torch.lcm, ones(3), ones(3)),
    "group_norm of weights": call(
        F.group_norm, ones(2, 4), 2, ones(4, dtype=torch.float64), ones(4, dtype=torch.float64)
    ),
    "conv2d of truth": call(
        F.conv3d, ones(1, 1, 3, 3, 3, dtype=torch.bool), ones(1, 1, 2, 2, 2, dtype=torch.bool)
    ),
    "indices of aminmax": lambda d: torch.aminmax(
        torch.ones(2, device=d),
        dim=0,
        out=(torch.ones((), device=d), torch.ones((), device=d).double()),
    ),
}
CASES = bad_shapes | bad_dimensions | empty | images | numbers | large | types
#: calls that CUDA's kernels accept with any number
TAKEN_ON_CUDA = ["native_dropout"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_call_raises_on_its_line_what_native_pytorch_raises(name):
    wrong = CASES[name]
    taken = name in TAKEN_ON_CUDA and current.session.device_facts().has_cuda_kernels
    native = None if taken else raised(lambda: wrong("cpu"))
    for _ in range(2):  # with a new plan, and with one that is known
        found = raised(lambda: wrong("cuda"))
        assert (type(found), str(found)) == (type(native), str(native))
        torch.cuda.synchronize()


DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
)  # fmt: skip
TAKING_NUMBERS = {
    "fill_": lambda x, v: x.fill_(v),
    "full_like": torch.full_like,
    "new_full": lambda x, v: x.new_full((2,), v),
    "setitem": lambda x, v: x.__setitem__(0, v),
    "masked_fill_": lambda x, v: x.masked_fill_(x == 1, v),
    "index_fill": lambda x, v: x.index_fill(
        0, torch.zeros(1, dtype=torch.int64, device=x.device), v
    ),
    "scatter": lambda x, v: x.scatter(0, torch.zeros(1, dtype=torch.int64, device=x.device), v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "add_": lambda x, v: x + v,
    "sub": lambda x, v: torch.sub(x, x, alpha=v),
    "mul": lambda x, v: x * v,
    "pow": lambda x, v: x**v,
    "clamp": lambda x, v: x.clamp(v),
    "clamp_": lambda x, v: x.clamp_(v),
    "eq": lambda x, v: x == v,
    "where": lambda x, v: torch.where(x == 1, x, v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "lerp": lambda x, v: torch.lerp(x, x, v),
    "threshold": lambda x, v: F.threshold(x, 0, v),
    "hardtanh": lambda x, v: F.hardtanh(x, v, v),
    "elu": F.elu,
    "nan_to_num": torch.nan_to_num,
    "_foreach_add": lambda x, v: torch._foreach_add([x], v),
}
PAST = (-1, 0.0, 300, -40_000, 70_000.0, 2**31, -(2**40), 1e39, float("inf"), float("nan"), 2**63)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_a_type_does_not_hold_raise_on_their_line_what_native_pytorch_raises(dtype):
    different = []
    for name, function in TAKING_NUMBERS.items():
        for number in PAST:
            native, found = (
                raised(lambda d=d, f=function, v=number: f(torch.ones(3, dtype=dtype, device=d), v))
                for d in ("cpu", "cuda")
            )
            late = raised(torch.cuda.synchronize)
            if type(found) is not type(native) or late:
                different.append((name, number, native, found, late))
    assert different == []


def test_a_kernel_that_was_asked_keeps_no_tensor_of_the_call(monkeypatch):
    monkeypatch.setattr(ranges, "_found", {})
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(7, 77, device="cuda").add_(1.5)
        buffer = weakref.ref(x._b)
        torch.cuda.synchronize()  # until then the recorded ops keep it
        del x
        assert buffer() is None
    finally:
        gc.enable()


def test_a_type_that_is_asked_for_has_a_range_of_its_own():
    x = torch.ones(3, device="cuda")
    wide, narrow = (
        torch.full_like(x, 1000),
        raised(lambda: torch.full_like(x, 1000, dtype=torch.uint8)),
    )
    assert isinstance(narrow, RuntimeError)
    before = current.session.round_trips
    wide += torch.full_like(x, 2000)
    assert current.session.round_trips == before


def test_what_is_known_of_small_tensors_does_not_hide_what_a_kernel_refuses():
    ranges._found.clear()
    for size in (0, 1, 3):
        given = torch.ones(size, dtype=torch.float16, device="cuda")
        given.fill_(2.0)
    assert isinstance(raised(lambda: given.fill_(70_000.0)), RuntimeError)
    images = [
        torch.ones(2, 2, size, size, size, dtype=torch.bool, device="cuda") for size in (0, 4)
    ]
    for each in images:
        found = raised(lambda x=each: F.avg_pool3d(x, 2))
        assert isinstance(found, RuntimeError)


@pytest.mark.filterwarnings("ignore")
def test_no_right_call_of_the_op_database_is_waited_for_because_it_looks_wrong(monkeypatch):
    waited = []
    confirm = infer.OpPlan.confirm

    def confirm_and_note(plan, params):
        left = plan.ranges is not None and plan.ranges.are_left(params)
        reads_data = plan.info.name == "aten::segment_reduce"  # so native PyTorch waits, too
        if (plan.doubted or left) and not reads_data:
            waited.append((plan.info.name, plan.geometries, tuple(params)))
        confirm(plan, params)

    monkeypatch.setattr(infer.OpPlan, "confirm", confirm_and_note)
    for op in op_db[::6]:
        if torch.float32 not in op.dtypes or op.name.startswith("jiterator"):
            continue
        for sample in itertools.islice(op.sample_inputs("cuda", torch.float32), 3):
            raised(lambda op=op, s=sample: op(s.input, *s.args, **s.kwargs))
    raised(torch.cuda.synchronize)
    assert waited == []


def test_what_a_refused_call_was_to_write_keeps_its_values():
    x = torch.arange(4.0, device="cuda")
    y = x + 1
    for wrong in (
        lambda: x.index_put_((torch.tensor([0, 1], device="cuda"),), torch.ones(3, device="cuda")),
        lambda: x.uniform_(3, 2),
        lambda: x.fill_(1j),
    ):
        with pytest.raises(RuntimeError):
            wrong()
    assert x.tolist() == [0, 1, 2, 3]
    assert y.tolist() == [1, 2, 3, 4]


def test_numbers_are_looked_at_in_each_call_and_right_ones_are_not_waited_for():
    x = torch.zeros(5, device="cuda")
    low = torch.zeros(5, dtype=torch.uint8, device="cuda")
    x.uniform_(0, 2), low.fill_(7), x.bernoulli_(0.25)
    torch.cuda.synchronize()
    before = current.session.round_trips
    for number in range(1, 5):
        x.uniform_(0, number), low.fill_(number), x.bernoulli_(number / 5)
    assert current.session.round_trips == before
    for wrong in (lambda: x.uniform_(0, -1), lambda: low.fill_(256), lambda: x.bernoulli_(-0.1)):
        with pytest.raises(RuntimeError):
            wrong()
    assert low.tolist() == [4] * 5


def test_an_unusual_call_that_is_right_is_waited_for_once_at_most():
    x = torch.rand(0, 4, 6, 6, device="cuda")
    weights = torch.rand(2, 4, 3, 3, device="cuda")
    made = [F.conv2d(x, weights) for _ in range(2)]
    torch.cuda.synchronize()
    before = current.session.round_trips
    made.append(F.conv2d(x, weights))
    assert current.session.round_trips == before
    assert {tuple(each.shape) for each in made} == {(0, 2, 4, 4)}
