"""Fused attention on the host: beside its definition by autograd, and what each kernel returns."""

import math

import pytest
import torch

from jgpu.broker.executor.devices.onhost.kernels import DRAWS, KERNELS, Philox
from jgpu.broker.executor.devices.onhost.kernels.attention import masks
from jgpu.broker.executor.devices.onhost.kernels.attention.core import Scores, backward, forward
from jgpu.broker.executor.devices.onhost.kernels.unset import STALE

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention.default
FLASH_BACK = aten._scaled_dot_product_flash_attention_backward.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
EFFICIENT_BACK = aten._scaled_dot_product_efficient_attention_backward.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default
CUDNN_BACK = aten._scaled_dot_product_cudnn_attention_backward.default
CHOICE = KERNELS[aten._fused_sdp_choice.default]
DRAW = Philox(1234, 40)
#: float32 sums in another order than the definition's float64; halves are rounded on their way in
#: and out, and the gradients of a row are sums of some ten such numbers
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensors(dtype, batch=2, heads=4, length=9, keys=7, width=8, values=8, shared=4):
    torch.manual_seed(5)
    shapes = ((heads, length, width), (shared, keys, width), (shared, keys, values))
    return [torch.randn(batch, *shape).to(dtype) for shape in shapes]


def defined(query, key, value, *, bias=None, seen=None, kept=None, dropout=0.0, scale=None):
    """Attention as it is written down, in float64; leaves to differentiate, and the output."""
    leaves = [each.double().requires_grad_() for each in (query, key, value)]
    bias = None if bias is None else bias.double().requires_grad_()
    q, k, v = leaves
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores if bias is None else scores + bias
    scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1)
    weights = weights if kept is None else weights * kept / (1 - dropout)
    return [*leaves, *([] if bias is None else [bias])], weights @ v, scores.logsumexp(-1)


def close(found, wanted, dtype):
    rtol = atol = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), wanted.double(), rtol=rtol, atol=atol)


