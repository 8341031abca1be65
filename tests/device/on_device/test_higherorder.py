"""Ops that take functions: on the device as on the host, gradients too, or refused."""

import pytest
import torch
import torch._higher_order_ops as higher
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as higher_map
from torch._ops import _higher_order_ops
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from jgpu.device.tensor import DeviceTensor
from jgpu.errors import NotSupported

pytestmark = [
    #: what importing torch's own compiler says
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning"),
]


def numbers(*sizes):
    return torch.linspace(-1.0, 2.0, torch.Size(sizes).numel()).view(sizes)


# -- attention -----------------------------------------------------------------------------------


def queries(where, heads=2):
    q, k = numbers(2, 2, 24, 8), numbers(2, heads, 24, 8).sin()
    return tuple(each.to(where) for each in (q, k, k.cos()))


def causal(b, h, i, j):
    return i >= j


def nearer(score, b, h, i, j):
    return score + (i - j) / 8


#: what `flex_attention` is given, and which head of keys serves
ATTENTIONS = {
    "plain": {},
    "causal": {"mask": causal},
    "some see nothing": {"mask": lambda b, h, i, j: (i >= j) & (i > 3)},
    "scored": {"score": nearer},
    "both, one head of keys": {"mask": causal, "score": nearer, "heads": 1, "scale": 0.5},
}


def attend(q, k, v, mask=None, score=None, scale=None, heads=2):
    block = mask and create_block_mask(mask, None, None, 24, 24, device=q.device)
    made, more = flex_attention(
        *(q, k, v, score, block),
        scale=scale,
        enable_gqa=heads == 1,
        return_aux=AuxRequest(lse=True),
    )
    return made, more.lse


