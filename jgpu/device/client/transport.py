"""What the client asks of a connection: messages out in order, messages in, shared memory.

`link.Link` is the one that notebooks have. Tests have a pair in memory, one end of which is an
executor's that says what the test says.
"""

from collections import deque
from typing import Protocol

from jgpu.wire import messages as m
from jgpu.wire.arena import Arena

__all__ = ["Transport"]


class Transport(Protocol):
    """One end of an open connection; what fails raises `DeviceLost`."""

    arena: Arena
    welcome: m.Welcome
    #: messages that arrived and were not dealt with yet
    inbox: deque[m.ExecutorMessage]
    #: bytes sent since the start
    sent: int

    @property
    def waited(self) -> float:
        """Seconds that this end has waited for the other so far."""

    def queue(self, message: m.ClientMessage) -> None:
        """Take a message, to be sent behind those already queued."""

    def send_now(self) -> bool:
        """Send what can be sent without waiting; whether that was all."""

    def flush(self) -> None:
        """Send all that is queued."""

    def receive(self, timeout_s: float = 0.0) -> None:
        """Put what is there into `inbox`, waiting up to `timeout_s` for the first of it."""

    def resync(self, epoch: int) -> None:
        """Begin the stream anew, as the other end asks."""

    def begin_anew(self) -> None:
        """The other end is another executor, which knows nothing."""

    def close(self) -> None:
        """End the connection."""