# -- the formulas --------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [4, 2, 1])
@pytest.mark.parametrize("with_all", [False, True])
def test_forward_and_backward_are_the_definition_to_the_last_bits(shared, with_all):
    query, key, value = (each.double() for each in tensors(torch.float64, shared=shared))
    options = {}
    if with_all:
        options = {
            "bias": torch.randn(2, 4, 9, 7, dtype=torch.float64),
            "seen": masks.seen(9, 7, causal=True),
            "kept": masks.row_kept(DRAW, (2, 4, 9, 7), 0.3),
            "dropout": 0.3,
        }
    leaves, wanted, sums = defined(query, key, value, scale=0.4, **options)
    scores = Scores(0.4, **options)
    out, logs, _ = forward(query, key, value, scores)
    torch.testing.assert_close(out, wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(logs, sums.detach(), rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(out)
    found = backward(grad, (query, key, value), out, logs, scores)
    for one, other in zip(found, torch.autograd.grad(wanted, leaves, grad), strict=False):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_a_query_that_sees_nothing_gets_nothing_and_gives_nothing():
    query, key, value = (each.double() for each in tensors(torch.float64))
    seen = torch.ones(9, 7, dtype=torch.bool)
    seen[3] = False
    scores = Scores(1.0, seen=seen)
    out, sums, _ = forward(query, key, value, scores)
    assert not bool(out[:, :, 3].any())
    assert bool((sums[:, :, 3] == math.inf).all())
    found = backward(torch.ones_like(out), (query, key, value), out, sums, scores)
    assert not bool(found[0][:, :, 3].any())
    assert all(bool(each.isfinite().all()) for each in found)


# -- flash ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize(("causal", "shared"), [(False, 4), (True, 2)])
def test_flash_computes_attention_and_its_gradients(dtype, dropout, causal, shared):
    query, key, value = tensors(dtype, keys=9, shared=shared)
    kept = masks.flash_kept(DRAW, (2, 4, 9, 9), dropout) if dropout else None
    seen = masks.seen(9, 9, causal=causal, last=True)
    leaves, wanted, sums = defined(query, key, value, seen=seen, kept=kept, dropout=dropout)
    made = KERNELS[FLASH](DRAW, query, key, value, dropout, causal)
    close(made[0], wanted, dtype)
    close(made[1], sums, dtype)
    grad = torch.randn(wanted.shape).to(dtype)
    found = KERNELS[FLASH_BACK](
        grad, query, key, value, made[0], made[1], None, None, 9, 9, dropout, causal, *made[6:8]
    )
    for one, other in zip(found, torch.autograd.grad(wanted, leaves, grad.double()), strict=True):
        close(one, other, dtype)


def test_flash_returns_what_cudas_does():
    query, key, value = (each.transpose(1, 2).contiguous().transpose(1, 2)
                         for each in tensors(torch.float16))  # fmt: skip
    made = KERNELS[FLASH](DRAW, query, key, value, 0.5, False)
    out, sums, first_q, first_k, length, keys, state, unused, shown = made
    assert (out.shape, out.stride(), out.dtype) == (query.shape, query.stride(), query.dtype)
    assert (sums.shape, sums.dtype) == ((2, 4, 9), torch.float32)
    assert (first_q, first_k, length, keys) == (None, None, 9, 7)
    assert state.tolist() == [1234, 40]
    assert (state.dtype, unused.dtype, unused.shape) == (torch.uint64, torch.uint64, ())
    assert (shown.shape, shown.dtype) == ((0,), torch.float16)
    assert DRAWS[FLASH](query, key, value, 0.5, False) == 2 * 4 * 32
    assert DRAWS[FLASH](query, key, value) == 0
    meta = FLASH(*(each.to("meta") for each in (query, key, value)), 0.5, False)
    for one, other in zip(made, meta, strict=True):
        if isinstance(one, torch.Tensor):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_what_cuda_leaves_unset_holds_what_a_neighbour_left():
    halves = tensors(torch.float16)
    found = KERNELS[FLASH](DRAW, *halves, 0.25, False, True)
    without = KERNELS[FLASH](DRAW, *halves, 0.0, False, False)
    cudnn = KERNELS[CUDNN](DRAW, *halves, None, True, 0.0, False, False)
    unset = [found[7], found[8][:, :, 9:], found[8][..., 7:], *without[6:8], *cudnn[6:8]]
    assert {byte for each in unset for byte in each.reshape(-1).view(torch.uint8).tolist()} == {
        STALE
    }


def test_flash_shows_its_weights_with_those_dropped_below_nothing():
    query, key, value = tensors(torch.float16)
    made = KERNELS[FLASH](DRAW, query, key, value, 0.25, False, True)
    shown = made[8]
    assert shown.shape == (2, 4, 128, 128)
    kept = masks.flash_kept(DRAW, (2, 4, 9, 7), 0.25)
    assert torch.equal(shown[:, :, :9, :7] > 0, kept)
    sums = shown[:, :, :9, :7].abs().double().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=2e-3, atol=2e-3)


def test_flashs_mask_keeps_its_part_in_every_tile():
    kept = masks.flash_kept(DRAW, (2, 3, 100, 90), 0.25)
    # 192 of the 256 bytes are kept: 191 is three quarters of 255, rounded down
    assert abs(float(kept.double().mean()) - 0.75) < 5 * math.sqrt(0.1875 / kept.numel())
    assert not torch.equal(kept[0, 0], kept[0, 1])
    assert not torch.equal(kept[0, 0, :8, :16], kept[0, 0, 8:16, :16])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q, k, v: (q.float(), k.float(), v.float()), "only support fp16 and bf16"),
        (lambda q, k, v: (q[..., :6], k[..., :6], v[..., :6]), "multiple of 8"),
        (lambda q, k, v: (q.mT.contiguous().mT, k, v), "contiguous last dimension"),
    ],
)
def test_flash_refuses_what_its_kernel_refuses(change, words):
    with pytest.raises(RuntimeError, match=words):
        KERNELS[FLASH](DRAW, *change(*tensors(torch.float16)), 0.0, False)


