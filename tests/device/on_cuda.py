"""Trains what CUDA computes otherwise than the CPU, on a device that says it is CUDA.

    python on_cuda.py FILE

Every model does three steps with gradients for all its parameters. `FILE` gets the ops that each
recorded in its third one; it is written at the end, when the kernel has lived through all of them.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from jgpu.device import current

BATCH, STEPS, WIDTH = 3, 5, 16


class Attention(nn.Module):
    """One attention layer with its projections."""

    def __init__(self, mask=None, dtype=torch.float32, heads=2, **how):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH, dtype=dtype)
        self.mask, self.how, self.heads = mask, how, heads

    def forward(self, x):
        parts = self.project(x.to(self.project.weight.dtype)).chunk(3, -1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        mask = self.mask() if self.mask is not None else None
        return F.scaled_dot_product_attention(*heads, attn_mask=mask, **self.how)


def boolean():
    return torch.ones(STEPS, STEPS, dtype=torch.bool, device="cuda").tril()


def additive():
    return torch.zeros(BATCH, 1, STEPS, STEPS, device="cuda")


def recurrent(kind, **how):
    return lambda: kind(WIDTH, 6, **how)


def packed(module):
    """The same over sequences of several lengths."""

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module()

        def forward(self, x):
            lengths = torch.tensor([5, 3, 2])
            data = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.inner(data)[0].data

    return Packed


class Pictures(nn.Module):
    """The sequence as pictures of one column, a channel a feature."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype).transpose(1, 2).unsqueeze(-1)


class Sampled(nn.Module):
    """Pictures of one channel at places that are learnt."""

    def __init__(self, **how):
        super().__init__()
        self.grid, self.how = nn.Parameter(torch.zeros(BATCH, 2, 4, 2)), how

    def forward(self, x):
        return F.grid_sample(x.unsqueeze(1), self.grid, **self.how)


class Rows(nn.Module):
    """Each step a row of its own."""

    def forward(self, x):
        return x.flatten(0, 1)


class Softmax(nn.Module):
    """A softmax that adds up in float32."""

    def __init__(self, function, dtype):
        super().__init__()
        self.function, self.dtype = function, dtype

    def forward(self, x):
        return self.function(x.to(self.dtype), -1, dtype=torch.float32)


