"""Native calls of contracted ops, with which the fuzzer of contracts begins.

They come from training steps, from PyTorch's databases of operators, and from a list by hand. An op
that is composed of others is recorded whole where it is called by hand. Of kernels that only CUDA
has, the calls are those that torch itself emits for tensors without data, forward and backward.
"""

from collections import defaultdict

import torch
from contract_reach import ON_CUDA
from recorder import Recorder
from test_programs_contracts import steps
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.wire import vocabulary
from jgpu.wire.program import (
    Dtype,
    GeneratorArg,
    HostTensor,
    Layout,
    MemoryFormat,
    Op,
    Slot,
    slots_of,
)

__all__ = ["CONTRACTED", "FROM_DATABASES", "base_of", "seeds"]

#: of the ops under contract those that this torch has
CONTRACTED = {name for name in vocabulary.CONTRACTED if hasattr(torch.ops.aten, name)}

PER_OP = 10
#: Contracted ops whose native calls come from PyTorch's database of operators alone.
FROM_DATABASES = frozenset(
    """
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _batch_norm_with_update _cdist_backward
    _cdist_forward _chunk_cat _conj_physical _embedding_bag_per_sample_weights_backward _linalg_det
    _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _native_batch_norm_legit
    _pdist_backward _pdist_forward _prelu_kernel _prelu_kernel_backward _softmax
    _softmax_backward_data _trilinear _unique _unique2 _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d _upsample_nearest_exact2d_backward adaptive_max_pool3d_backward
    avg_pool2d_backward avg_pool3d_backward batch_norm_backward binary_cross_entropy_backward
    diagonal_backward elu_backward fractional_max_pool2d_backward fractional_max_pool3d_backward
    glu_backward grid_sampler_2d_backward grid_sampler_3d_backward hardshrink_backward
    hardsigmoid_backward hardswish_backward hardtanh_backward huber_loss_backward
    leaky_relu_backward log_sigmoid_backward log_sigmoid_forward logit_backward
    masked_scatter_backward max_pool3d_with_indices_backward mish_backward mse_loss_backward
    multilabel_margin_loss_backward multilabel_margin_loss_forward native_dropout_backward
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    rrelu_with_noise_backward select_backward sigmoid_backward silu_backward slice_backward
    smooth_l1_loss_backward softplus_backward softshrink_backward tanh_backward unfold_backward
    upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
    upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward
    upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
    upsample_trilinear3d upsample_trilinear3d_backward
    """.split()  # noqa: SIM905 - a name a line would fill two pages
)


def base_of(name):
    """An op's base name, without the underscore of its in-place variant."""
    return name.removeprefix("aten::").partition(".")[0].removesuffix("_")


def seeds(databases):
    """Native calls by the op's name: (op, geometries of its slots)."""
    found = defaultdict(dict)

    def note(op, seen):
        base = base_of(op.name)
        if base in CONTRACTED and (seen or base in ON_CUDA) and len(found[op.name]) < PER_OP:
            key = seen, repr(op.args), repr(sorted(op.kwargs.items()))
            found[op.name].setdefault(key, (op, seen))

    def record(call):
        with Recorder() as recorder:
            call()
        recorder.recording()
        program = recorder.program
        for op in program.ops:
            views = [program.views[slot.view] for slot in slots_of(op)]
            note(op, tuple(program.geometries[view.geometry] for view in views))

    torch.manual_seed(1)
    for step in steps():
        step()
        record(step)
    for call in by_hand():
        with Whole() as whole:
            call()
        for op, seen in whole.calls:
            note(op, seen)
        record(call)
    for op, seen in on_cuda():
        note(op, seen)
    for call in (*over_lists(), *(from_databases() if databases else ())):
        try:
            record(call)
        except Exception:  # what natively fails, or cannot be recorded: no seed
            continue
    return {name: list(calls.values()) for name, calls in sorted(found.items()) if calls}


