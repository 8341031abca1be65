"""Works that did not get their memory in their midst, launched again when there may be some.

What works need is counted before they are started. That an allocation fails all the same happens
where free memory is in pieces, where a kernel wants more than was ever seen of it, or where another
process takes of what was counted on. The work then stops at the op that failed, what lies behind it
of its session waits, sessions that rest give up what they keep, and it goes on at that op (a rerun
would repeat updates in place). Where nobody has anything to give, the op fails with the
allocator's words.

Invariant: the works of a session run in their order, each op of them once.
"""

from collections.abc import Callable, Iterable

from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.works.base import Work

__all__ = ["Shortage"]


class Shortage:
    """The works of all sessions that came back from their lanes unfinished."""

    def __init__(
        self,
        make_room: Callable[[ExecutorSession, int], None],
        copying: Callable[[], bool],
        launch: Callable[[int, list[Work]], None],
    ) -> None:
        """Take what it acts by.

        `make_room(session, nbytes)` asks others to give memory up; `copying()` says whether any is
        on its way; `launch(lane, works)` gives works to a lane again.
        """
        self._make_room = make_room
        self._copying = copying
        self._launch = launch
        #: by session, oldest first
        self._back: dict[int, list[Work]] = {}

    def comes_back(self, work: Work) -> None:
        """A lane is through with a work that waits: it lacked memory, or is behind one that did."""
        session = work.session
        self._back.setdefault(session.number, []).append(work)
        work.earlier_s += work.measured_s
        if work.lacking and not session.stops:
            self._make_room(session, work.lacking)
            work.last_try = not self._copying()
        self.retry([session])

    def retry(self, sessions: Iterable[ExecutorSession]) -> None:
        """Launch again what came back, where all of a session has and no memory is on its way."""
        for session in sessions:
            works = self._back.get(session.number)
            if works is None or len(works) < session.queue.launched:
                continue
            waits = not works[0].last_try and not session.stops
            if waits and self._copying():
                continue
            del self._back[session.number]
            session.course.halted = None
            for work in works:
                work.launch_again()
            self._launch(session.standing.lane, works)