@pytest.mark.parametrize("given", ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention_is_as_on_the_host(given):
    heads = given.get("heads", 2)
    ours, natively = (attend(*queries(where, heads), **given) for where in ("cuda", "cpu"))
    torch.testing.assert_close(ours, natively, rtol=0, atol=0, check_device=False)


def written_out(q, k, v, mask=None, score=None, scale=8**-0.5, heads=2):
    """Attention in plain ops, of the logarithms of sums, too."""
    b, h, i, j = (torch.arange(size).view(-1, *(1,) * (3 - at)) for at, size in enumerate(q.shape))
    j = torch.arange(k.shape[2])
    scores = q @ k.mT * scale
    scores = scores if score is None else score(scores, b, h, i, j)
    if mask is not None:
        scores = scores.masked_fill(~mask(b, h, i, j), -torch.inf)
    return torch._safe_softmax(scores, -1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("given", ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention_is_differentiated(given):
    """Natively only CUDA does it, so this is held to plain ops."""
    found = []
    for where, compute in (("cuda", attend), ("cpu", written_out)):
        leaves = [each.requires_grad_() for each in queries(where, given.get("heads", 2))]
        made, _ = compute(*leaves, **given)
        found.append(torch.autograd.grad(made.square().sum(), leaves))
    torch.testing.assert_close(*found, check_device=False)


def test_what_a_score_sees_beside_its_arguments_is_differentiated():
    grads = []
    for where, compute in (("cuda", attend), ("cpu", written_out)):
        bias = numbers(24).to(where).requires_grad_()
        made, _ = compute(*queries(where), score=lambda s, b, h, i, j, bias=bias: s + bias[j])
        grads += torch.autograd.grad(made.square().sum(), bias)
    torch.testing.assert_close(*grads, check_device=False)


def test_compiled_attention_is_the_same():
    given = queries("cuda")
    assert torch.equal(torch.compile(flex_attention)(*given), flex_attention(*given))


def test_attention_under_autocast_is_computed_in_half():
    given = queries("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        made = flex_attention(*given)
    assert torch.equal(made, flex_attention(*(each.bfloat16() for each in given)))


# -- control flow --------------------------------------------------------------------------------


def branches(where):
    x = numbers(6).to(where).requires_grad_()
    made = [
        torch.cond(x.sum() > bound, lambda x: x.sin(), lambda x: x.cos() * x, (x,))
        for bound in (0.0, 100.0)
    ]
    return made, [torch.autograd.grad(each.sum(), x) for each in made]


def nested(where):
    given = {"a": numbers(4).to(where), "b": (numbers(3).to(where),)}
    taken = torch.cond(
        given["a"].sum() > 0,
        lambda x, y: {"sum": x["a"].sum() + y, "kept": x["b"][0] * 2},
        lambda x, y: {"sum": x["a"].sum() - y, "kept": x["b"][0] * 3},
        (given, numbers(1).to(where)),
    )
    count = torch.tensor(3).to(where)
    looped = while_loop(
        lambda x, n: n > 0, lambda x, n: ({"x": x["x"] + n}, n - 1), ({"x": given["a"]}, count)
    )
    return taken, looped


def branches_of_a_batch(where):
    x = numbers(6).to(where)
    return torch.vmap(lambda x: torch.cond(x > 0.5, torch.sin, torch.cos, (x,)))(x)


def repeated(where):
    start = torch.tensor(0).to(where), numbers(4).to(where)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + i), start)


def scanned(where):
    start = {"carry": numbers(3).to(where).requires_grad_()}
    rows = {"a": numbers(5, 3).to(where).requires_grad_(), "b": numbers(5, 3).to(where)}

    def step(state, row):
        made = state["carry"] * row["a"].cos() + row["b"]
        return {"carry": made}, (made.sin(), row["b"].exp())

    last, (first, second) = scan(step, start, rows)
    loss = last["carry"].sum() + first.square().sum()
    return last, first, second, torch.autograd.grad(loss, (start["carry"], rows["a"]))


def summed(where):
    x = {"a": numbers(7, 3).to(where), "b": numbers(7, 3).to(where).cos()}

    def combine(one, other):
        return {"a": one["a"] * other["b"] + other["a"], "b": one["b"] * other["b"]}

    # natively the other mode is for CUDA alone; of elementwise functions both return the same
    modes = ("pointwise", "generic") if where == "cuda" else ("generic", "generic")
    return [
        associative_scan(combine, x, dim, reverse, combine_mode=mode)
        for mode in modes
        for dim in (0, 1)
        for reverse in (False, True)
    ]


def mapped(where):
    rows, more = numbers(5, 3).to(where).requires_grad_(), numbers(3).to(where)
    made = higher_map(lambda row, more: (row * more).exp(), rows, more)
    return made, torch.autograd.grad(made.sum(), rows)


def recomputed(where):
    x = numbers(6).to(where).requires_grad_()
    made = checkpoint(lambda x: x.sin() * x, x, use_reentrant=False)
    (grad,) = torch.autograd.grad(made.sum(), x)
    checkpoint(lambda x: x.sin() * x, x, use_reentrant=True).sum().backward()
    return made, grad, x.grad


def wrapped(where):
    x, ones = numbers(6).to(where), torch.ones(3, 3, dtype=torch.int8).to(where)
    return (
        higher.out_dtype(torch.ops.aten.mm.default, torch.int32, ones, ones),
        higher.wrap_with_set_grad_enabled(False, torch.sin, x),
        higher.strict_mode(lambda x: (x.sin(),), (x,)),
        higher.hints_wrapper(lambda x: x.cos(), (x,), {}, hints={}),
    )


CASES = (
    branches, nested, branches_of_a_batch, repeated, scanned, summed, mapped, recomputed, wrapped
)  # fmt: skip


@pytest.mark.parametrize("compute", CASES)
def test_an_op_that_takes_functions_is_as_on_the_host(compute):
    torch.testing.assert_close(compute("cuda"), compute("cpu"), rtol=0, atol=0, check_device=False)


def test_gradients_of_an_associative_scan():
    grads = []
    for where in ("cuda", "cpu"):
        x = numbers(7, 3).to(where).requires_grad_()
        made = (
            associative_scan(lambda a, b: a * b, x, 0) if where == "cuda" else torch.cumprod(x, 0)
        )
        grads += torch.autograd.grad(made.square().sum(), x)
    torch.testing.assert_close(*grads, check_device=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.cond(x.sum() > 0, lambda x: x, lambda x: x * 2, (x,)),
        lambda x: while_loop(lambda x: x.sum() > 99, lambda x: (x,), (x,))[0],
        lambda x: scan(lambda carry, row: (carry, row * 2), x, x)[0],
    ],
    ids=["cond", "while_loop", "scan"],
)
def test_what_is_returned_is_another_tensor_than_what_was_given(call):
    x = numbers(4).cuda()
    call(x).add_(1)
    assert torch.equal(x.cpu(), numbers(4))


# -- every such op -------------------------------------------------------------------------------


def test_every_op_has_a_rule_for_the_device_or_is_refused_in_a_sentence():
    for op in _higher_order_ops.values():
        assert op.python_key_table[DeviceTensor] is not None
    with pytest.raises(NotSupported, match=r"does not support torch"):
        _higher_order_ops["run_const_graph"](lambda x: x, (torch.ones(2, device="cuda"),))


def test_an_op_that_is_made_later_has_one_too():
    class Doubled(torch._ops.HigherOrderOperator):
        def __call__(self, function, x):
            return super().__call__(function, x)

    doubled = Doubled("doubled_by_a_test")
    doubled.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(lambda f, x: f(x) * 2)
    try:
        assert doubled(torch.sin, torch.zeros(2, device="cuda")).tolist() == [0.0, 0.0]
    finally:
        del _higher_order_ops["doubled_by_a_test"]


def test_tracing_by_fakes_with_gradients_ends_no_process():
    x = numbers(4).cuda().requires_grad_()

    def grad(x):
        return torch.autograd.grad((x.sin() * x).sum(), x)[0]

    traced = make_fx(grad, tracing_mode="fake")(x)
    assert torch.equal(traced(x), grad(x))
