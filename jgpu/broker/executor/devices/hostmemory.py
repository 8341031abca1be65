"""How the C library keeps the memory that tensors of the `cpu` device give back.

Left alone, glibc maps every large tensor anew and unmaps it when it goes: each step of a training
then pays for thousands of page faults (a fifth of a 30 ms step of a small CNN). Here freed memory
stays for the next tensor, as torch's caching allocator does it on a GPU, and goes back to the
machine when all sessions rest.

Where the C library is another, nothing changes.
"""

import ctypes
from typing import Final

__all__ = ["give_back", "keep"]

# From <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_MAX: Final = -4
_M_ARENA_MAX: Final = -8
_NEVER: Final = -1
#: bytes by which the heap grows at least
_PAD: Final = 64 << 20


def keep() -> None:
    """Take all memory from one heap that only grows; call before threads are started."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    for option, value in (
        (_M_ARENA_MAX, 1),  # the arenas of other threads hold nothing large
        (_M_MMAP_MAX, 0),
        (_M_TRIM_THRESHOLD, _NEVER),
        (_M_TOP_PAD, _PAD),
    ):
        library.mallopt(option, value)


def give_back() -> None:
    """Give the pages of all freed memory back to the machine; may take milliseconds."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
