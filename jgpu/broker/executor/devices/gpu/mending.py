"""One kernel for what a guard does to an index: what is wrong is replaced, and it is noted.

By torch's ops that takes five launches, seven where a value is ignored. The kernel is compiled when
the executor starts, by NVRTC, and compared with torch's ops on small indices of each kind; where it
cannot be compiled, or gives anything else, torch's ops do it, which is told in the log.

Few indices are looked at by one block of threads, which writes the note whatever it met. More are
looked at by many, behind a launch that clears the note.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, Final

import torch

from jgpu.broker.executor.programs.checking.guards import IndexGuard

__all__ = ["SOURCE", "IndexMender", "by_nvrtc", "compiled_mender"]

_log = logging.getLogger(__name__)

#: Bounds come as doubles, which torch passes whole; all of them are integers that a double holds.
#: `sizes` without the first one, which follows from the count; `steps` are strides in elements.
SOURCE: Final = r"""
#define MEND(NAME, TYPE)                                                                         \
extern "C" __global__ void __launch_bounds__(1024)                                               \
NAME(const TYPE *from, TYPE *to, unsigned char *note, int count,                                 \
     double low, double high, double ignored, int ignores, int clears,                           \
     int size1, int size2, int size3, int step0, int step1, int step2, int step3) {              \
  const long long least = (long long)low, past = (long long)high, skipped = (long long)ignored;  \
  const long long threads = (long long)gridDim.x * blockDim.x;                                   \
  int wrong = 0;                                                                                 \
  for (long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x; k < count;                \
       k += threads) {                                                                           \
    long long left = k;                                                                          \
    long long at = (left % size3) * step3;                                                       \
    left /= size3;                                                                               \
    at += (left % size2) * step2;                                                                \
    left /= size2;                                                                               \
    at += (left % size1) * step1 + (left / size1) * step0;                                       \
    const long long value = from[at];                                                            \
    const int outside = (value < least || value >= past) && !(ignores && value == skipped);      \
    to[k] = outside ? (TYPE)least : (TYPE)value;                                                 \
    wrong |= outside;                                                                            \
  }                                                                                              \
  const int found = __syncthreads_or(wrong);                                                     \
  if (threadIdx.x == 0 && (clears || found)) *note = found != 0;                                 \
}
MEND(mend_int64, long long)
MEND(mend_int32, int)
"""
_NAMES: Final = {torch.int64: "mend_int64", torch.int32: "mend_int32"}
_DIMENSIONS: Final = 4
_THREADS: Final = 1024
#: indices that one block looks at, and the most blocks that look at more of them
_ONE_BLOCK: Final = 1 << 16
_BLOCKS: Final = 512
_INT32: Final = 1 << 31
#: integers up to this one are doubles as well
_EXACT: Final = 1 << 53

_Kernel = Callable[..., Any]


def by_nvrtc(source: str, name: str) -> _Kernel:
    """A kernel compiled by torch's own way to NVRTC; raises whatever that lacks."""
    from torch.utils import cpp_extension

    # Torch asks for a toolkit's folder of headers, of which this source needs none.
    home, cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME, cpp_extension.CUDA_HOME or sys.prefix
    try:
        kernel: _Kernel = torch.cuda._compile_kernel(source, name)
    finally:
        cpp_extension.CUDA_HOME = home
    return kernel


class IndexMender:
    """The kernels, by type."""

    def __init__(self, kernels: dict[torch.dtype, _Kernel]) -> None:
        self._kernels = kernels

    def __call__(
        self, index: torch.Tensor, guard: IndexGuard, note: torch.Tensor
    ) -> torch.Tensor | None:
        """The index with wrong ones replaced, and `note` written; None for what torch is to do."""
        kernel, count = self._kernels.get(index.dtype), index.numel()
        layout = _layout(index)
        if kernel is None or layout is None or not 0 < count < _INT32 or not _holds(guard, index):
            return None
        made = torch.empty(index.shape, dtype=index.dtype, device=index.device)
        alone = count <= _ONE_BLOCK
        if not alone:
            note.zero_()
        ignored = guard.ignored
        kernel(
            grid=(1 if alone else min(_BLOCKS, ceil(count / _THREADS)), 1, 1),
            block=(_THREADS, 1, 1),
            args=[
                *(index, made, note, count),
                *(float(guard.low), float(guard.high), float(ignored or 0)),
                *(int(ignored is not None), int(alone)),
                *layout,
            ],
        )
        return made


def _holds(guard: IndexGuard, index: torch.Tensor) -> bool:
    """Whether the kernel can be told the bounds, and write the least of them."""
    within = torch.iinfo(index.dtype)
    bounds = guard.low, guard.high, guard.ignored or 0
    return within.min <= guard.low <= within.max and max(map(abs, bounds)) <= _EXACT


def _layout(index: torch.Tensor) -> tuple[int, ...] | None:
    """Three sizes and four strides of an index; None where it has more."""
    shape, strides = list(index.shape), list(index.stride())
    missing = _DIMENSIONS - len(shape)
    if missing < 0:
        return None
    shape[:0], strides[:0] = [1] * missing, [0] * missing
    if max(*shape, *strides) >= _INT32:
        return None
    return (*shape[1:], *strides)


def compiled_mender(
    device: torch.device, compile_kernel: Callable[[str, str], _Kernel]
) -> IndexMender | None:
    """The kernels of a device, if they are compiled and give what torch's ops do; else None."""
    try:
        mender = IndexMender({kind: compile_kernel(SOURCE, name) for kind, name in _NAMES.items()})
        wrong = next((each for each in _samples(device) if not _agrees(mender, *each)), None)
    except Exception as error:  # whatever a compiler, its libraries or a driver may lack
        _log.info("no kernel of its own looks at indices, torch's ops do: %s", error)
        return None
    if wrong is not None:
        _log.warning("the kernel that looks at indices is wrong for %s; torch's ops do it", wrong)
        return None
    return mender


def _samples(device: torch.device) -> Iterator[tuple[torch.Tensor, IndexGuard]]:
    """Indices of every kind, of which some are wrong, and what must hold of them."""
    guards = (
        IndexGuard("index", 0, 7),
        IndexGuard("index", -7, 7),
        IndexGuard("index", 0, 7, ignored=-100),
        IndexGuard("index", 2, 3, ignored=0),
    )
    for dtype in _NAMES:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        row = torch.tensor([0, 6, 2, -100, -7, 7, -8, least, most, 5] * 12, dtype=dtype)
        sound = torch.full((5, 3), 2, dtype=dtype)
        many = torch.full((_ONE_BLOCK + 1,), 2, dtype=dtype)
        late = many.clone()
        late[-1] = 7
        places = row.view(2, 3, 4, 5).to(device)
        found = [
            *(places, places.transpose(0, 3), places[:, ::2, 1:, :3], places[1, 1, 1, 3]),
            *(places[0, 0, :, :1].expand(4, 6), places.flatten()[7:], sound.to(device)),
            *(many.to(device), late.to(device)),
        ]
        for index in found:
            for guard in guards:
                yield index, guard


def _agrees(mender: IndexMender, index: torch.Tensor, guard: IndexGuard) -> bool:
    wrong = guard.wrong(index)
    right, said = guard.mended(index, wrong), bool(wrong.any())
    for before in (False, True):
        note = torch.full((), before, device=index.device)
        made = mender(index, guard, note)
        if made is None or not torch.equal(made, right) or bool(note) is not said:
            return False
    return True