def as_op(overload, args, kwargs):
    """A call as a program says it, with slots numbered from 0, and their geometries."""
    seen = []

    def said(arg, name):
        if isinstance(arg, torch.Tensor) and "lengths" in name:
            data = arg.contiguous().numpy().tobytes()
            return HostTensor(str(arg.dtype).removeprefix("torch."), tuple(arg.shape), data)
        if isinstance(arg, torch.Tensor):
            seen.append(geometry_of(arg))
            return Slot(len(seen) - 1, len(seen) - 1)
        if isinstance(arg, (list, tuple)):
            return tuple(said(item, name) for item in arg)
        for kind, word in (
            (torch.dtype, Dtype), (torch.layout, Layout), (torch.memory_format, MemoryFormat),
        ):  # fmt: skip
            if isinstance(arg, kind):
                return word(str(arg).removeprefix("torch."))
        return GeneratorArg(0) if isinstance(arg, torch.Generator) else arg

    names = [argument.name for argument in overload._schema.arguments]
    plain = tuple(said(arg, name) for arg, name in zip(args, names, strict=False))
    named = {name: said(kwargs[name], name) for name in names if name in kwargs}
    name = f"{overload._schema.name}.{overload._schema.overload_name or 'default'}"
    return Op(name, plain, named, ()), tuple(seen)


