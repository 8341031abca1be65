"""Encoders in evaluation: what stands in padded places is what natively stands there."""

import pytest

SOURCE = """
import torch
from torch import nn

torch.manual_seed(0)
padding = torch.arange(7) >= torch.tensor([[7], [5], [2]])
holes = padding.flip(1)
x = torch.randn(3, 7, 16)
layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
norm = nn.LayerNorm(16)
as_numbers = torch.zeros(3, 7).masked_fill(padding, -torch.inf)

def check(mask, norm=None, nested=True, grad=False):
    net = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=nested).eval().cpu()
    with torch.set_grad_enabled(grad):
        right = net(x, src_key_padding_mask=mask)
        found = net.cuda()(x.cuda(), src_key_padding_mask=mask.cuda()).cpu()
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    return [not each[padding].any() for each in (right, found)]

assert check(padding) == check(as_numbers) == [True, True]
assert check(holes) == check(padding, nested=False) == check(padding, grad=True) == [False, False]
check(padding, norm)
assert not norm._forward_pre_hooks
"""


@pytest.mark.e2e
def test_padded_places_are_zeros_where_natively_they_are(broker):
    """Torch's nested tensors sum in another order, by the last bits."""
    broker.seat(SOURCE, timeout_s=200).check()