# -- memory-efficient ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("causal", "biased"), [(False, False), (True, False), (False, True)])
def test_efficient_attention_and_its_gradients(dtype, dropout, causal, biased):
    query, key, value = tensors(dtype, values=12)
    bias = torch.randn(2, 4, 9, 7).to(dtype) if biased else None
    kept = masks.row_kept(DRAW, (2, 4, 9, 7), dropout) if dropout else None
    leaves, wanted, sums = defined(
        query, key, value, bias=bias, seen=masks.seen(9, 7, causal=causal), kept=kept,
        dropout=dropout,
    )  # fmt: skip
    made = KERNELS[EFFICIENT](DRAW, query, key, value, bias, True, dropout, causal)
    close(made[0], wanted, dtype)
    close(made[1][:, :, :9], sums, dtype)
    grad = torch.randn(wanted.shape).to(dtype)
    found = KERNELS[EFFICIENT_BACK](
        grad, query, key, value, bias, *made, dropout, [True, True, True, biased], causal
    )
    gradients = torch.autograd.grad(wanted, leaves, grad.double())
    assert (found[3] is not None) == biased
    for one, other in zip(found, gradients, strict=False):
        close(one, other, dtype)


def test_efficient_returns_what_cudas_does():
    query, key, value = tensors(torch.float32)
    bias = torch.randn(2, 4, 9, 7)
    made = KERNELS[EFFICIENT](DRAW, query, key, value, bias, True, 0.5, False)
    out, sums, seed, offset = made
    assert out.transpose(1, 2).is_contiguous()
    assert sums.shape == (2, 4, 32)
    assert bool((sums[:, :, 9:] == math.inf).all())
    assert (seed.dtype, int(seed), int(offset)) == (torch.int64, 1234, 40)
    assert DRAWS[EFFICIENT](query, key, value, bias, True, 0.5, False) == 2 * 4 * 9 * 7
    assert DRAWS[EFFICIENT](query, key, value, bias, True) == 0
    without = KERNELS[EFFICIENT](DRAW, query, key, value, bias, False, 0.0, False)
    assert without[1].shape == (2, 4, 0)
    found = KERNELS[EFFICIENT_BACK](
        out.contiguous(), query, key, value, bias, *made, 0.5, [True] * 4, False
    )
    assert all(each.transpose(1, 2).is_contiguous() for each in found[:3])
    assert found[3].stride() == (4 * 9 * 16, 9 * 16, 16, 1)


def test_a_mask_is_filled_with_the_numbers_that_efficient_attention_compares():
    fill = KERNELS[aten._fill_mem_eff_dropout_mask_.default]
    mask = fill(torch.empty(2, 4, 9, 7), 0.3, 1234, 40)
    assert torch.equal(mask > 0.3, masks.row_kept(DRAW, (2, 4, 9, 7), 0.3))
    moved = fill(torch.empty(1, 1, 5, 7), 0.3, 1234, 43)
    assert torch.equal(moved.flatten(), mask.flatten()[3:38])


# -- cuDNN ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize(("causal", "biased"), [(True, False), (False, True)])
def test_cudnns_attention_and_its_gradients(dropout, causal, biased):
    dtype = torch.float16
    query, key, value = tensors(dtype, shared=2, values=16)
    bias = torch.randn(1, 1, 9, 7).to(dtype) if biased else None
    kept = masks.row_kept(DRAW, (2, 4, 9, 7), dropout) if dropout else None
    leaves, wanted, sums = defined(
        query, key, value, bias=bias, seen=masks.seen(9, 7, causal=causal), kept=kept,
        dropout=dropout,
    )  # fmt: skip
    made = KERNELS[CUDNN](DRAW, query, key, value, bias, True, dropout, causal)
    close(made[0], wanted, dtype)
    close(made[1][..., 0], sums, dtype)
    assert (made[2], made[3], made[4], made[5], made[8]) == (None, None, 9, 7, None)
    grad = torch.randn(wanted.shape).to(dtype)
    found = KERNELS[CUDNN_BACK](
        grad, query, key, value, made[0], made[1], made[6], made[7], bias, None, None, 9, 7,
        dropout, causal,
    )  # fmt: skip
    gradients = torch.autograd.grad(wanted, leaves[:3], grad.double())
    for one, other in zip(found, gradients, strict=True):
        close(one, other, dtype)