class Cast(nn.Module):
    """A module under autocast."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            return self.inner(x)


HALF = torch.float16
FLASH, EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
CUDNN, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH

#: name: module, and kernels of attention that are allowed
MODELS = {
    "batch norm": (lambda: nn.Sequential(Pictures(), nn.BatchNorm2d(WIDTH)), None),
    "batch norm, rows": (lambda: nn.Sequential(Rows(), nn.BatchNorm1d(WIDTH)), None),
    "batch norm, bfloat16": (
        lambda: nn.Sequential(Pictures(torch.bfloat16), nn.BatchNorm2d(WIDTH).bfloat16()),
        None,
    ),
    "sampled": (lambda: Sampled(align_corners=True), None),
    "sampled, borders": (lambda: Sampled(align_corners=True, padding_mode="border"), None),
    "rms norm": (lambda: nn.RMSNorm(WIDTH), None),
    "softmax of halves": (lambda: Softmax(F.softmax, HALF), None),
    "log softmax of halves": (lambda: Softmax(F.log_softmax, HALF), None),
    "softmax": (lambda: Softmax(F.softmax, torch.float32), None),
    "softmax, autocast": (lambda: Cast(nn.Sequential(nn.Linear(WIDTH, 4), nn.Softmax(-1))), None),
    "dropout": (lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(0.3)), None),
    "attention": (Attention, None),
    "flash": (lambda: Attention(dtype=HALF, is_causal=True), FLASH),
    "flash, padded": (lambda: Attention(dtype=HALF, heads=4, dropout_p=0.1), FLASH),
    "efficient": (lambda: Attention(is_causal=True), EFFICIENT),
    "efficient, dropout": (lambda: Attention(dropout_p=0.2), EFFICIENT),
    "efficient, boolean": (lambda: Attention(boolean), EFFICIENT),
    "efficient, additive": (lambda: Attention(additive, dropout_p=0.1), EFFICIENT),
    "cudnn": (lambda: Attention(dtype=HALF, is_causal=True, dropout_p=0.25), CUDNN),
    "cudnn, boolean": (lambda: Attention(boolean, dtype=HALF), CUDNN),
    "math": (lambda: Attention(boolean, dropout_p=0.1), MATH),
    "lstm": (recurrent(nn.LSTM), None),
    "lstm, all of it": (
        recurrent(
            nn.LSTM, num_layers=2, dropout=0.4, bidirectional=True, proj_size=4, batch_first=True
        ),
        None,
    ),
    "lstm, no bias": (recurrent(nn.LSTM, bias=False, batch_first=True), None),
    "lstm, packed": (packed(recurrent(nn.LSTM, batch_first=True)), None),
    "gru": (recurrent(nn.GRU, num_layers=2, dropout=0.2), None),
    "gru, packed": (packed(recurrent(nn.GRU, batch_first=True, bidirectional=True)), None),
    "rnn": (recurrent(nn.RNN, nonlinearity="relu", batch_first=True), None),
    "encoder": (lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), None),
}


def recorded(log):
    return [entry[0].info.name.removeprefix("aten::") for entry in log]


def train(make, allowed):
    """Three steps; returns the ops of the last one, in order."""
    torch.manual_seed(5)
    model = make().to("cuda").train()
    parameters = [*model.parameters(), torch.nn.Parameter(torch.zeros(1, device="cuda"))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    ops = []
    for _ in range(3):
        x = torch.zeros(BATCH, STEPS, WIDTH, device="cuda", requires_grad=True)
        session = current.session
        session.cut()
        session.log.limit = 1 << 30
        with sdpa_kernel(allowed if allowed is not None else [FLASH, EFFICIENT, CUDNN, MATH]):
            out = model(x)
        out = out[0] if isinstance(out, tuple) else out
        out.float().square().sum().backward()
        ops = recorded(session.log.entries)
        assert x.grad is not None
        missing = [name for name, p in model.named_parameters() if p.grad is None]
        assert not missing, missing
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    return ops


def main(path):
    found = {name: train(make, allowed) for name, (make, allowed) in MODELS.items()}
    found["switched"] = switched()
    found["of no batch"] = of_no_batch()
    cells()
    with torch.backends.cudnn.flags(enabled=False):
        found["without cudnn"] = train(recurrent(nn.GRU), None)
    torch.cuda.synchronize()
    Path(path).write_text(json.dumps(found))


def switched():
    """The kernels that the same tensors take, one after another."""
    half = [torch.zeros(2, 3, 5, 8, device="cuda", dtype=HALF) for _ in range(3)]
    taken = []
    for allowed in (FLASH, EFFICIENT, CUDNN, FLASH):
        current.session.cut()
        with sdpa_kernel(allowed):
            F.scaled_dot_product_attention(*half)
        taken += recorded(current.session.log.entries)
    return taken


def of_no_batch():
    """The shape of attention on three dimensions, and its last node in the graph."""
    options = {"device": "cuda", "requires_grad": True}
    given = [torch.zeros(3, 5, 8, **options) for _ in range(3)]
    mask = torch.ones(5, 5, device="cuda", dtype=torch.bool)
    with sdpa_kernel(MATH):
        made = F.scaled_dot_product_attention(*given, mask)
    made.sum().backward()
    return [list(made.shape), made.grad_fn.name()]


def cells():
    """Single steps take the fused cells."""
    cell = nn.LSTMCell(WIDTH, 6).cuda()
    hx, cx = cell(torch.zeros(BATCH, WIDTH, device="cuda"))
    (hx + cx).sum().backward()
    nn.GRUCell(WIDTH, 6).cuda()(torch.zeros(BATCH, WIDTH, device="cuda")).sum().backward()


if __name__ == "__main__":
    main(sys.argv[1])
