"""Padded batches in a transformer's evaluation, where native torch goes by nested tensors.

The device has none and computes the padded rows, too: what is no padding agrees closely, not by
bits.
"""

import sys

import processes
import pytest

_PROGRAM = """
import sys, torch
from torch import nn
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
net = nn.TransformerEncoder(layer, 2).eval()
x = torch.randn(3, 6, 16)
padding = torch.arange(6) >= torch.tensor([[6], [4], [2]])
device, out = sys.argv[1:]
with torch.no_grad():
    y = net.to(device)(x.to(device), src_key_padding_mask=padding.to(device))
torch.save(y.cpu()[~padding], out)
"""


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_padded_rows_of_an_encoder_in_evaluation(broker, tmp_path):
    import torch

    native, device = tmp_path / "native.pt", tmp_path / "device.pt"
    processes.run([sys.executable, "-c", _PROGRAM, "cpu", str(native)], check=True)
    broker.seat(_PROGRAM, "cuda", device).check()
    torch.testing.assert_close(torch.load(native), torch.load(device))
