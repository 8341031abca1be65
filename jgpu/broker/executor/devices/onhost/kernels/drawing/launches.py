"""How CUDA launches a random kernel over a tensor: threads, turns, and the offset's increment.

The counts are those of an H200: 132 multiprocessors of 2,048 threads. Element e of a tensor of n
is drawn by thread e mod T of the T threads of the grid; a block of random numbers serves four
elements of that thread, or two where each takes 64 bits (PyTorch's
`distribution_elementwise_grid_stride_kernel`). Elements are numbered as they lie in memory.

Exactness beside a real GPU is not claimed: kernels that read several elements at once number them
otherwise.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.philox import LANES, Philox

__all__ = ["fill", "increment", "numbers", "rounded"]

_MULTIPROCESSORS: Final = 132
_THREADS_EACH: Final = 2048
_BLOCK: Final = 256
_MOST_BLOCKS: Final = _MULTIPROCESSORS * (_THREADS_EACH // _BLOCK)


def _threads(count: int) -> int:
    return _BLOCK * min(-(-count // _BLOCK), _MOST_BLOCKS)


def increment(count: int, at_once: int = LANES) -> int:
    """What the offset moves on by for `count` elements, `at_once` of which share a block."""
    return 0 if count == 0 else LANES * -(-count // (_threads(count) * at_once))


def rounded(count: int) -> int:
    """An increment that a kernel asks for by itself, as the generator takes it."""
    return -(-count // LANES) * LANES


def numbers(draw: Philox, count: int, of_blocks: Callable[[Tensor], Tensor]) -> Tensor:
    """`count` numbers in the order of elements; `of_blocks` makes of blocks what it makes."""
    at_once = of_blocks(torch.zeros(LANES, dtype=torch.int64)).shape[-1]
    threads = _threads(count) if count else 1
    turns = -(-count // (threads * at_once))
    if not turns:
        return of_blocks(torch.zeros(0, LANES, dtype=torch.int64)).flatten()
    # where there are more threads than elements the rest would be thrown away
    used = min(threads, count)
    made = of_blocks(draw.blocks(torch.arange(used), torch.arange(turns).unsqueeze(1)))
    return made.transpose(1, 2).reshape(-1)[:count]


def fill(out: Tensor, values: Tensor) -> Tensor:
    """Write flat values into `out` in the order of its memory, as its kernels number elements."""
    dims = sorted(range(out.dim()), key=lambda dim: (-out.stride()[dim], dim))
    seen = out.permute(dims)
    seen.copy_(values.view(seen.shape))
    return out
