"""Cells, softmax, products, norms, images and losses on the host, beside what they mean."""

import pytest
import torch
import torch.nn.functional as F

from jgpu.broker.executor.devices.onhost.kernels import KERNELS
from jgpu.broker.executor.devices.onhost.kernels.tables import named

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
#: a rounding of a result of float32 to the type, and of what went in
ROUNDED = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def run(name, *args, **kwargs):
    (op,) = named(name)
    return KERNELS[op](*args, **kwargs)


def randn(*shape, dtype=torch.float64, seed=7):
    generator = torch.Generator().manual_seed(seed + len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def close(found, wanted, dtype=torch.float64):
    tolerance = ROUNDED[dtype]
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def leaves(*tensors):
    return [None if each is None else each.detach().double().requires_grad_() for each in tensors]


# -- cells ---------------------------------------------------------------------------------------


def lstm_cell(of_input, of_hidden, cx, bias, hidden_bias):
    gates = of_input + of_hidden + (0 if bias is None else bias + hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    return o.sigmoid() * cy.tanh(), cy


def gru_cell(of_input, of_hidden, hx, bias, hidden_bias):
    of_input = of_input if bias is None else of_input + bias
    of_hidden = of_hidden if bias is None else of_hidden + hidden_bias
    (r, z, n), (hr, hz, hn) = of_input.chunk(3, 1), of_hidden.chunk(3, 1)
    kept = (z + hz).sigmoid()
    return (1 - kept) * (n + (r + hr).sigmoid() * hn).tanh() + kept * hx


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("biased", [True, False])
def test_an_lstm_cell_and_its_gradients(dtype, biased):
    given = [randn(3, 20, dtype=dtype), randn(3, 20, dtype=dtype, seed=9), randn(3, 5, dtype=dtype)]
    given += [randn(20, dtype=dtype), randn(20, dtype=dtype, seed=8)] if biased else [None, None]
    tracked = leaves(*given)
    wanted = lstm_cell(*tracked)
    hy, cy, workspace = run("_thnn_fused_lstm_cell", *given)
    assert {hy.dtype, cy.dtype, workspace.dtype} == {dtype}
    assert workspace.shape == (3, 20)
    close(hy, wanted[0], dtype)
    close(cy, wanted[1], dtype)
    grads = randn(3, 5, dtype=dtype, seed=3), randn(3, 5, dtype=dtype, seed=4)
    found = run("_thnn_fused_lstm_cell_backward_impl", *grads, given[2], cy, workspace, biased)
    inputs = [each for each in (tracked[0], tracked[2], tracked[3]) if each is not None]
    expected = torch.autograd.grad(wanted, inputs, [each.double() for each in grads])
    assert (found[2] is not None) == biased
    for one, other in zip(found, expected, strict=False):
        close(one, other, dtype)
    twice = run("_thnn_fused_lstm_cell_backward", *grads, given[2], cy, workspace, biased)
    assert torch.equal(twice[0], found[0])
    assert torch.equal(twice[1], found[0])
    assert torch.equal(twice[2], found[1])


@pytest.mark.parametrize("missing", [0, 1])
def test_an_lstm_cell_whose_states_are_not_all_used(missing):
    given = [randn(3, 20), randn(3, 20, seed=9), randn(3, 5), None, None]
    _, cy, workspace = run("_thnn_fused_lstm_cell", *given)
    grads = [randn(3, 5, seed=3), randn(3, 5, seed=4)]
    full = [torch.zeros(3, 5, dtype=torch.float64) if k == missing else g
            for k, g in enumerate(grads)]  # fmt: skip
    some = [None if k == missing else g for k, g in enumerate(grads)]
    name = "_thnn_fused_lstm_cell_backward_impl"
    few = run(name, *some, given[2], cy, workspace, False)
    all_ = run(name, *full, given[2], cy, workspace, False)
    assert all(torch.equal(a, b) for a, b in zip(few[:2], all_[:2], strict=True))
    assert run(name, None, None, given[2], cy, workspace, True) == (None, None, None)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("biased", [True, False])
def test_a_gru_cell_and_its_gradients(dtype, biased):
    given = [randn(3, 15, dtype=dtype), randn(3, 15, dtype=dtype, seed=9), randn(3, 5, dtype=dtype)]
    given += [randn(15, dtype=dtype), randn(15, dtype=dtype, seed=8)] if biased else [None, None]
    tracked = leaves(*given)
    wanted = gru_cell(*tracked)
    hy, workspace = run("_thnn_fused_gru_cell", *given)
    assert (hy.dtype, workspace.dtype, workspace.shape) == (dtype, dtype, (3, 25))
    close(hy, wanted, dtype)
    grad = randn(3, 5, dtype=dtype, seed=3)
    found = run("_thnn_fused_gru_cell_backward", grad, workspace, biased)
    inputs = [each for each in tracked if each is not None]
    assert (found[3] is not None) == (found[4] is not None) == biased
    for one, other in zip(found, torch.autograd.grad(wanted, inputs, grad.double()), strict=False):
        close(one, other, dtype)


# -- halves in, floats out -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_a_softmax_of_halves_to_floats_is_rounded_nowhere(name, dtype):
    given = randn(4, 9, dtype=dtype)
    made = run(name, given, -1, True)
    exact = (F.softmax if name == "_softmax" else F.log_softmax)(given.double(), -1)
    assert made.dtype is torch.float32
    torch.testing.assert_close(made.double(), exact, rtol=1e-6, atol=1e-6)
    grad = randn(4, 9, dtype=torch.float32)
    found = run(f"{name}_backward_data", grad, made, -1, dtype)
    assert found.dtype is dtype
    own = getattr(aten, f"{name}_backward_data").default(grad, made, -1, torch.float32)
    assert torch.equal(found, own.to(dtype))
    out = torch.empty(0, dtype=torch.float64)
    assert torch.equal(run(f"{name}.out", given, -1, True, out=out), made)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_any_other_softmax_is_the_hosts(name):
    given = randn(4, 9, dtype=torch.float32)
    assert torch.equal(run(name, given, 0, False), getattr(aten, name).default(given, 0, False))
    with pytest.raises(RuntimeError, match="Half and BFloat16"):
        run(name, given, 0, True)


@pytest.mark.parametrize("dtype", HALVES)
def test_products_of_halves_with_a_result_of_floats(dtype):
    left, right, added = randn(4, 6, dtype=dtype), randn(6, 5, dtype=dtype), randn(4, 5)
    made = run("mm.dtype", left, right, torch.float32)
    assert made.dtype is torch.float32
    torch.testing.assert_close(made.double(), left.double() @ right.double(), rtol=1e-6, atol=1e-6)
    batches = left.expand(3, 4, 6), right.expand(3, 6, 5)
    assert torch.equal(run("bmm.dtype", *batches, torch.float32)[1], made)
    sums = run("addmm.dtype", added.float(), left, right, torch.float32, beta=2, alpha=0.5)
    torch.testing.assert_close(sums, 2 * added.float() + made / 2)
    batched = run("baddbmm.dtype", added.float(), *batches, torch.float32, beta=2, alpha=0.5)
    torch.testing.assert_close(batched[2], sums)
    out = torch.empty(0, dtype=torch.float64)
    assert torch.equal(run("mm.dtype_out", left, right, torch.float32, out=out), out)
    with pytest.raises(RuntimeError, match="out_dtype"):
        run("mm.dtype", left, right, torch.float64)


# -- norms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 5, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_cudnns_batch_norm_and_its_gradients(shape, dtype):
    param = torch.float32 if dtype is torch.float16 else dtype
    given, grad = randn(*shape, dtype=dtype), randn(*shape, dtype=dtype, seed=2)
    weight, bias = randn(3, dtype=param), randn(3, dtype=param, seed=1)
    running = [torch.zeros(3, dtype=param), torch.ones(3, dtype=param)]
    native = [each.double().clone() for each in running]
    tracked = leaves(given, weight, bias)
    wanted = F.batch_norm(tracked[0], *native, *tracked[1:], True, 0.3, 1e-5)
    out, mean, inverse, reserve = run(
        "cudnn_batch_norm", given, weight, bias, *running, True, 0.3, 1e-5
    )
    close(out, wanted, dtype)
    assert (out.dtype, mean.dtype, inverse.dtype, reserve.dtype) == (
        dtype,
        param,
        param,
        torch.uint8,
    )
    for one, other in zip(running, native, strict=True):
        close(one, other, dtype)
    found = run(
        "cudnn_batch_norm_backward", given, grad, weight, *running, mean, inverse, 1e-5, reserve
    )
    for one, other in zip(found, torch.autograd.grad(wanted, tracked, grad.double()), strict=True):
        close(one, other, dtype)
    out, mean, _, _ = run("cudnn_batch_norm", given, weight, bias, *running, False, 0.3, 1e-5)
    close(out, F.batch_norm(tracked[0], *native, *tracked[1:], False, 0.3, 1e-5), dtype)
    assert mean.shape == (0,)


def test_cudnns_batch_norm_keeps_the_layout():
    given = randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    weight, bias = randn(3), randn(3, seed=1)
    made = run("cudnn_batch_norm", given, weight, bias, None, None, True, 0.1, 1e-5)
    assert made[0].is_contiguous(memory_format=torch.channels_last)


def test_norms_of_several_processes_are_those_of_all_samples_together():
    """Two parts of unequal size, as `SyncBatchNorm` goes about it."""
    whole, grad = randn(10, 3, 4), randn(10, 3, 4, seed=2)
    weight, bias = randn(3), randn(3, seed=1)
    running = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    native = [each.clone() for each in running]
    tracked = leaves(whole, weight, bias)
    wanted = F.batch_norm(tracked[0], *native, *tracked[1:], True, 0.3, 1e-5)
    parts, counts = whole.split([7, 3]), torch.tensor([28.0, 12.0], dtype=torch.float64)
    stats = [run("batch_norm_stats", part, 1e-5) for part in parts]
    means, inverses = (torch.stack(each) for each in zip(*stats, strict=True))
    mean, inverse = run(
        "batch_norm_gather_stats_with_counts", parts[0], means, inverses, *running, 0.3, 1e-5,
        counts,
    )  # fmt: skip
    made = [run("batch_norm_elemt", part, weight, bias, mean, inverse, 1e-5) for part in parts]
    close(torch.cat(made), wanted)
    for one, other in zip(running, native, strict=True):
        close(one, other)
    grads = grad.split([7, 3])
    sums = [run("batch_norm_backward_reduce", g, part, mean, inverse, weight, True, True, True)
            for g, part in zip(grads, parts, strict=True)]  # fmt: skip
    sum_, moved, of_weight, of_bias = (sum(each) for each in zip(*sums, strict=True))
    found = [run("batch_norm_backward_elemt", g, part, mean, inverse, weight, sum_, moved, counts)
             for g, part in zip(grads, parts, strict=True)]  # fmt: skip
    expected = torch.autograd.grad(wanted, tracked, grad)
    for one, other in zip((torch.cat(found), of_weight, of_bias), expected, strict=True):
        close(one, other)


def test_norms_of_processes_with_as_many_samples_each():
    parts = randn(10, 3, 4).split(5)
    stats = [run("batch_norm_stats", part, 1e-5) for part in parts]
    means, inverses = (torch.stack(each) for each in zip(*stats, strict=True))
    mean, inverse = run(
        "batch_norm_gather_stats", parts[0], means, inverses, None, None, 0.1, 1e-5, 20
    )
    outs = [torch.empty(0, dtype=torch.float64) for _ in range(2)]
    run(
        "batch_norm_gather_stats.out", parts[0], means, inverses, None, None, 0.1, 1e-5, 20,
        out0=outs[0], out1=outs[1],
    )  # fmt: skip
    assert torch.equal(outs[0], mean)
    assert torch.equal(outs[1], inverse)
    one, two = run("batch_norm_stats", torch.cat(parts), 1e-5)
    close(mean, one)
    close(inverse, two)


@pytest.mark.parametrize("dtype", HALVES)
def test_statistics_of_halves_are_floats(dtype):
    given, weight = randn(4, 3, 5, dtype=dtype), randn(5, dtype=dtype)
    out, mean, inverse = run("native_layer_norm", given, [5], weight, None, 1e-5)
    assert (out.dtype, mean.dtype, inverse.dtype) == (dtype, torch.float32, torch.float32)
    tracked = leaves(given, weight)
    wanted = F.layer_norm(tracked[0], [5], tracked[1])
    close(out, wanted, dtype)
    grad = randn(4, 3, 5, dtype=dtype, seed=2)
    found = run(
        "native_layer_norm_backward", grad, given, [5], mean, inverse, weight, None,
        [True, True, False],
    )  # fmt: skip
    assert (found[0].dtype, found[1].dtype, found[2]) == (dtype, dtype, None)
    for one, other in zip(found, torch.autograd.grad(wanted, tracked, grad.double()), strict=False):
        close(one, other, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_batch_norm_of_halves_writes_its_running_statistics(name, dtype):
    given, weight, bias = randn(6, 3, 5, dtype=dtype), randn(3, dtype=dtype), None
    running = [torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)]
    native = [each.double().clone() for each in running]
    out, mean, inverse = run(name, given, weight, bias, *running, True, 0.3, 1e-5)
    wanted = F.batch_norm(given.double(), *native, weight.double(), None, True, 0.3, 1e-5)
    assert (out.dtype, mean.dtype, inverse.dtype) == (dtype, torch.float32, torch.float32)
    close(out, wanted, dtype)
    for one, other in zip(running, native, strict=True):
        assert one.dtype is dtype
        close(one, other, dtype)
    found = run(
        "native_batch_norm_backward", given, given, weight, *running, mean, inverse, True, 1e-5,
        [True, True, True],
    )  # fmt: skip
    assert [each.dtype for each in found] == [dtype] * 3


def test_statistics_of_floats_are_the_hosts_own():
    given, weight = randn(4, 3, 5, dtype=torch.float32), randn(5, dtype=torch.float32)
    made = run("native_layer_norm", given, [5], weight, None, 1e-5)
    own = aten.native_layer_norm.default(given, [5], weight, None, 1e-5)
    assert all(map(torch.equal, made, own))


# -- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_convolutions(dtype):
    given, weight = randn(2, 4, 7, 6, dtype=dtype), randn(6, 2, 3, 3, dtype=dtype)
    bias, switches = randn(6, dtype=dtype), (False, False, True)
    wanted = F.conv2d(given.double(), weight.double(), None, (2, 1), (1, 0), (1, 2), 2)
    sizes = [2, 1], [1, 0], [1, 2]
    made = run("cudnn_convolution", given, weight, sizes[1], sizes[0], sizes[2], 2, *switches)
    assert made.dtype is dtype
    close(made, wanted, dtype)
    with_bias = wanted + bias.double().view(1, 6, 1, 1)
    close(run("cudnn_convolution_relu", given, weight, bias, *sizes, 2), with_bias.relu(), dtype)
    added = randn(*wanted.shape, dtype=dtype, seed=3)
    made = run("cudnn_convolution_add_relu", given, weight, added, 0.5, bias, *sizes, 2)
    close(made, (with_bias + added.double() / 2).relu(), dtype)
    turned = randn(4, 3, 3, 3, dtype=dtype)
    made = run(
        "cudnn_convolution_transpose", given, turned, [1, 0], [1, 0], [2, 1], [1, 1], 2, *switches
    )
    wanted = F.conv_transpose2d(given.double(), turned.double(), None, (2, 1), (1, 0), (1, 0), 2)
    close(made, wanted, dtype)


def test_samplers_align_corners():
    theta = torch.tensor([[[1.0, 0.2, 0], [0, 0.9, 0.1]]], dtype=torch.float64).requires_grad_()
    given = randn(1, 2, 5, 6).requires_grad_()
    grid = F.affine_grid(theta, [1, 2, 4, 3], align_corners=True)
    wanted = F.grid_sample(given, grid, align_corners=True)
    found = run("cudnn_affine_grid_generator", theta.detach(), 1, 2, 4, 3)
    close(found, grid)
    close(run("cudnn_grid_sampler", given.detach(), found), wanted)
    out = torch.empty(0, dtype=torch.float64)
    assert run("cudnn_grid_sampler.out", given.detach(), found, out) is out
    close(out, wanted)
    grad = randn(*wanted.shape)
    of_given, of_grid = run("cudnn_grid_sampler_backward", given.detach(), found, grad)
    of_theta = run("cudnn_affine_grid_generator_backward", of_grid, 1, 2, 4, 3)
    for one, other in zip((of_given, of_theta), torch.autograd.grad(wanted, [given, theta], grad),
                          strict=True):  # fmt: skip
        close(one, other)


# -- unaligned sequences -------------------------------------------------------------------------


def test_cudnns_loss_of_unaligned_sequences_comes_with_its_gradient():
    activations = randn(7, 2, 5, dtype=torch.float32).requires_grad_()
    targets, lengths, sizes = torch.tensor([1, 2, 3, 4, 4], dtype=torch.int32), [7, 7], [3, 2]
    log_probs = activations.log_softmax(-1)
    wanted = F.ctc_loss(log_probs.double(), targets, lengths, sizes, reduction="none")
    loss, gradient = run(
        "_cudnn_ctc_loss", log_probs.detach(), targets, lengths, sizes, 0, True, False
    )
    close(loss, wanted, torch.float32)
    (expected,) = torch.autograd.grad(wanted.sum(), activations)
    close(gradient, expected, torch.float32)


def test_when_torch_takes_cudnns_loss():
    log_probs = randn(7, 2, 5, dtype=torch.float32)
    targets = torch.tensor([1, 2, 3, 4, 4], dtype=torch.int32)

    def takes(given=log_probs, wanted=targets, lengths=(7, 7), sizes=(3, 2), blank=0):
        return run("_use_cudnn_ctc_loss", given, wanted, list(lengths), list(sizes), blank)

    assert takes()
    assert not takes(given=log_probs.double())
    assert not takes(wanted=targets.long())
    assert not takes(lengths=(7, 6))
    assert not takes(blank=1)
    assert not takes(sizes=(8, 2))


# -- types that the CPU's kernels do not take ----------------------------------------------------

LABELS = torch.tensor([0, 2, 1])
#: Calls that take halves on CUDA alone: name, what is half, and the rest.
OF_HALVES = {
    "avg_pool3d": ((1, 2, 4, 4, 4),), "multi_margin_loss": ((3, 4),),
    "multilabel_margin_loss_forward": ((3, 4),),
    "_upsample_bilinear2d_aa": ((1, 2, 8, 8),), "_upsample_bicubic2d_aa": ((1, 2, 8, 8),),
}  # fmt: skip
AFTER = {
    "avg_pool3d": ([2, 2, 2],),
    "multi_margin_loss": (LABELS,),
    "multilabel_margin_loss_forward": (torch.tensor([[0, 2, -1, 0]] * 3), 1),
    "_upsample_bilinear2d_aa": ([4, 4], False, None, None),
    "_upsample_bicubic2d_aa": ([4, 4], False, None, None),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OF_HALVES)
def test_halves_are_computed_in_floats_and_rounded(name, dtype):
    (op,) = named(name)
    (shape,) = OF_HALVES[name]
    given = randn(*shape, dtype=dtype)
    made, wide = run(name, given, *AFTER[name]), op(given.float(), *AFTER[name])
    made, wide = (each if isinstance(each, tuple) else (each,) for each in (made, wide))
    for one, other in zip(made, wide, strict=True):
        assert one.dtype is dtype
        assert torch.equal(one, other.to(dtype))
    floats = run(name, given.float(), *AFTER[name])
    assert torch.equal(floats[0] if isinstance(floats, tuple) else floats, wide[0])


@pytest.mark.parametrize("dtype", HALVES)
def test_backwards_of_halves_too(dtype):
    given, grad = randn(1, 2, 4, 4, 4, dtype=dtype), randn(1, 2, 2, 2, 2, dtype=dtype)
    rest = [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None
    own = aten.avg_pool3d_backward.default(grad.float(), given.float(), *rest).to(dtype)
    assert torch.equal(run("avg_pool3d_backward", grad, given, *rest), own)
    out = torch.empty(0, dtype=dtype)
    run("avg_pool3d_backward.grad_input", grad, given, *rest, grad_input=out)
    assert torch.equal(out, own)
    given = randn(3, 4, dtype=dtype)
    wanted = AFTER["multilabel_margin_loss_forward"]
    _, places = run("multilabel_margin_loss_forward", given, *wanted)
    made = run("multilabel_margin_loss_backward", given[0, 0], given, *wanted, places)
    assert made.dtype is dtype


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_fourier_transforms_of_halves_of_powers_of_two():
    given = randn(4, 8, dtype=torch.float16)
    made = run("_fft_r2c", given, [1], 0, True)
    assert made.dtype is torch.complex32
    own = aten._fft_r2c.default(given.float(), [1], 0, True)
    assert torch.equal(torch.view_as_real(made), torch.view_as_real(own).half())
    back = run("_fft_c2r", made, [1], 2, 8)
    assert back.dtype is torch.float16
    close(back, given, torch.float16)
    assert run("_fft_c2c", made, [0], 0, True).dtype is torch.complex32
    with pytest.raises(RuntimeError, match="powers of two"):
        run("_fft_r2c", randn(4, 6, dtype=torch.float16), [1], 0, True)
    whole = randn(4, 6, dtype=torch.float32)
    assert torch.equal(
        run("_fft_r2c", whole, [1], 0, True), aten._fft_r2c.default(whole, [1], 0, True)
    )


def test_truth_values_and_whole_numbers():
    flags = torch.eye(3, dtype=torch.bool)
    assert torch.equal(run("abs", flags), flags)
    assert torch.equal(run("trace", flags), torch.tensor(3))
    made = run("histc", torch.tensor([0, 1, 1, 3]), 4, 0, 3)
    assert torch.equal(made, torch.tensor([1, 2, 0, 1]))
    assert torch.equal(run("trace", torch.eye(2)), torch.tensor(2.0))


@pytest.mark.parametrize("weighted", [True, False])
def test_a_root_mean_square_norm_and_its_gradients(weighted):
    given = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, dtype=torch.float64, requires_grad=True) if weighted else None
    right = torch.nn.functional.rms_norm(given, [6], weight, 1e-3)
    grad = torch.randn_like(right)
    right.backward(grad)
    forward = KERNELS[torch.ops.aten._fused_rms_norm.default]
    backward = KERNELS[torch.ops.aten._fused_rms_norm_backward.default]
    found, inverse = forward(given, [6], weight, 1e-3)
    of_given, of_weight = backward(grad, given, [6], inverse, weight, [True, weighted])
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(of_given, given.grad)
    if weight is None:
        assert of_weight is None
    else:
        torch.testing.assert_close(of_weight, weight.grad)


def test_a_maximum_of_no_row_moves_nothing_also_in_a_bag_that_is_not_empty():
    grad = torch.randn(2, 3)
    bags = torch.tensor([1, 4, 2]), torch.tensor([0, 0, 1]), torch.tensor([2, 1])
    maxima = torch.tensor([[1, 4, 1], [2, 2, 2]])
    call = KERNELS[aten._embedding_bag_dense_backward.default]
    rest = 5, False, 2, None, -1
    right = aten._embedding_bag_dense_backward(grad, *bags, maxima, *rest)
    assert torch.equal(call(grad, *bags, maxima, *rest), right)
    maxima[0, 1] = -1
    right[4, 1] = 0.0
    assert torch.equal(call(grad, *bags, maxima, *rest), right)
