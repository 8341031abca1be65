"""Waking the pump from other threads, at most once per sleep.

A lane that wakes the pump keeps the interpreter's lock. It has its next job, or is about to wait
and gives the lock up anyway; else the pump would take the lock in between, and a job that was there
already would begin when the pump has dealt with everything.
"""

import ctypes
import os
from typing import Final

__all__ = ["Wake"]

# Of `PyDLL`, whose functions keep the lock: `os.eventfd_write` gives it up around a call that never
# waits.
_write: Final = ctypes.PyDLL(None, use_errno=True).eventfd_write
_ONE: Final = ctypes.c_uint64(1)


class Wake:
    """An eventfd that is written only where nobody wrote it since the pump last looked.

    It is to be watched edge-triggered and is never read: a read gives up the interpreter's lock,
    which another thread may then keep for long.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._to = ctypes.c_int(self.fd)
        self._signalled = False

    def signal(self) -> None:
        """Make the descriptor readable anew. Any thread."""
        if not self._signalled:
            self._signalled = True
            if _write(self._to, _ONE):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))

    def clear(self) -> None:
        """The pump is awake and looks at everything after this call."""
        self._signalled = False

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
