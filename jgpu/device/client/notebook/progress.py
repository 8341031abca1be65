"""Where the notebook is, told to the broker: cells, iterations, and how many a loop has left.

What is lost meanwhile is told at the next use of the device, not here.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jgpu import errors
from jgpu.device.client.notebook.loops import Loops
from jgpu.wire import messages as m

if TYPE_CHECKING:
    from jgpu.device.client.session import ClientSession

__all__ = ["NotebookProgress"]


class NotebookProgress:
    """Speaks for the notebook by its session."""

    def __init__(self, session: "ClientSession") -> None:
        self._session = session
        #: how many iterations the notebook's loops will still do
        self.loops = Loops()

    def begin_cell(self, name: str) -> None:
        """A notebook cell begins: what Ctrl-C takes back is counted from here on."""
        session = self._session
        session.log.forget_frame()
        self.loops.forget()
        session.waits.forget()
        with suppress(errors.JgpuError):
            session.notify(m.CellStarted(name))
        session.outbox.before_cell = session.outbox.work

    def finish_cell(self, result: Any) -> None:
        """A notebook cell ended: what was recorded goes out, what was forgotten is freed."""
        session = self._session
        session.log.forget_frame()
        if not session.is_connected:
            return
        with suppress(errors.JgpuError):
            session.cut(ends_iteration=True)
            session.release()
            session.notify(m.CellEnded(failed=not getattr(result, "success", True)))

    def boundary(self) -> None:
        """An iteration ends here (an optimizer's step)."""
        self._session.cut(ends_iteration=True)
        left = self.loops.at_boundary(sys._getframe(1))
        if left is not None:
            self._session.notify(m.Loop(left))
