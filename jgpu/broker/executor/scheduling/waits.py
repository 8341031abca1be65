"""What a notebook is told while its work waits.

Turns change often, so it is told only when it has waited for a while.
"""

from typing import Final

from jgpu.broker.executor.session import ExecutorSession
from jgpu.wire import messages

__all__ = ["say_why"]

_DRAINING: Final = (
    "The shared device begins nothing new for now: its administrator is about to stop it, or to "
    "change something. This cell waits, and goes on when that is over. If the broker is stopped "
    "meanwhile, what is on the device is lost, and the cell says so."
)


def say_why(session: ExecutorSession, *, draining: bool) -> None:
    """Say once why a session that has work waits: for whom, or because nothing new begins."""
    if not (session.quiet and session.offered):
        return
    if draining:
        if not session.drain_told:
            session.drain_told = True
            session.send(messages.Notice(_DRAINING))
    elif session.waits_for and not session.wait_told:
        session.wait_told = True
        session.send(messages.Waiting(session.waits_for))
