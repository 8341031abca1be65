"""Who sees whom, and which weights are dropped: the masks of each kernel.

Each kernel draws in its own way, and its backward draws the same again from the seed and offset
that the forward returned. Seeds and offsets that are read from tensors are taken whatever they are.
"""

from typing import Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import rounded
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox, uniforms

__all__ = [
    "flash_increment",
    "flash_kept",
    "row_increment",
    "row_kept",
    "row_uniforms",
    "seen",
    "told",
]

#: what an offset may be: not below 0, and a multiple of 4
_OFFSETS: Final = (1 << 63) - 4
#: rows and columns of the tiles that flash attention draws; a byte for each place
_TILE: Final = (8, 16)
_BLOCKS: Final = _TILE[0] * _TILE[1] // 16


def told(seed: int, offset: int) -> Philox:
    """What a forward drew from, as its tensors say."""
    return Philox(seed, offset & _OFFSETS)


def seen(
    length: int,
    keys: int,
    *,
    causal: bool = False,
    last: bool = False,
    before: int | None = None,
    after: int | None = None,
) -> Tensor | None:
    """(length, keys), true where a query sees a key; None where all see all.

    `last`: the last query is beside the last key, else the first beside the first. `before` and
    `after`: how many keys each query sees on either side of its own.
    """
    after = 0 if causal else after
    if before is None and after is None:
        return None
    own = torch.arange(length).unsqueeze(1) + (keys - length if last else 0)
    places = torch.arange(keys)
    made = torch.ones(length, keys, dtype=torch.bool)
    if after is not None:
        made &= places <= own + after
    if before is not None:
        made &= places >= own - before
    return made


def flash_increment(query: Tensor, dropout: float) -> int:
    """Of flash attention; `query` is (batch, heads, length, features)."""
    return query.shape[0] * query.shape[1] * 32 if dropout > 0 else 0


def flash_kept(draw: Philox, shape: tuple[int, int, int, int], dropout: float) -> Tensor:
    """(batch, heads, length, keys), drawn from bytes: the chance is rounded to one of 256.

    A head draws 8 blocks of every tile, whose number is the thread.
    """
    batch, heads, length, keys = shape
    rows, columns = -(-length // _TILE[0]), -(-keys // _TILE[1])
    tiles = (torch.arange(rows).unsqueeze(1) << 32 | torch.arange(columns)).view(1, -1, 1)
    turns = torch.arange(batch * heads * _BLOCKS).view(-1, 1, _BLOCKS)
    words = draw.blocks(tiles, turns)
    found = torch.stack([words >> shift & 0xFF for shift in (0, 8, 16, 24)], -1)
    found = found.view(batch, heads, rows, columns, *_TILE).transpose(3, 4)
    found = found.reshape(batch, heads, rows * _TILE[0], columns * _TILE[1])
    return found[:, :, :length, :keys] <= int((1 - dropout) * 255)


def row_increment(query: Tensor, key: Tensor, dropout: float) -> int:
    """Of the kernels that draw a number for each score."""
    scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return rounded(scores) if dropout != 0 else 0


def row_kept(draw: Philox, shape: tuple[int, int, int, int], dropout: float) -> Tensor:
    """(batch, heads, length, keys), one number after another of one thread."""
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return _row(draw, 0, count).view(shape) > dropout


def row_uniforms(seed: int, offset: int, count: int) -> Tensor:
    """`count` numbers in (0, 1] of thread 0, from any offset on."""
    return _row(told(seed, offset), offset % 4, count)


def _row(draw: Philox, first: int, count: int) -> Tensor:
    blocks = draw.blocks(torch.tensor(0), torch.arange(-(-(first + count) // 4)))
    return uniforms(blocks).flatten()[first : first + count]
