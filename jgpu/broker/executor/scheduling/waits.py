"""What a notebook is told while its work waits.

Turns change often, so it is told only when it has waited for a while.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jgpu.wire import messages

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["WaitNotice", "say_why"]

_DRAINING: Final = (
    "The shared device begins nothing new for now: its administrator is about to stop it, or to "
    "change something. This cell waits, and goes on when that is over. If the broker is stopped "
    "meanwhile, what is on the device is lost, and the cell says so."
)


@dataclass(slots=True)
class WaitNotice:
    """What one session waits for, and what its notebook was told of that."""

    #: users for whom it waits
    users: tuple[str, ...] = ()
    #: its notebook was told of them
    is_told: bool = False
    #: its notebook was told that it waits because the device is being drained
    drain_is_told: bool = False

    def wait_for(self, users: tuple[str, ...]) -> None:
        """It waits for others than it did."""
        self.users, self.is_told = users, False

    def begin_anew(self) -> None:
        """Draining begins or ends: what was told before is old."""
        self.is_told = self.drain_is_told = False


def say_why(session: "ExecutorSession", *, draining: bool) -> None:
    """Say once why a session that has work waits: for whom, or because nothing new begins."""
    if not (session.quiet and session.queue.offered):
        return
    notice = session.wait
    if draining:
        if not notice.drain_is_told:
            notice.drain_is_told = True
            session.send(messages.Notice(_DRAINING))
    elif notice.users and not notice.is_told:
        notice.is_told = True
        session.send(messages.Waiting(notice.users))
