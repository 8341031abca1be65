"""Attention by the host's kernel, called by name: native bits, without stand-ins."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

from jgpu.device.composed.attention import onhost

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
FLASH = "ScaledDotProductFlashAttentionForCpuBackward0"


def tensors(where, length=5, heads=(3, 3), dtype=torch.float32, *, swapped=True):
    torch.manual_seed(length)
    sizes = [(2, count, of, 8) for count, of in ((heads[0], 4), *[(heads[1], length)] * 2)]
    made = [torch.randn(a, c, b, d).transpose(1, 2) for a, b, c, d in sizes]
    made = [(each if swapped else each.contiguous()).to(dtype) for each in made]
    return [each.to(where) for each in made]


def results(where, given, **options):
    """Results and gradients of attention there, each tensor with its strides."""
    given = [each.detach().to(where).requires_grad_() for each in given]
    seen = attend(*given, **options)
    seen.square().sum().backward()
    made = [seen.detach(), *[each.grad for each in given]]
    return [each.cpu() for each in made], [each.stride() for each in made]


def assert_native(given, **options):
    for _ in range(3):
        shared, native = (results(where, given, **options) for where in ("cuda", "cpu"))
        assert shared[1] == native[1]
        assert all(torch.equal(*pair) for pair in zip(shared[0], native[0], strict=True))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_has_native_bits_and_needs_no_stand_ins(stand_ins, options, swapped, dtype):
    assert_native(tensors("cpu", dtype=dtype, swapped=swapped), **options)
    query, key, value = tensors("cuda", dtype=dtype, swapped=swapped)
    with torch.inference_mode():
        inside = attend(query, key, value, **options)
    assert torch.equal(inside, attend(query, key, value, **options))
    assert stand_ins == []


def test_its_node_in_the_graph_is_the_native_one():
    for where in ("cpu", "cuda"):
        query, key, value = tensors(where)
        assert attend(query.requires_grad_(), key, value).grad_fn.name() == FLASH


def test_a_gradient_that_nobody_wants_is_not_computed():
    seen = []
    for where in ("cpu", "cuda"):
        query, key, value = tensors(where)
        attend(query, key, value.requires_grad_()).sum().backward()
        seen.append((query.grad, key.grad, value.grad.cpu()))
    assert seen[0][:2] == seen[1][:2] == (None, None)
    assert torch.equal(seen[0][2], seen[1][2])


MASKS = {
    "truths": torch.ones(4, 5, dtype=torch.bool).tril(1),
    "numbers": torch.linspace(-1, 1, 20).view(4, 5),
    "infinities": torch.zeros(4, 5).masked_fill_(torch.ones(4, 5).triu(2) > 0, float("-inf")),
    "batch": torch.linspace(-1, 1, 40).view(2, 1, 4, 5),
    "columns": torch.tensor([True, False, True, True, True]).view(1, 1, 1, 5),
    "expanded": torch.tensor([[True, False, True, True, True]]).expand(4, 5),
    "rows": torch.linspace(-1, 1, 20).view(5, 4).t(),
    "nothing": torch.zeros(4, 5, dtype=torch.bool),
}


@pytest.mark.parametrize("which", MASKS)
@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_have_native_bits_and_need_no_stand_ins(stand_ins, which, swapped, dtype):
    mask, given = MASKS[which], tensors("cpu", dtype=dtype, swapped=swapped)
    mask = mask if mask.dtype is torch.bool else mask.to(dtype)
    for options in ({}, {"scale": 0.3}):
        for _ in range(3):
            shared = results("cuda", given, attn_mask=mask.cuda(), **options)
            native = results("cpu", given, attn_mask=mask, **options)
            for ours, theirs in zip(shared[0], native[0], strict=True):
                assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))
            assert shared[1] == native[1]
    assert stand_ins == []


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"heads": (4, 2)}, {"enable_gqa": True}),
        ({}, {"attn_mask": torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()}),
        ({"dtype": torch.bfloat16}, {"attn_mask": torch.linspace(-1, 1, 20).view(4, 5)}),
    ],
)
def test_what_torch_is_to_look_at_is_left_to_stand_ins(stand_ins, given, options):
    moved = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    given = tensors("cpu", **given)
    shared, native = results("cuda", given, **moved), results("cpu", given, **options)
    assert all(torch.equal(*pair) for pair in zip(shared[0], native[0], strict=True))
    assert stand_ins


def test_what_the_host_computes_otherwise_is_left_to_stand_ins(stand_ins):
    one = [each[0].contiguous() for each in tensors("cpu")]  # of no batch
    assert_native(one)
    assert stand_ins


def test_a_switch_that_is_turned_afterwards_counts():
    given = tensors("cpu")
    assert_native(given)
    with sdpa_kernel(SDPBackend.MATH):
        assert_native(given)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert_native(given)
    assert_native(given)


def test_an_answer_is_for_tensors_that_lie_and_are_wanted_so():
    """Parts of a call that are not in the key: values, and offsets into storages."""
    onhost.on_host.clear()
    query, key, value = tensors("cuda")
    seen = attend(query, key, value)
    assert len(onhost.on_host) == 1
    attend(query + 1, key * 2, value, scale=0.1)
    room = torch.zeros(3, 2, 4, 3, 8, device="cuda").transpose(2, 3)
    assert torch.equal(attend(room[1].copy_(query), key, value), seen)
    assert len(onhost.on_host) == 1
    attend(query, key, value, is_causal=True)
    for length in range(1, 9):  # each is another question
        assert_native(tensors("cpu", length=length))
    assert len(onhost.on_host) == 10


@pytest.mark.parametrize("wrong", ["types", "width", "heads", "batch", "none", "device"])
def test_what_does_not_go_together_is_refused_in_torchs_words(wrong):
    said = []
    for where in ("cpu", "cuda"):
        query, key, value = tensors(where)
        key = {
            "types": lambda key: key.double(),
            "width": lambda key: key[..., :3],
            "heads": lambda key: key[:, :2],
            "batch": lambda key: torch.cat([key, key, key]),
            "none": lambda key: key[:, :, :0],
            "device": lambda key: key.to("cpu"),
        }[wrong](key)
        try:
            said.append(attend(query, key, value).shape)
        except RuntimeError as error:
            said.append(str(error))
    if wrong == "device":
        assert "same device" in said[1]
    else:
        assert said[0] == said[1]


@pytest.mark.parametrize("shape", [(0, 2, 8, 4), (2, 0, 8, 4), (2, 2, 0, 4), (2, 2, 8, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_of_nothing_it_is_as_natively(shape, masked):
    if TORCH < (2, 13) and not shape[1]:
        pytest.skip("natively the process divides by the number of heads, and ends")
    made = []
    for where in ("cpu", "cuda"):
        query = torch.ones(shape, device=where, requires_grad=True)
        mask = torch.ones(shape[2], shape[2], dtype=torch.bool, device=where) if masked else None
        seen = attend(query, query, query, mask)
        seen.sum().backward()
        made.append((seen.detach().cpu(), query.grad.cpu()))
    for native, ours in zip(*made, strict=True):
        assert torch.equal(native, ours)
        assert native.stride() == ours.stride()