class Whole(TorchFunctionMode):
    """Notes ops that are called by name, before they are taken apart."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverloadPacket):
            name = torch._C._jit_resolve_packet(func._qualified_op_name, *args, **kwargs)
            self.calls.append(as_op(getattr(func, name or "default"), args, kwargs))
        return func(*args, **kwargs)


class Emitted(TorchDispatchMode):
    """Notes the ops that only CUDA has, whoever calls them."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if base_of(func._schema.name) in ON_CUDA:
            self.calls.append(as_op(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def on_cuda():
    """What torch emits for CUDA's own kernels: forward, and backward by its formulas."""
    a = torch.ops.aten

    def meta(*shape, dtype=torch.float16):
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

    def heads(batch, count, length, width, dtype=torch.float16):
        """As a projection to all heads lays them out."""
        return meta(batch, length, count, width, dtype=dtype).transpose(1, 2)

    emitted = Emitted()
    with emitted:
        for batch, count, shared, length, keys, width in (
            (2, 4, 4, 5, 7, 16), (1, 4, 2, 33, 3, 8), (3, 1, 1, 1, 40, 32),
        ):  # fmt: skip
            few = heads(batch, shared, keys, width), heads(batch, shared, keys, width)
            many = heads(batch, count, keys, width), heads(batch, count, keys, width + 8)
            query, bias = heads(batch, count, length, width), meta(batch, count, length, keys)
            results = (
                a._scaled_dot_product_flash_attention(query, *few, 0.1),
                a._scaled_dot_product_cudnn_attention(query, *few, None, True, 0.0),
                a._scaled_dot_product_cudnn_attention(
                    query, *many, bias.detach()[:1, :1], True, 0.5
                ),
                a._scaled_dot_product_efficient_attention(query, *many, None, True, 0.5),
                a._scaled_dot_product_efficient_attention(query, *many, bias, True),
                a._scaled_dot_product_efficient_attention(query, *many, bias.detach(), True),
            )
            for result in results:
                result[0].sum().backward()
        gates, biases = (meta(2, 12), meta(2, 12)), (meta(12), meta(12))
        hy, cy, _ = a._thnn_fused_lstm_cell(*gates, meta(2, 3), *biases)
        (hy + cy).sum().backward()
        kept, _ = a._fused_dropout(meta(3, 4), 0.5)
        kept.sum().backward()
        a._masked_scale(meta(3, 4), meta(3, 4).detach().to(torch.uint8), 2.0)
    yield from emitted.calls
    # without a kernel for tensors without data, or with one that trips over missing biases
    gates = torch.ones(2, 12), torch.ones(2, 12)
    yield as_op(a._thnn_fused_lstm_cell.default, (*gates, torch.ones(2, 3)), {})
    for shape in ((2, 3), (1, 5)):
        batch, hidden = shape
        gates, hx = torch.ones(batch, 3 * hidden), torch.ones(shape)
        biases = torch.ones(3 * hidden), torch.ones(3 * hidden)
        cell, backward = a._thnn_fused_gru_cell, a._thnn_fused_gru_cell_backward
        yield as_op(cell.default, (gates, gates, hx), {})
        yield as_op(cell.default, (gates, gates, hx, *biases), {})
        for has_bias in (False, True):
            args = torch.ones(shape), torch.ones(batch, 5 * hidden), has_bias
            yield as_op(backward.default, args, {})
    yield from recurrent_layers()
    yield from norms()
    yield from samplers()


def norms():
    """By cuDNN, trained and evaluated, with and without statistics; and root mean squares."""
    a = torch.ops.aten
    for shape, kind, statistics in (
        ((2, 3, 4, 4), torch.float32, True), ((4, 5, 3), torch.float16, False),
        ((1, 2, 2, 3, 2), torch.float64, True),
    ):  # fmt: skip
        x = torch.ones(shape, dtype=kind)
        wide = torch.float64 if kind is torch.float64 else torch.float32
        channels = torch.ones(shape[1], dtype=wide)
        known = (channels, channels) if statistics else (None, None)
        yield as_op(
            a.cudnn_batch_norm.default, (x, channels, channels, *known, True, 0.1, 1e-5), {}
        )
        yield as_op(
            a.cudnn_batch_norm.default,
            (x, channels, channels, channels, channels, False, 0.1, 1e-5),
            {},
        )
        reserve = torch.ones(16, dtype=torch.uint8)
        saved = (channels, channels, 1e-5, reserve)
        yield as_op(a.cudnn_batch_norm_backward.default, (x, x, channels, *known, *saved), {})
    for shape, normal in (((2, 3, 4), [4]), ((5, 6), [5, 6])):
        x = torch.ones(shape)
        rstd = torch.ones(*shape[: -len(normal)], *[1] * len(normal))
        for weight in (None, torch.ones(normal)):
            args = (x, x, normal, rstd, weight, [True, weight is not None])
            yield as_op(a._fused_rms_norm_backward.default, args, {})


def samplers():
    """Pictures sampled by cuDNN, and their gradients."""
    a = torch.ops.aten
    for shape, size, kind in (
        ((2, 3, 4, 5), (6, 2), torch.float32),
        ((1, 1, 2, 3), (1, 4), torch.float16),
    ):
        x, grad = torch.ones(shape, dtype=kind), torch.ones((*shape[:2], *size), dtype=kind)
        grid = torch.ones((shape[0], *size, 2), dtype=kind)
        yield as_op(a.cudnn_grid_sampler.default, (x, grid), {})
        yield as_op(a.cudnn_grid_sampler_backward.default, (x, grid, grad), {})


def recurrent_layers():
    """All layers by cuDNN in one call: packed and not, both directions, with projections."""
    a = torch.ops.aten
    for mode, projection, ways, first, sizes in (
        (2, 0, 1, False, []), (2, 2, 2, True, []), (3, 0, 2, False, [3, 2, 2]), (0, 0, 1, True, []),
    ):  # fmt: skip
        hidden, width, layers = 4, 5, 2
        shown, rows = projection or hidden, (1, 1, 4, 3)[mode] * hidden
        weights = []
        for place in range(layers * ways):
            features = width if place < ways else shown * ways
            weights += [torch.ones(rows, features), torch.ones(rows, shown)]
            weights += [torch.ones(rows), torch.ones(rows)]
            weights += [torch.ones(shown, hidden)] if projection else []
        each = len(weights) // (layers * ways)
        buffer = torch.ones(sum(weight.numel() for weight in weights))
        leading = (sum(sizes),) if sizes else (2, 3)
        batch = sizes[0] if sizes else (2 if first else 3)
        hx = torch.ones(layers * ways, batch, shown)
        cx = torch.ones(layers * ways, batch, hidden) if mode == 2 else None
        data, made = torch.ones(*leading, width), torch.ones(*leading, shown * ways)
        state, reserve = torch.ones(16, dtype=torch.uint8), torch.ones(64, dtype=torch.uint8)
        numbers = (mode, hidden, projection, layers, first, 0.5, True, ways == 2, sizes, state)
        given = (data, weights, each, buffer, hx, cx)
        yield as_op(a._cudnn_rnn.default, (*given, *numbers), {})
        gradients = (made, made, hx, cx)
        mask = [True, True, cx is not None, True]
        args = (*given, *gradients, *numbers, reserve, mask)
        yield as_op(a._cudnn_rnn_backward.default, args, {})
    state = (0.5, True, 7)
    yield as_op(a._cudnn_init_dropout_state.default, state, {"dtype": torch.uint8})


def run_sample(op, sample):
    """An operator's sample, forward and backward."""
    result = op(sample.input, *sample.args, **sample.kwargs)
    outs = [
        leaf for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]  # fmt: skip
    if outs:
        torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])


