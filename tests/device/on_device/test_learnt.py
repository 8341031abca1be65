"""Geometry that was inferred wrongly: right results all the same, counted, right the next time."""

import pytest
import torch

from jgpu.device import current
from jgpu.device.recording.ops import info_of


@pytest.fixture
def counts():
    """What was put right since the test began: (restrided, reshaped, asked)."""
    learnt = current.session.learnt
    before = learnt.restrided, learnt.reshaped, learnt.asked

    def since():
        torch.cuda.synchronize()
        now = learnt.restrided, learnt.reshaped, learnt.asked
        return tuple(a - b for a, b in zip(now, before, strict=True))

    return since


def unasked(monkeypatch, op, word):
    """An op of which the meta kernel is believed though it is known to be wrong."""
    monkeypatch.setattr(info_of(op), word, False)


def permuted(n):
    return torch.arange(float(6 * n * 4)).view(6, n, 4).permute(2, 0, 1)


def test_other_strides_are_put_right_counted_and_known_from_then_on(counts, monkeypatch):
    unasked(monkeypatch, torch.ops.aten._log_softmax_backward_data.default, "probed_permuted")
    op = torch.ops.aten._log_softmax_backward_data

    def both(n):
        grad, out = permuted(n), permuted(n).log_softmax(1)
        native = op(grad, out, 1, torch.float32)
        return native, op(grad.cuda(), out.cuda(), 1, torch.float32)

    native, first = both(5)
    assert torch.equal(first.cpu(), native)
    assert counts() == (1, 0, 0)
    native, second = both(5)
    assert torch.equal(second.cpu(), native)
    assert second.stride() == native.stride() != first.stride()
    assert counts() == (1, 0, 0)


def test_another_type_is_told_and_known_from_then_on(counts, monkeypatch):
    unasked(monkeypatch, torch.ops.aten.native_layer_norm.default, "probed_half")
    x, weight = torch.randn(7, 3).bfloat16(), torch.ones(3).bfloat16()

    def both():
        native = torch.native_layer_norm(x, [3], weight, weight, 1e-5)
        return native, torch.native_layer_norm(x.cuda(), [3], weight.cuda(), weight.cuda(), 1e-5)

    native, first = both()
    assert torch.equal(first[0].cpu(), native[0])
    restrided, reshaped, asked = counts()
    assert (restrided, asked) == (0, 0)
    native, second = both()
    assert [t.dtype for t in second] == [t.dtype for t in native]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(second, native, strict=True))
    assert counts() == (0, reshaped, 0)
    assert reshaped == sum(a.dtype != b.dtype for a, b in zip(first, second, strict=True)) > 0


def test_an_op_whose_meta_kernel_is_known_to_be_wrong_is_asked_for_once(counts):
    x = torch.randn(3, 8, 2, 2).cuda()
    for _ in range(3):
        torch.pixel_shuffle(x, 2)
    assert counts() == (0, 0, 1)


def test_what_is_too_large_to_be_tried_is_told_by_the_run(counts):
    """No meta kernel foretells a histogram; one of half a gigabyte is not made to see how large."""
    points = torch.tensor([[0.1, 0.2], [0.1, 0.9], [0.8, 0.2]])
    parts = ("aten::_histogramdd_bin_edges", "aten::_histogramdd_from_bin_cts")
    unforetold = sum(  # none from torch 2.14 on
        not torch._C._dispatch_has_kernel_for_dispatch_key(part, "Meta") for part in parts
    )
    for _ in range(3):
        histogram, edges = torch.histogramdd(points.cuda(), [1 << 14, 1 << 13])
        assert histogram.shape == (1 << 14, 1 << 13)
        assert [edge.numel() - 1 for edge in edges] == list(histogram.shape)
        assert histogram.sum().item() == 3
        assert counts()[2] == unforetold  # the edges and this, each once
        del histogram


def test_sequences_that_grow_ask_nothing_and_have_native_bits(counts):
    """Attention and layer norm with their gradients: the device was asked at each new length."""

    def step(device, length):
        torch.manual_seed(length)
        x = torch.randn(1, length, 24).to(device).requires_grad_()
        norm = torch.nn.functional.layer_norm(x, (24,), torch.ones(24, device=device))
        query, key, value = (
            each.view(1, length, 2, 4).transpose(1, 2) for each in norm.chunk(3, dim=-1)
        )
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        kept = torch.cat([seen, seen[:, :, :1]], dim=2).transpose(1, 2).reshape(length + 1, 8)
        kept.softmax(-1).pow(2).mean().backward()
        return x.grad

    for length in range(2, 9):
        shared, native = step("cuda", length), step("cpu", length)
        assert torch.equal(shared.cpu(), native)
        assert shared.stride() == native.stride()
    assert counts() == (0, 0, 0)
