"""Waking the pump from other threads, at most once per sleep."""

import contextlib
import os

__all__ = ["Wake"]


class Wake:
    """An eventfd that is written only where nobody wrote it since the pump last looked."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signalled = False

    def signal(self) -> None:
        """Make the descriptor readable. Any thread."""
        if not self._signalled:
            self._signalled = True
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """The pump is awake and looks at everything after this call."""
        if self._signalled:
            # First the flag: a signal that comes in between makes one wake-up too many, never
            # one too few.
            self._signalled = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.fd)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
