"""What formulas answer is what torch's meta kernels and the host's kernels return, or nothing."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jgpu.wire.formulas import FORMULAS, returned
from jgpu.wire.program import CONJ, NEG, Geometry

FLOATS = (torch.float32, torch.float64)
TYPES = (*FLOATS, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
NUMBERS = st.sampled_from([0, 1, 3, 0.0, 0.5, 2.0, True, 1j])
BENDS = st.sampled_from([1, 0.5, 1.0, 1.0, 0.0, -1.0])
SIZES = st.sampled_from([0, 1, 1, 2, 2, 3, 4])


# -- tensors that lie in many ways -----------------------------------------------------------------


def zeros(shape, dtype):
    return torch.zeros(shape, dtype=dtype, device="cpu")


@st.composite
def laid(draw, shape, dtype):
    """A tensor of zeros of this shape: in rows, permuted, with gaps, expanded, overlapping."""
    shape = tuple(shape)
    way = draw(st.sampled_from(["rows", "rows", "permuted", "sliced", "expanded", "overlapping"]))
    if way == "permuted" and shape:
        order = draw(st.permutations(range(len(shape))))
        made = zeros([shape[k] for k in order], dtype)
        return made.permute([order.index(k) for k in range(len(shape))])
    if way == "sliced" and shape:
        room = draw(st.tuples(*[st.integers(0, 2) for _ in shape]))
        made = zeros([size + more for size, more in zip(shape, room, strict=True)], dtype)
        return made[tuple(slice(0, size) for size in shape)]
    if way == "expanded":
        flat = draw(st.tuples(*[st.booleans() for _ in shape]))
        made = zeros([1 if one else size for one, size in zip(flat, shape, strict=True)], dtype)
        return made.expand(shape)
    if way == "overlapping" and shape and 0 not in shape:
        steps = draw(st.tuples(*[st.integers(0, 3) for _ in shape]))
        last = sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
        return zeros(last + 1, dtype).as_strided(shape, steps)
    return zeros(shape, dtype)


shapes = st.lists(SIZES, max_size=4).map(tuple)
types = st.sampled_from((*FLOATS, *FLOATS, *TYPES))


def lost(draw, shape):
    """The same shape, now and then without some of its first dimensions, or with ones in it."""
    shape = shape[draw(st.sampled_from([0, 0, 0, 1])) :]
    ones = draw(st.tuples(*[st.sampled_from([False, False, True]) for _ in shape]))
    return tuple(1 if one else size for one, size in zip(ones, shape, strict=True))


def dim_of(draw, shape):
    return draw(st.integers(-len(shape) - 1, len(shape)))


# -- calls -----------------------------------------------------------------------------------------


def unary(draw):
    return (draw(laid(draw(shapes), draw(types))),), {}


def with_number(draw):
    return (draw(laid(draw(shapes), draw(types))), draw(NUMBERS)), {}


def two(draw):
    shape, dtype = draw(shapes), draw(types)
    other = draw(st.sampled_from([dtype, dtype, dtype, draw(types)]))
    first = draw(laid(lost(draw, shape), dtype))
    if draw(st.booleans()) and 0 not in first.stride() and other is dtype:
        return (first, torch.empty_strided(first.shape, first.stride(), dtype=dtype).fill_(0)), {}
    return (first, draw(laid(lost(draw, shape), other))), {}


def two_scaled(draw):
    pair, _ = two(draw)
    return pair, draw(st.sampled_from([{}, {}, {"alpha": draw(NUMBERS)}]))


def chosen(draw):
    pair, _ = two(draw)
    mask = draw(laid(lost(draw, draw(st.sampled_from(pair)).shape), torch.bool))
    return (mask, *pair), {}


def filled(draw):
    shape, dtype = draw(shapes), draw(types)
    mask = draw(laid(lost(draw, shape), draw(st.sampled_from([torch.bool, torch.bool, dtype]))))
    return (draw(laid(shape, dtype)), mask, draw(NUMBERS)), {}


def clamped(draw):
    bounds = draw(st.tuples(NUMBERS | st.none(), NUMBERS | st.none()))
    return (draw(laid(draw(shapes), draw(types))), *bounds), {}


def gradient(*rest):
    def call(draw):
        shape, dtype = draw(shapes), draw(types)
        return (draw(laid(shape, dtype)), draw(laid(lost(draw, shape), dtype)), *rest), {}

    return call


def squared(draw):
    shape, dtype = draw(shapes), draw(types)
    target = draw(laid(draw(st.sampled_from([shape, shape, lost(draw, shape)])), dtype))
    return (draw(laid(shape, dtype)), target, draw(st.integers(0, 2))), {}


def squared_gradient(draw):
    (first, target, reduction), _ = squared(draw)
    grad = draw(laid(() if reduction else first.shape, first.dtype))
    return (grad, first, target, reduction), {}


def bent(draw):
    return (*squared(draw)[0], draw(BENDS)), {}


def bent_gradient(draw):
    return (*squared_gradient(draw)[0], draw(BENDS)), {}


def truths(count):
    def call(draw):
        shape, dtype = draw(shapes), draw(st.sampled_from([torch.bool, torch.bool, *FLOATS]))
        return tuple(draw(laid(lost(draw, shape), dtype)) for _ in range(count)), {}

    return call


def factors(draw, batch):
    m, k, n, dtype = draw(SIZES), draw(SIZES), draw(SIZES), draw(types)
    inner = draw(st.sampled_from([k, k, k, draw(SIZES)]))
    return draw(laid((*batch, m, k), dtype)), draw(laid((*batch, inner, n), dtype))


def matrices(draw):
    return factors(draw, ()), {}


def batches(draw):
    return factors(draw, (draw(SIZES),)), {}


def added(dims):
    def call(draw):
        one, other = factors(draw, (draw(SIZES),) * (dims - 2))
        shape = lost(draw, (*one.shape[:-1], other.shape[-1]))
        kwargs = draw(st.sampled_from([{}, {"beta": draw(NUMBERS), "alpha": draw(NUMBERS)}]))
        return (draw(laid(shape, one.dtype)), one, other), kwargs

    return call


def reduced(draw):
    shape = draw(shapes)
    dims = draw(st.lists(st.integers(-len(shape) - 1, len(shape)), max_size=3) | st.none())
    return (draw(laid(shape, draw(types))), dims, draw(st.booleans())), {}


def spread(draw):
    (first, dims, keepdim), _ = reduced(draw)
    return (first, dims), {"correction": draw(NUMBERS | st.none()), "keepdim": keepdim}


def truths_along(*rest):
    def call(draw):
        shape, dtype = draw(shapes), draw(st.sampled_from([torch.bool, torch.bool, *TYPES]))
        return (draw(laid(shape, dtype)), *[each(draw, shape) for each in rest]), {}

    return call


def keepdim(draw, shape):
    return draw(st.booleans())


def running(draw):
    shape = draw(shapes)
    kwargs = draw(st.sampled_from([{}, {}, {"dtype": torch.float64}]))
    return (draw(laid(shape, draw(types))), dim_of(draw, shape)), kwargs


def extremes(draw):
    shape = draw(shapes)
    dims = draw(st.lists(st.integers(-len(shape) - 1, len(shape)), max_size=3))
    return (draw(laid(shape, draw(types))), dims, draw(st.booleans())), {}


def along(draw):
    shape = draw(shapes)
    return (draw(laid(shape, draw(types))), dim_of(draw, shape), draw(st.booleans())), {}


def softmax(draw):
    shape = draw(shapes)
    return (draw(laid(shape, draw(types))), dim_of(draw, shape), False), {}


def softmax_gradient(draw):
    shape, dtype = draw(shapes), draw(types)
    pair = draw(laid(shape, dtype)), draw(laid(shape, dtype))
    return (*pair, dim_of(draw, shape), dtype), {}


def joined(draw):
    shape, dtype = draw(shapes), draw(types)
    dim = dim_of(draw, shape)
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        mine = list(shape)
        if shape and -len(shape) <= dim < len(shape):
            mine[dim] = draw(SIZES)
        tensors.append(draw(laid(draw(st.sampled_from([tuple(mine)] * 7 + [(0,)])), dtype)))
    return (tensors, dim), {}


def stacked(draw):
    shape, dtype = draw(shapes), draw(types)
    others = st.sampled_from([shape] * 7 + [(2,)])
    tensors = [draw(laid(draw(others), dtype)) for _ in range(draw(st.integers(1, 3)))]
    return (tensors, draw(st.integers(-len(shape) - 2, len(shape) + 1))), {}


def selected(draw):
    shape = draw(shapes)
    index = draw(laid((draw(SIZES),), draw(st.sampled_from([torch.int64, torch.int32]))))
    return (draw(laid(shape, draw(types))), dim_of(draw, shape), index), {}


def gathered(draw):
    shape = draw(shapes)
    sizes = [draw(st.sampled_from([1, size, size, size + 1])) for size in shape]
    index = draw(laid(sizes, torch.int64))
    return (draw(laid(shape, draw(types))), dim_of(draw, shape), index), {}


def like(draw):
    (first,), kwargs = copied(draw)
    dtype = draw(st.sampled_from([None, *TYPES]))
    return (first,), kwargs | ({} if dtype is None else {"dtype": dtype})


def looked_up(draw):
    weight = draw(laid((draw(st.integers(1, 3)), *draw(st.lists(SIZES, max_size=2))), draw(types)))
    indices = draw(laid(draw(shapes), draw(st.sampled_from([torch.int64, torch.int32]))))
    return (weight, indices, *draw(st.sampled_from([(), (0,), (-1, False, False)]))), {}


def indexed(draw):
    index = draw(laid(draw(shapes), draw(st.sampled_from([torch.int64, torch.int32, torch.bool]))))
    return (draw(laid(draw(shapes), draw(types))), [index]), {}


def lookup_gradient(draw):
    shape = draw(shapes)
    indices = draw(laid(shape, draw(st.sampled_from([torch.int64, torch.int32]))))
    grad = draw(laid((*shape, draw(SIZES)), draw(types)))
    return (grad, indices, draw(st.integers(1, 3)), -1, False), {}


def copied(draw):
    formats = [None, torch.contiguous_format, torch.preserve_format, torch.channels_last]
    kwargs = draw(st.sampled_from([{}, *({"memory_format": each} for each in formats)]))
    return (draw(laid(draw(shapes), draw(types))),), kwargs


def normed(draw):
    shape, dtype = draw(shapes), draw(types)
    normal = shape[draw(st.integers(0, len(shape))) :]
    affine = [draw(st.none() | laid(normal, dtype)) for _ in range(2)]
    return (draw(laid(shape, dtype)), list(normal), *affine, 1e-5), {}


def normed_gradient(draw):
    (first, normal, weight, bias, _), _ = normed(draw)
    lead = first.shape[: first.dim() - len(normal)]
    saved = [draw(laid((*lead, *(1,) * len(normal)), first.dtype)) for _ in range(2)]
    grad = draw(laid(first.shape, first.dtype))
    mask = draw(st.tuples(*[st.sampled_from([True, True, False])] * 3))
    return (grad, first, normal, *saved, weight, bias, list(mask)), {}


def likelihood(draw):
    rows, classes, dtype = draw(SIZES), draw(SIZES), draw(types)
    shape = draw(st.sampled_from([(rows, classes)] * 5 + [(classes,)]))
    target = draw(laid(shape[:-1], torch.int64))
    weight = draw(st.none() | laid((classes,), dtype))
    return (draw(laid(shape, dtype)), target, weight, draw(st.integers(0, 2)), -100), {}


def likelihood_gradient(draw):
    (first, target, weight, reduction, ignored), _ = likelihood(draw)
    grad = draw(laid(() if reduction else target.shape, first.dtype))
    total = zeros((), first.dtype)
    return (grad, first, target, weight, reduction, ignored, total), {}


def attention(draw):
    batch, heads, one, other, width = (draw(SIZES) for _ in range(5))
    dtype = draw(types)
    query = draw(laid((batch, heads, one, width), dtype))
    kept = [draw(laid((batch, heads, other, width), dtype)) for _ in range(2)]
    return (query, *kept, 0.0, draw(st.booleans())), {}


def attention_gradient(draw):
    (query, key, value, _, causal), _ = attention(draw)
    grad, out = (draw(laid(query.shape, query.dtype)) for _ in range(2))
    sums = torch.float64 if query.dtype is torch.float64 else torch.float32
    saved = zeros((query.shape[0], query.shape[2], query.shape[1]), sums).transpose(1, 2)
    return (grad, query, key, value, out, saved, 0.0, causal), {}


CALLS = {
    **dict.fromkeys(("add.Tensor", "sub.Tensor"), two_scaled),
    **dict.fromkeys(("mul.Tensor", "div.Tensor", "maximum", "minimum"), two),
    **{f"{name}.Scalar": with_number for name in ("add", "sub", "mul", "div", "rsub")},
    **dict.fromkeys(("leaky_relu", "pow.Tensor_Scalar"), with_number),
    **{f"{name}.Tensor": two for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{name}.Scalar": with_number for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **dict.fromkeys(
        ("gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward"), gradient()
    ),
    "threshold_backward": gradient(0),
    "leaky_relu_backward": gradient(0.1, False),
    "where.self": chosen,
    "masked_fill.Scalar": filled,
    "clamp": clamped,
    "mse_loss": squared,
    "mse_loss_backward": squared_gradient,
    **dict.fromkeys(("huber_loss", "smooth_l1_loss"), bent),
    **dict.fromkeys(("huber_loss_backward", "smooth_l1_loss_backward"), bent_gradient),
    **dict.fromkeys(("clamp_max", "clamp_min"), with_number),
    "softplus_backward": gradient(1, 20),
    **dict.fromkeys(("bitwise_not", "logical_not"), truths(1)),
    **dict.fromkeys(
        ("bitwise_and.Tensor", "bitwise_or.Tensor", "logical_and", "logical_or"), truths(2)
    ),
    "mm": matrices,
    "bmm": batches,
    "addmm": added(2),
    "baddbmm": added(3),
    **dict.fromkeys(("sum.dim_IntList", "mean.dim"), reduced),
    **dict.fromkeys(("std.correction", "var.correction"), spread),
    **dict.fromkeys(("all", "any"), truths_along()),
    **dict.fromkeys(("all.dim", "any.dim"), truths_along(dim_of, keepdim)),
    **dict.fromkeys(("cumsum", "cumprod"), running),
    **dict.fromkeys(("amax", "amin", "logsumexp"), extremes),
    **dict.fromkeys(("argmax", "argmin", "max.dim", "min.dim"), along),
    **dict.fromkeys(("_softmax", "_log_softmax"), softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), softmax_gradient),
    "cat": joined,
    "stack": stacked,
    "index_select": selected,
    "gather": gathered,
    **dict.fromkeys(("empty_like", "ones_like", "zeros_like"), like),
    "clone": copied,
    "embedding": looked_up,
    "index.Tensor": indexed,
    "embedding_dense_backward": lookup_gradient,
    "native_layer_norm": normed,
    "native_layer_norm_backward": normed_gradient,
    "nll_loss_forward": likelihood,
    "nll_loss_backward": likelihood_gradient,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_gradient,
}


# -- what is returned ------------------------------------------------------------------------------


def mapped(value, of_tensor):
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, list | tuple):
        return [mapped(item, of_tensor) for item in value]
    return value


def geometry(tensor, bits=0):
    name = str(tensor.dtype).removeprefix("torch.")
    return Geometry(name, tuple(tensor.shape), tuple(tensor.stride()), 0, bits)


def on_meta(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def foretold(name, args, kwargs):
    return returned(f"aten::{name}", mapped(args, geometry), kwargs)


def called(name, args, kwargs):
    """What torch returns, as geometries; in a list whatever it is."""
    base, _, overload = name.partition(".")
    made = getattr(getattr(torch.ops.aten, base), overload or "default")(*args, **kwargs)
    made = made if isinstance(made, list | tuple) else (made,)
    return [None if each is None else geometry(each) for each in made]


def without_idle_steps(made):
    """The same but for steps along dimensions of one element, which lead nowhere."""
    return [
        each
        if each is None
        else replace(
            each,
            stride=tuple(
                0 if size == 1 else step for size, step in zip(each.shape, each.stride, strict=True)
            ),
        )
        for each in made
    ]


def runs_on_the_host(args):
    tensors = [each for arg in args for each in (arg if isinstance(arg, list) else [arg])]
    dtypes = {each.dtype for each in tensors if isinstance(each, torch.Tensor)}
    return not dtypes & {torch.float16, torch.bfloat16}


#: before 2.13 the meta kernel of the host's attention is wrong
OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def compare(name, args, kwargs):
    """Hold a formula's answer against the kernels'; says whether there was one."""
    made = foretold(name, args, kwargs)
    if made is None:
        return False
    for bits in (CONJ, NEG):
        lazy = mapped(args, partial(geometry, bits=bits))
        assert returned(f"aten::{name}", lazy, kwargs) is None
    with torch.no_grad():
        of_meta = called(name, mapped(args, on_meta), kwargs)
        if not (OLD and "attention_for_cpu" in name):  # whose sums are of another type there
            assert without_idle_steps(of_meta) == without_idle_steps(made)
        if runs_on_the_host(args):
            assert called(name, args, kwargs) == list(made)
    return True


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_a_formula_answers_as_the_kernels_do_or_not_at_all(name):
    name = name.removeprefix("aten::")
    answered = []

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def check(data):
        answered.append(compare(name, *CALLS.get(name, unary)(data.draw)))

    check()
    assert any(answered)


def test_ops_without_a_formula_and_unknown_arguments_are_left_to_torch():
    row = Geometry("float32", (3,), (1,))
    assert returned("aten::sort", (row,), {}) is None
    assert returned("aten::exp", (row,), {"out": row}) is None
    assert returned("aten::exp", (row,), {}) == (row,)


def test_results_that_overflow_are_left_to_torch():
    tall, wide = Geometry("float32", (1 << 21, 1), (1, 1)), Geometry("float32", (1 << 21,), (1,))
    assert returned("aten::add.Tensor", (tall, wide), {}) is None


def test_a_transposed_tensor_stays_transposed():
    turned = zeros((3, 2, 4), torch.float32).permute(2, 0, 1)
    for name, args in (
        ("exp", (turned,)),
        ("mul.Tensor", (turned, turned)),
        ("gt.Scalar", (turned, 0)),
    ):
        assert compare(name, args, {})


X, Y = zeros((4, 3), torch.float32), zeros((3,), torch.float32)
LONG = zeros((4,), torch.int64)
DOUBLE = zeros((3,), torch.float64)
COLUMN = zeros((4, 1), torch.float32)
HEADS = zeros((2, 3, 5, 4), torch.float32)
SUMS = zeros((2, 3, 5), torch.float32)
MASK = [True, True, True]
BACK = "_scaled_dot_product_flash_attention_for_cpu_backward"


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add.Tensor", (X, LONG.float())),
        ("cat", ([X, HEADS[0, 0, :4]], 0)),
        ("embedding", (X, Y)),
        ("index.Tensor", (X, [None, LONG])),
        ("index.Tensor", (X, [Y])),
        ("embedding_dense_backward", (X, Y, 3, -1, False)),
        ("embedding_dense_backward", (X, LONG, 0, -1, False)),
        ("embedding_dense_backward", (X, LONG[:2], 3, -1, False)),
        ("native_layer_norm", (X, [3], DOUBLE, None, 1e-5)),
        ("native_layer_norm", (X, [4], None, None, 1e-5)),
        ("native_layer_norm", (X, [3], Y, None, None)),
        ("native_layer_norm_backward", (X, X, [3], Y, Y, Y, Y, MASK)),
        ("native_layer_norm_backward", (X, X, [3], COLUMN, COLUMN, Y, Y, MASK[:2])),
        ("native_layer_norm_backward", (X, X, [3], COLUMN, COLUMN, Y, Y, [1, 1, 1])),
        ("native_layer_norm_backward", (X, X, [3], COLUMN, COLUMN, None, Y, MASK)),
        ("nll_loss_forward", (X, LONG, DOUBLE, 1, -100)),
        ("nll_loss_backward", (Y, X, LONG, None, 1, -100, zeros((), torch.float32))),
        ("sum.dim_IntList", (X, 0)),
        (BACK, (HEADS[:1], HEADS, HEADS, HEADS, HEADS, SUMS, 0.0, False)),
        (BACK, (HEADS, HEADS, HEADS, HEADS, HEADS, SUMS[:1], 0.0, False)),
        (BACK, (HEADS, HEADS, HEADS, HEADS[0], HEADS, SUMS, 0.0, False)),
    ],
)
def test_what_does_not_go_together_is_left_to_torch(name, args):
    assert foretold(name, args, {}) is None
