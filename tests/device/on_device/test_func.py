"""`torch.func` and forward-mode derivatives; torch scripts its formulas at their first use."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import dropout
from torch.nn.functional import scaled_dot_product_attention as attend

from jgpu.device.recording.ops import info_of

# what torch says of its own use of TorchScript and of traced constants
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert:UserWarning"),
]

X = torch.linspace(-1, 1, 6).view(2, 3)


def both(function):
    native, shared = function(X), function(X.cuda())
    assert shared.device.type == "cuda"
    assert torch.equal(native, shared.cpu())


def test_jvp():
    both(lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1])


def test_hessian():
    both(lambda x: torch.func.hessian(lambda a: (a**3).sum())(x))


def test_jacobians():
    both(torch.func.jacrev(torch.tanh))
    both(torch.func.jacfwd(torch.tanh))


def test_vmap_and_gradients_per_sample():
    both(torch.func.vmap(torch.func.grad(lambda row: row.exp().sum() ** 2)))


def test_linearize():
    both(lambda x: torch.func.linearize(torch.cos, x)[1](torch.ones_like(x)))


def test_a_traced_graph_computes_anew():
    weight = torch.full((2, 3), 2.0, device="cuda")
    graph = make_fx(lambda x: (x * weight).sin() + torch.zeros_like(x))(torch.ones_like(weight))
    y = X.cuda()
    assert torch.equal(graph(y), (y * weight).sin())


def test_scripted_functions_know_the_factories():
    @torch.jit.script
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(x) + torch.zeros_like(x)

    assert torch.equal(like(X.cuda()).cpu(), torch.ones(2, 3))


def masked(x):
    return torch.ones(3, 3, dtype=torch.bool, device=x.device).tril()


ATTENTION = {
    "plain": lambda x: attend(x, x * 2, x + 1),
    "causal": lambda x: attend(x, x, x, is_causal=True, scale=0.3),
    "truths": lambda x: attend(x, x, x, masked(x)),
    "numbers": lambda x: attend(x, x, x, masked(x).float() - 1),
    "double": lambda x: attend(x.double(), x.double(), x.double()),
    "bfloat16": lambda x: attend(x.bfloat16(), x.bfloat16(), x.bfloat16()),
    "heads in groups": lambda x: attend(x, x[:, :1], x[:, :1], enable_gqa=True),
    "three dimensions": lambda x: attend(x[0], x[0], x[0]),
    "three, causal": lambda x: attend(x[0], x[0], x[0], is_causal=True, scale=0.3),
    "three, truths": lambda x: attend(x[0], x[0], x[0], masked(x)),
    "three, a mask each": lambda x: attend(x[0], x[0], x[0], torch.stack([masked(x)] * 2)),
    "three, numbers": lambda x: attend(x[0], x[0], x[0], masked(x)[1].float() - 1),
    "three, in groups": lambda x: attend(x[0], x[0, :1], x[0, :1], enable_gqa=True),
    "three, dropout": lambda x: attend(x[0], x[0], x[0], dropout_p=0.5),
    "three and four": lambda x: attend(x[0], x, x),
    "two dimensions": lambda x: attend(x[0, 0], x[0, 0], x[0, 0]),
    "dropout": lambda x: attend(x, x, x, dropout_p=0.5),
    "features apart": lambda x: attend(*[x[:, :, :3, :3].transpose(2, 3)] * 3),
}
TRANSFORMS = {
    "grad": lambda f: grad(lambda x: f(x).square().sum()),
    "jacrev": lambda f: jacrev(f),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[1],
    "vmap": lambda f: lambda x: vmap(f, randomness="same")(torch.stack([x, x * 2])),
    "vmap of grad": lambda f: (
        lambda x: vmap(grad(lambda y: f(y).square().sum()), randomness="same")(
            torch.stack([x, x * 2])
        )
    ),
    "grad of vmap": lambda f: grad(
        lambda x: vmap(f, randomness="same")(torch.stack([x, x * 2])).square().sum()
    ),
    "vmap of something else": lambda f: lambda x: vmap(lambda y: y + f(x))(x),
}


def outcome(transform, function, x):
    torch.manual_seed(5)
    try:
        return transform(function)(x).cpu()
    except (NotImplementedError, RuntimeError) as error:
        return type(error), str(error)


def same_outcome(transform, function):
    x = torch.linspace(-1, 2, 48).sin().view(1, 2, 3, 8)
    native = outcome(transform, function, x)
    for _ in range(3):
        ours = outcome(transform, function, x.cuda())
        if isinstance(native, tuple):
            assert ours[0] is native[0]
        else:
            assert torch.equal(ours, native)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_inside_a_transform_takes_the_hosts_way(name, how):
    same_outcome(TRANSFORMS[how], ATTENTION[name])


@pytest.mark.parametrize("how", TRANSFORMS)
def test_dropout_inside_a_transform_draws_the_hosts_numbers(how):
    same_outcome(TRANSFORMS[how], lambda x: dropout(x, 0.3))


def test_attention_of_host_and_device_tensors_inside_a_transform_is_refused():
    x = torch.ones(1, 1, 2, 2)
    with pytest.raises(RuntimeError, match="same device"):
        vmap(lambda y: attend(y, y, x))(x.cuda()[None])
    with pytest.raises(RuntimeError, match="same device"):
        grad(lambda y: attend(y, y, x).sum())(x.cuda())


def summed(out):
    """One number of what a layer or a cell of any kind returns."""
    return sum(each.square().sum() for each in torch.utils._pytree.tree_leaves(out))


def stepped(cell, x):
    state = None
    for step in x:
        state = cell(step, state)
    return state


def packed(layer, x):
    return layer(nn.utils.rnn.pack_padded_sequence(x, [5, 3]))[0].data


RECURRENT = {
    "lstm": (lambda: nn.LSTM(3, 4), None),
    "gru": (lambda: nn.GRU(3, 4), None),
    "tanh": (lambda: nn.RNN(3, 4), None),
    "relu": (lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False), None),
    "lstm in layers": (lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), None),
    "lstm projected": (lambda: nn.LSTM(3, 4, proj_size=2), None),
    "lstm of doubles": (lambda: nn.LSTM(3, 4, bias=False).double(), None),
    "gru in layers": (lambda: nn.GRU(3, 4, 2, bidirectional=True, dropout=0.4), None),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), stepped),
    "gru cell": (lambda: nn.GRUCell(3, 4), stepped),
    "tanh cell": (lambda: nn.RNNCell(3, 4), stepped),
    "gru, packed": (lambda: nn.GRU(3, 4), packed),
}


def in_forward_mode(f, weights, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(weights, forward_ad.make_dual(x, x.cos()))).tangent


OF_WEIGHTS = {
    "grad": lambda f, weights, x: grad(f)(weights, x),
    "grad of grad": lambda f, weights, x: grad(lambda y: summed(grad(f)(weights, y)))(x),
    "vjp": lambda f, weights, x: vjp(f, weights, x)[1](torch.ones_like(x[0, 0, 0])),
    "jacrev": lambda f, weights, x: jacrev(f)(weights, x),
    "vmap": lambda f, weights, x: vmap(f, (None, 0))(weights, torch.stack([x, x * 2])),
    "vmap of grad": lambda f, weights, x: vmap(grad(f), (None, 0), randomness="different")(
        weights, torch.stack([x, x * 2])
    ),
    "models at once": lambda f, weights, x: vmap(grad(f), (0, None))(
        {name: torch.stack([each, each * 2]) for name, each in weights.items()}, x
    ),
    "jvp": lambda f, weights, x: jvp(lambda y: f(weights, y), (x,), (x.cos(),)),
    "hessian": lambda f, weights, x: hessian(f, 1)(weights, x),
    "linearize": lambda f, weights, x: linearize(lambda y: f(weights, y), x)[1](x),
    "forward mode": in_forward_mode,
    "functionalize": lambda f, weights, x: grad(functionalize(f))(weights, x),
}


def of_weights(transform, name, where):
    """What a transform makes of a layer's sum, as a function of its weights; or its error."""
    make, call = RECURRENT[name]
    torch.manual_seed(3)
    layer = make().to(where)
    torch.manual_seed(5)
    weights = {name: each.detach() for name, each in layer.named_parameters()}
    x = torch.linspace(-1, 2, 30).sin().view(5, 2, 3).to(where, next(iter(weights.values())).dtype)

    def f(weights, x):
        if call is None:
            return summed(functional_call(layer, weights, (x,)))
        return summed(call(lambda *given: functional_call(layer, weights, given), x))

    try:
        return [each.cpu() for each in torch.utils._pytree.tree_leaves(transform(f, weights, x))]
    except (NotImplementedError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("how", OF_WEIGHTS)
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_and_cells_inside_a_transform_take_the_hosts_way(name, how):
    native = of_weights(OF_WEIGHTS[how], name, "cpu")
    for _ in range(3):
        ours = of_weights(OF_WEIGHTS[how], name, "cuda")
        if isinstance(native, tuple):
            assert ours == native
        else:
            assert all(map(torch.equal, ours, native))
            assert len(ours) == len(native)


@pytest.mark.parametrize("of", ["input", "weight"])
def test_recurrent_layers_of_host_and_device_tensors_inside_a_transform_are_refused(of):
    x = torch.ones(2, 1, 3, device="cpu" if of == "input" else "cuda")
    layer = nn.GRU(3, 4, device="cuda" if of == "input" else "cpu")
    with pytest.raises(RuntimeError, match="not at the same device"):
        grad(lambda y: layer(y, torch.zeros(1, 1, 4, device="cuda"))[0].sum())(x)


ROWS, LENGTHS = torch.linspace(1, 2, 8), torch.tensor([3, 2])

#: what brings a host tensor to the device inside a transform
UPLOADS = {
    "to": lambda x: x * ROWS.to(x.device),
    "to a name": lambda x: x * ROWS.to(str(x.device)),
    "to a tensor's": lambda x: x * ROWS.to(x),
    "turned, to": lambda x: x.mT.mT * torch.stack([ROWS, ROWS]).t().to(x.device).t()[0],
    "as_tensor": lambda x: x * torch.as_tensor(ROWS, device=x.device),
    "copied": lambda x: x * torch.empty(8, device=x.device).copy_(ROWS),
    "losses": lambda x: torch.nn.functional.ctc_loss(
        x[0].permute(2, 0, 1).log_softmax(-1), torch.tensor([[1, 2, 1]] * 2).to(x.device),
        LENGTHS.to(x.device) + 4, LENGTHS.to(x.device), reduction="none",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("name", UPLOADS)
def test_host_tensors_come_to_the_device_inside_a_transform(name, how):
    same_outcome(TRANSFORMS[how], UPLOADS[name])


def test_a_host_tensor_comes_to_the_device_inside_a_transform_by_cuda():
    x = torch.ones(8, device="cuda")
    for _ in range(3):
        assert torch.equal(grad(lambda y: (y * ROWS.cuda()).sum())(x).cpu(), ROWS)


#: composites that look whether a tangent is there, and ops whose meta kernels print tensors
IN_FORWARD_MODE = {
    "singular values": lambda x: torch.linalg.svdvals(x[0]),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x[0] @ x[0].mT),
    "quantile": lambda x: torch.quantile(x, 0.3),
    "between": lambda x: (x * 2).lerp_(x.exp(), x.detach()),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("how", ["jvp", "vmap", "forward mode"])
@pytest.mark.parametrize("name", IN_FORWARD_MODE)
def test_ops_in_forward_mode_compute_what_they_do_natively(name, how):
    call = IN_FORWARD_MODE[name]
    if how == "forward mode":
        same_outcome(lambda f: lambda x: in_forward_mode(lambda _, y: f(y), {}, x), call)
    elif how == "vmap":
        same_outcome(lambda f: vmap(TRANSFORMS["jvp"](f)), lambda x: call(x[None]))
    else:
        same_outcome(TRANSFORMS["jvp"], call)


HEADS = {
    "one tensor": lambda f, x: f(x, x, x),
    "three of one place": lambda f, x: f(x, x.view(3, 2, 8), x.view(3, 2, 8)),
    "two that are one, and another": lambda f, x: f(x, *[x.view(3, 2, 8)] * 2),
    "vmap": lambda f, x: vmap(lambda y: f(y, y, y))(torch.stack([x, x * 2])),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", HEADS)
def test_heads_of_one_tensor_are_told_from_heads_of_several_that_show_one_place(name):
    """A kernel projects one tensor at once, and several each by itself: other last bits."""
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(3, 2, 8)

    def attended(*given):
        project = layer.in_proj_weight, layer.in_proj_bias
        out = layer.out_proj.weight, layer.out_proj.bias
        return torch._native_multi_head_attention(*given, 8, 2, *project, *out)[0]

    with torch.no_grad():
        native = HEADS[name](attended, x)
        layer.cuda()
        for _ in range(3):
            assert torch.equal(HEADS[name](attended, x.cuda()).cpu(), native)


def test_an_op_that_is_planned_leaves_forward_mode_as_it_is(monkeypatch):
    """Its level is the whole process's: another thread may be in it."""
    info, levels = info_of(torch.ops.aten.roll.default), []

    def meta(*args, func=info.func, **kwargs):
        levels.append(forward_ad._current_level)
        return func(*args, **kwargs)

    vars(meta).update({name: getattr(info.func, name) for name in ("_schema", "tags")})
    monkeypatch.setattr(info, "func", meta)
    for count in (3, 4):
        with forward_ad.dual_level() if count == 3 else nullcontext():
            torch.roll(torch.rand(count, 11).cuda(), 2, 1)
    assert levels[0] == 0
    assert levels[-1] == -1


def test_tensors_that_the_kernel_infers_with_have_no_tangent():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        shown = torch.ones(2, device="meta")
        with torch._C._DisableTorchDispatch():
            assert forward_ad.unpack_dual(shown) == (shown, None)
            assert forward_ad.unpack_dual(dual).tangent.tolist() == [1.0, 1.0]
        assert forward_ad.unpack_dual(forward_ad.make_dual(shown, shown)).tangent is not None
