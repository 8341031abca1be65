"""The works of a session in their order, from the message that brought them until they are done.

A work is *received*, *offered* to the scheduler, and *launched* when the scheduler starts it. What
comes behind an interrupt that is not over is *held*; what an interrupt takes back is *cancelled*,
and has its effects when no lane has anything of the session. Only the pump uses a queue.

Invariant: launched works are the oldest, works finish in their order, `nbytes` is the sum of what
waits, and `outstanding` its count.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.works.states import WorkProgress
from jgpu.errors import ProtocolError
from jgpu.wire import messages

if TYPE_CHECKING:
    from jgpu.broker.executor.works.base import Work

__all__ = ["ProgressReports", "WorkQueue"]

_OFFERED: Final = WorkProgress.OFFERED
_LAUNCHED: Final = WorkProgress.LAUNCHED
_DONE: Final = WorkProgress.DONE


class WorkQueue:
    """One session's."""

    __slots__ = (
        "cancel_requests",
        "cancelled",
        "held",
        "launched",
        "nbytes",
        "next_number",
        "notes",
        "notes_bytes",
        "offered",
        "outstanding",
        "received",
    )

    def __init__(self, next_number: int = 1) -> None:
        #: works received and not yet offered to the scheduler, in order
        self.received: deque[Work] = deque()
        #: works that the scheduler knows, in order; launched ones come first
        self.offered: deque[Work] = deque()
        #: number of works in `offered` that a lane has
        self.launched = 0
        #: works that came after a Cancel that is not over
        self.held: list[Work] = []
        #: sum of `nbytes` of the works in `received`, `offered` and `held`
        self.nbytes = 0
        #: works received and not done: in `received`, `offered` and `held`
        self.outstanding = 0
        #: number that the next work must have; 0 where the first one may have any
        self.next_number = next_number
        #: `Free` and `Tag` received after the last work
        self.notes: list[messages.Free | messages.Tag] = []
        #: bytes of those, roughly
        self.notes_bytes = 0
        #: works taken back, whose effects wait for the launched ones, and requests to be told then
        self.cancelled: list[Work] = []
        self.cancel_requests: list[int] = []

    # -- what comes --------------------------------------------------------------------------

    def accept(self, work: "Work") -> None:
        """Put a work at the end of the order; `ProtocolError` if its number is not the next."""
        if work.is_numbered:
            self.count(work)
        work.before, self.notes = self.notes, []
        work.nbytes += self.notes_bytes
        self.notes_bytes = 0
        (self.held if self.cancel_requests else self.received).append(work)
        self.nbytes += work.nbytes
        self.outstanding += 1

    def count(self, work: "Work") -> None:
        """Works are numbered without gaps; `ProtocolError` if this is not the next."""
        if self.next_number and work.number != self.next_number:
            raise ProtocolError(f"Work {work.number} came where {self.next_number} was due.")
        self.next_number = work.number + 1

    def note(self, message: messages.Free | messages.Tag) -> None:
        """Remember what is to be done after the works before it."""
        self.notes.append(message)
        self.notes_bytes += 64 + 8 * len(message.buffers)

    # -- the scheduler and the lanes ---------------------------------------------------------

    def offer_next(self) -> "Work | None":
        """The next work that the scheduler may be told of, taken out of `received`."""
        if not self.received or not self.received[0].ready:
            return None
        work = self.received.popleft()
        work.state = _OFFERED
        self.offered.append(work)
        return work

    def launch(self, work: "Work") -> None:
        """A lane is given the oldest work that none has."""
        work.state = _LAUNCHED
        self.launched += 1

    def unlaunch(self, work: "Work", *, dropped: bool) -> None:
        """The youngest of the works that a lane had is back, and nothing of it has happened."""
        assert self.offered[self.launched - 1] is work
        self.launched -= 1
        if not dropped:
            work.state = WorkProgress.OFFERED
            return
        work.state = WorkProgress.CANCELLED
        self.offered.remove(work)
        self.nbytes -= work.nbytes
        self.outstanding -= 1

    def complete(self, work: "Work") -> None:
        """A lane is through with a work, always the oldest one."""
        oldest = self.offered.popleft()
        assert oldest is work, "works of a session finish in order"
        work.state = _DONE
        self.launched -= 1
        self.nbytes -= work.nbytes
        self.outstanding -= 1

    # -- what does not run -------------------------------------------------------------------

    def cancel_oldest(self) -> "Work":
        """Take the oldest work out, which was not launched."""
        work = self.offered.popleft()
        self.nbytes -= work.nbytes
        self.outstanding -= 1
        work.state = WorkProgress.CANCELLED
        return work

    def begin_cancel(self, request: int, taken: list["Work"]) -> list["Work"]:
        """Take back the youngest works; returns those of them that were offered and not launched.

        Launched ones stay in the order, for a lane has them; it skips them.
        """
        self.cancel_requests.append(request)
        known = [work for work in taken if work.state is WorkProgress.OFFERED]
        waiting = [work for work in taken if work.state is not WorkProgress.LAUNCHED]
        for work in waiting:
            self.nbytes -= work.nbytes
            work.state = WorkProgress.CANCELLED
        self.outstanding -= len(waiting)
        for _ in known:
            self.offered.pop()
        for _ in range(len(waiting) - len(known)):
            self.received.pop()
        self.cancelled.extend(taken)
        return known

    def finish_cancel(self) -> tuple[list["Work"], list[int]]:
        """What was taken back, and the requests to be told; what was held is received now."""
        taken, self.cancelled = self.cancelled, []
        requests, self.cancel_requests = self.cancel_requests, []
        self.received.extend(self.held)
        self.held.clear()
        return taken, requests

    def drop_waiting(self) -> list["Work"]:
        """The session ends: keep what was launched; returns what the scheduler knew beside it."""
        dropped = []
        while len(self.offered) > self.launched:
            dropped.append(self.offered.pop())
        self.received.clear()
        self.held.clear()
        self.nbytes = sum(work.nbytes for work in self.offered)
        self.outstanding = len(self.offered)
        return dropped

    def validate(self) -> None:
        """Check what must always hold; not while a lane has something of the session."""
        works = [*self.offered, *self.received, *self.held]
        assert self.nbytes == sum(work.nbytes for work in works)
        assert self.outstanding == len(works)
        states = [work.state for work in self.offered]
        assert set(states[: self.launched]) <= {WorkProgress.LAUNCHED}
        assert set(states[self.launched :]) <= {WorkProgress.OFFERED}
        waiting = {work.state for work in (*self.received, *self.held)}
        assert waiting <= {WorkProgress.RECEIVED}
        for work in works[self.launched :]:  # a lane may just be at the others
            work.validate()
        assert self.cancel_requests or not (self.held or self.cancelled)
        numbers = [work.number for work in works]
        assert numbers == sorted(numbers)
        numbered = [work.number for work in works if work.is_numbered]
        assert len(numbered) == len(set(numbered))


class ProgressReports:
    """Tells a client that asked how far its works are, so that it need not record far ahead."""

    __slots__ = ("_every", "_number", "_ops", "_send")

    def __init__(self, send: Callable[[messages.WorksDone], None]) -> None:
        self._send = send
        #: ops between two reports; 0: none are wanted
        self._every = 0
        #: ops done since the last report, and the number of the last work that is done
        self._ops = self._number = 0

    def ask(self, every: int) -> None:
        """Report now, and then each so many ops."""
        self._every = every
        self._report()

    def note(self, number: int, ops: int) -> None:
        """The work of this number is done, and all before it are."""
        self._number = number
        if self._every:
            self._ops += ops
            if self._ops >= self._every:
                self._report()

    def _report(self) -> None:
        self._ops = 0
        self._send(messages.WorksDone(self._number))