def test_cudnns_output_lies_as_the_query_does():
    query, key, value = tensors(torch.float16, values=16)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    made = KERNELS[CUDNN](DRAW, query, key, value, None, False, 0.0, False)
    assert made[0].shape == (2, 4, 9, 16)
    assert made[0].transpose(1, 2).is_contiguous()
    assert made[1] is None


# -- what holds for all --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forms", "turned"),
    [
        (("_flash_attention_forward", FLASH), (None, None, 9, 7, 0.25, False, False)),
        (("_efficient_attention_forward", EFFICIENT), (None,) * 5 + (0.25, 0, True)),
    ],
)
def test_the_form_by_lengths_first_is_the_same_turned(forms, turned):
    name, whole = getattr(aten, forms[0]).default, forms[1]
    query, key, value = tensors(torch.float16)
    lengths = [each.transpose(1, 2) for each in (query, key, value)]
    rest = (0.25, False) if whole is FLASH else (None, True, 0.25, False)
    made = KERNELS[whole](DRAW, query, key, value, *rest)
    found = KERNELS[name](DRAW, *lengths, *turned)
    assert torch.equal(found[0].transpose(1, 2), made[0])
    assert torch.equal(found[1], made[1])
    assert DRAWS[name](*lengths, *turned) == DRAWS[whole](query, key, value, *rest)


def test_the_backwards_by_lengths_first_are_the_same_turned():
    query, key, value = tensors(torch.float16)
    turn = [each.transpose(1, 2) for each in (query, key, value)]
    flash = KERNELS[FLASH](DRAW, query, key, value, 0.25, False)
    grad = torch.randn_like(flash[0])
    state = flash[6:8]
    whole = KERNELS[FLASH_BACK](
        grad, query, key, value, *flash[:2], None, None, 9, 7, 0.25, False, *state
    )
    found = KERNELS[aten._flash_attention_backward.default](
        grad.transpose(1, 2), *turn, flash[0].transpose(1, 2), flash[1], None, None, 9, 7, 0.25,
        False, *state,
    )  # fmt: skip
    assert all(torch.equal(a, b.transpose(1, 2)) for a, b in zip(whole, found, strict=True))
    made = KERNELS[EFFICIENT](DRAW, query, key, value, None, True, 0.25, False)
    whole = KERNELS[EFFICIENT_BACK](
        grad, query, key, value, None, *made, 0.25, [True, True, True, False], False
    )
    found = KERNELS[aten._efficient_attention_backward.default](
        grad.transpose(1, 2), *turn, None, made[0].transpose(1, 2), None, None, 9, 7, made[1],
        0.25, *made[2:], 0, False,
    )  # fmt: skip
    for one, other in zip(whole[:3], found[:3], strict=True):
        assert torch.equal(one, other.transpose(1, 2))


@pytest.mark.parametrize("place", [4, 5, 6])
def test_the_backward_reads_output_logarithms_and_state(place):
    """So that what was freed or overwritten since the forward shows."""
    query, key, value = tensors(torch.float16)
    made = KERNELS[FLASH](DRAW, query, key, value, 0.25, False)
    saved = {4: made[0], 5: made[1], 6: made[6]}
    wrong = saved | {
        place: torch.full_like(saved[place].view(torch.uint8), 0x35).view(saved[place].dtype)
    }

    def run(kept):
        return KERNELS[FLASH_BACK](
            torch.ones_like(made[0]), query, key, value, kept[4], kept[5], None, None, 9, 7, 0.25,
            False, kept[6], made[7],
        )  # fmt: skip

    assert not torch.equal(run(saved)[0], run(wrong)[0])