def from_databases():
    """Forward and backward of samples of every operator."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        try:
            samples = list(
                op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
            )
        except Exception:  # the database's own affair
            continue
        for sample in samples[:12]:
            yield lambda op=op, sample=sample: run_sample(op, sample)


def over_lists():
    """Every foreach op with every kind of argument that one of them takes; many do not fit."""
    x, y, one = torch.linspace(0.1, 0.9, 12).view(3, 4), torch.ones(3, 4), torch.ones(1)
    for name in sorted(n.partition(".")[0] for n in torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::_foreach_"):
            op = getattr(torch.ops.aten, name[6:])
            for args in ((), (2.0,), ([1.0, 2.0],), ([y.clone(), one.clone()],)):
                yield lambda op=op, args=args: op([x.clone(), one.clone()], *args)


def by_hand():
    """Calls that neither training steps nor the databases make on the CPU."""
    a = torch.ops.aten
    x, y, one = torch.linspace(0.1, 0.9, 12).view(3, 4), torch.ones(3, 4), torch.ones(1)
    image, volume = torch.ones(2, 3, 6, 8), torch.ones(2, 3, 4, 5, 6)
    indices = torch.tensor([0, 2, 1, 1])
    channels = [torch.ones(3) for _ in range(4)]
    yield lambda: a._foreach_norm([x, one], 2)
    yield lambda: a._foreach_clamp_max([x, one], 0.5)
    yield lambda: a._amp_foreach_non_finite_check_and_unscale_([x.clone(), y], torch.zeros(1), one)
    yield lambda: a._amp_update_scale_(
        one.clone(), torch.zeros(1, dtype=torch.int32), torch.zeros(1), 2.0, 0.5, 10
    )
    yield lambda: a._addmm_activation(torch.ones(5), x, torch.ones(4, 5))
    yield lambda: a._aminmax(x)
    for kind in ("Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"):
        yield lambda kind=kind: getattr(a, f"_cast_{kind}")(x)
    yield lambda: a._conj(x.to(torch.complex64))
    yield lambda: a._conj_copy(x.to(torch.complex64))
    yield lambda: a._neg_view(x)
    yield lambda: a._neg_view_copy(x)
    yield lambda: a._reshape_alias(x, [4, 3], [3, 1])
    for padding in ("same", "valid"):
        yield lambda padding=padding: a._convolution_mode(
            image, torch.ones(4, 3, 3, 3), torch.ones(4), [1, 1], padding, [2, 1], 1
        )
    if hasattr(a, "_foreach_mm"):  # torch 2.11 has none
        yield lambda: a._foreach_mm([x, torch.ones(2, 3)], [torch.ones(4, 5), torch.ones(3, 1)])
    for mode, value in ((0, None), (1, None), (2, None), (3, 2.0)):
        yield lambda mode=mode, value=value: a._pad_enum(image, [1, 2, 2, 1], mode, value)
    for rate in (0.1, torch.tensor(0.1)):
        for amsgrad in (False, True):
            lists = [[torch.ones(3, 4), torch.ones(5)] for _ in range(5)]
            yield lambda rate=rate, amsgrad=amsgrad, lists=lists: a._fused_adamw_(
                *lists[:4], lists[4] if amsgrad else [], [one.clone(), one.clone()], lr=rate,
                beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=amsgrad, maximize=False,
                grad_scale=one, found_inf=torch.zeros(1),
            )  # fmt: skip
    yield lambda: a._batch_norm_with_update_functional(image, *channels, 0.1, 1e-5)
    for training in (False, True):
        yield lambda training=training: a._native_batch_norm_legit_functional(
            image, *channels, training, 0.1, 1e-5
        )
    yield lambda: a._convolution(
        image, torch.ones(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False,
        False, True, True,
    )  # fmt: skip
    yield lambda: a._dim_arange(x, 1)
    yield lambda: a._standard_gamma(x)
    yield lambda: a._standard_gamma_grad(x, y)
    yield lambda: a._sample_dirichlet(x)
    yield lambda: a._dirichlet_grad(x, y, y * 3)
    yield lambda: a._embedding_bag_forward_only(x, indices[:3], torch.tensor([0, 2]))
    for mode in (0, 1, 2):
        largest = torch.zeros((2, 4) if mode == 2 else 2, dtype=torch.int64)
        yield lambda mode=mode, largest=largest: a._embedding_bag_dense_backward(
            torch.ones(2, 4), indices, torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2]),
            largest, 3, False, mode, None,
        )  # fmt: skip
    yield lambda: a._euclidean_dist(x, y)
    yield lambda: a._fused_rms_norm(x, [4], torch.ones(4), 1e-5)
    yield lambda: a._index_put_impl_(x.clone(), [indices[:2]], torch.ones(2, 4))
    yield lambda: a._int_mm(torch.ones(32, 8).to(torch.int8), torch.ones(8, 16).to(torch.int8))
    yield lambda: a._is_all_true(x > 0)
    yield lambda: a._is_any_true(x > 0)
    yield lambda: a._linalg_eigvals(torch.eye(4))
    for shape in ((2, 2), (1, 3, 3), (2, 3, 3)):
        matrix = torch.eye(shape[-1]).expand(shape)
        factors, pivots = torch.linalg.ldl_factor(matrix)
        yield lambda f=factors, p=pivots, m=matrix: a.linalg_ldl_solve(f, p, m)
    yield lambda: a._logcumsumexp(x, 1)
    yield lambda: a._lu_with_info(torch.eye(4))
    yield lambda: a._native_batch_norm_legit_no_training(image, *channels, 0.1, 1e-5)
    yield lambda: a._batch_norm_no_update(image, *channels, 0.1, 1e-5)
    yield lambda: a._pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([3, 2]), False)
    yield lambda: a._pack_padded_sequence_backward(
        torch.ones(5, 4), [3, 2, 4], torch.tensor([2, 2, 1]), False
    )
    yield lambda: a._pad_circular(image, [1, 1, 1, 1])
    yield lambda: a._reshape_copy(x, [4, 3])
    yield lambda: a._stack([x, y], 0)
    yield lambda: a._unsafe_index(x, [indices[:3]])
    yield lambda: a._unsafe_index_put(x, [indices[:2]], torch.ones(2, 4))
    yield lambda: a._weight_norm(x, torch.ones(3, 1), 0)
    for dim, shape in ((0, (3, 1)), (1, (1, 4))):
        yield lambda dim=dim, shape=shape: a._weight_norm_interface(x, torch.ones(shape), dim)
        yield lambda dim=dim, shape=shape: a._weight_norm_interface_backward(
            y, x, torch.ones(shape), torch.ones(shape), dim
        )
    for kind in ("bilinear", "bicubic", "lanczos"):
        forward = getattr(a, f"_upsample_{kind}2d_aa", None)
        backward = getattr(a, f"_upsample_{kind}2d_aa_backward", None)
        for out in ((3, 4), (12, 9)):
            if forward is not None:
                yield lambda op=forward, out=out: op(image, out, False)
            if backward is not None:
                grad = torch.ones(2, 3, *out)
                yield lambda op=backward, out=out, grad=grad: op(grad, out, [2, 3, 6, 8], False)
    yield lambda: a._upsample_nearest_exact3d(volume, [8, 10, 12])
    yield lambda: a._upsample_nearest_exact3d_backward(
        torch.ones(2, 3, 8, 10, 12), [8, 10, 12], [2, 3, 4, 5, 6]
    )
    yield lambda: a.adaptive_avg_pool3d_backward(
        torch.ones(2, 3, 2, 2, 2), volume, grad_input=torch.empty_like(volume)
    )
    yield lambda: a.cumprod_backward(y, x, 1, x.cumprod(1))
    yield lambda: a.cummaxmin_backward(y, x, x.cummax(1).indices, 1)
    yield lambda: a.gather_backward(y, x, 1, torch.zeros(3, 4, dtype=torch.int64), False)
    yield lambda: a.index_select_backward(torch.ones(2, 4), [3, 4], 0, indices[:2])
    yield lambda: a.infinitely_differentiable_gelu_backward(y, x)
    yield lambda: a.masked_select_backward(torch.ones(12), x, x > 0)
    yield lambda: a.matrix_exp_backward(torch.eye(3), torch.ones(3, 3))
    yield lambda: a.native_channel_shuffle(torch.ones(2, 6, 4, 4), 3)
    yield lambda: a.native_dropout(x, 0.5, True)
    yield lambda: a.trace_backward(torch.tensor(1.0), [3, 4])
    yield lambda: a.value_selecting_reduction_backward(
        torch.ones(3), 1, torch.zeros(3, dtype=torch.int64), [3, 4], False
    )
    yield lambda: a._scaled_dot_product_attention_math(*(torch.ones(2, 2, 3, 4) for _ in "qkv"))
