"""Waking the pump from other threads, at most once per sleep."""

import os

__all__ = ["Wake"]


class Wake:
    """An eventfd that is written only where nobody wrote it since the pump last looked.

    It is to be watched edge-triggered and is never read: a read gives up the interpreter's lock,
    which another thread may then keep for long.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signalled = False

    def signal(self) -> None:
        """Make the descriptor readable anew. Any thread."""
        if not self._signalled:
            self._signalled = True
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """The pump is awake and looks at everything after this call."""
        self._signalled = False

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