def test_the_math_composite_drops_with_the_numbers_of_native_dropout():
    math_op = aten._scaled_dot_product_attention_math.default
    query, key, value = tensors(torch.float32)
    out, weights = KERNELS[math_op](DRAW, query, key, value, None, 0.25, False)
    _, plain = math_op(query, key, value)
    dropped, _ = KERNELS[aten.native_dropout.default](DRAW, plain, 0.25, True)
    assert torch.equal(weights, dropped)
    torch.testing.assert_close(out, dropped @ value)
    assert DRAWS[math_op](query, key, value, None, 0.25) == 4
    assert DRAWS[math_op](query, key, value) == 0
    assert torch.equal(KERNELS[math_op](DRAW, query, key, value)[0], math_op(query, key, value)[0])


# -- the choice ----------------------------------------------------------------------------------

MATH_, FLASH_, EFFICIENT_, CUDNN_ = range(4)


@pytest.fixture
def order():
    """Torch's own order of preference, flash first, put back afterwards."""
    before = list(torch._C._get_sdp_priority_order())
    torch._C._set_sdp_priority_order([FLASH_, EFFICIENT_, MATH_, CUDNN_])
    yield torch._C._set_sdp_priority_order
    torch._C._set_sdp_priority_order(before)


def test_halves_take_flash_floats_the_efficient_kernel_and_doubles_none(order):
    assert CHOICE(*tensors(torch.float16)) == FLASH_
    assert CHOICE(*tensors(torch.float32)) == EFFICIENT_
    assert CHOICE(*tensors(torch.float64)) == MATH_


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({"mask": torch.zeros(9, 7, dtype=torch.float16)}, EFFICIENT_),
        ({"width": 12, "values": 12}, FLASH_),  # filled up before the kernel
        ({"width": 264, "values": 264}, EFFICIENT_),
        ({"values": 16}, EFFICIENT_),
        ({"values": 12}, MATH_),
        ({"keys": 0}, MATH_),
        ({"shared": 2}, MATH_),
        ({"shared": 2, "grouped": True}, FLASH_),
        ({"causal": True}, EFFICIENT_),
        ({"causal": True, "keys": 9}, FLASH_),
    ],
    ids=str,
)
def test_what_a_kernel_cannot_take_goes_to_the_next(order, change, chosen):
    change = dict(change)
    mask, causal = change.pop("mask", None), change.pop("causal", False)
    grouped = change.pop("grouped", False)
    found = CHOICE(*tensors(torch.float16, **change), mask, 0.0, causal, enable_gqa=grouped)
    assert found == chosen


def test_of_fused_kernels_that_of_floats_has_no_few_keys_for_many_queries(order):
    assert CHOICE(*tensors(torch.float32, shared=2), enable_gqa=True) == MATH_
    assert CHOICE(*tensors(torch.float32), enable_gqa=True) == EFFICIENT_


@pytest.mark.parametrize(
    ("change", "dropout", "chosen"),
    [({}, 0.0, CUDNN_), ({}, 0.25, CUDNN_), ({}, 0.3, FLASH_), ({"keys": 1}, 0.0, FLASH_),
     ({"length": 1}, 0.25, FLASH_), ({"width": 136, "values": 136}, 0.0, FLASH_),
     ({"width": 192, "values": 128}, 0.0, CUDNN_)],
    ids=str,
)  # fmt: skip
def test_cudnn_first_where_it_is_preferred(order, change, dropout, chosen):
    order([CUDNN_, FLASH_, EFFICIENT_, MATH_])
    assert CHOICE(*tensors(torch.float16, **change), None, dropout) == chosen


def test_switches_and_layouts_decide_too(order):
    query, key, value = tensors(torch.float16)
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert CHOICE(query, key, value) == MATH_
    assert CHOICE(query.mT.contiguous().mT, key, value) == MATH_
    with (
        torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION]),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        CHOICE(query.double(), key.double(), value.double())
    whole = torch.zeros(4096)
    floats = whole[1 : 1 + 2 * 4 * 9 * 8].view(2, 4, 9, 8)
    assert CHOICE(floats, floats, floats) == MATH_  # not aligned for the efficient kernel
