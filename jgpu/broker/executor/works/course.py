"""How far a session's lane has come in its works, and how it is stopped there.

A lane says what it begins, when it is at a program's ops, and when it leaves them. The pump stops
it in two ways. A session that has *ended* begins no op any more, and gives up at once what the op
in progress does not touch. An *interrupted* one stops before its next op too, unless its iteration
has written a resident buffer (a parameter, a module's buffer, an optimizer's state): then it goes
on to the iteration's end, for a model that was updated in part would be worse than a late answer.
Works of earlier cells are not concerned: what they were to write in place would be left out unseen.

On `cuda` a lane is through with a work when it was launched; it is stopped inside one only where
the work was put aside between two ops.

Invariant: lane and pump decide alike. A run that was stopped goes on exactly if the pump, when it
stopped it, left the rest of its iteration in the session's order.
"""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jgpu.broker.executor.programs import Buffer, Definition, Running, has_written_resident
from jgpu.broker.executor.works.states import LaneProgress

if TYPE_CHECKING:
    from jgpu.broker.executor.works.base import Work

__all__ = ["Course", "Passed"]

#: runs of an iteration that are kept to be looked at, before they are
_MOST_RUNS: Final = 64
#: how a lane leaves a work that it, or another, is to go on with
_UNDONE: Final = frozenset({LaneProgress.HALTED, LaneProgress.PAUSED})


class Passed(Struct, frozen=True, gc=False):  # a named tuple takes two calls to make
    """What the pump did at once, of which nothing was in the order of works."""

    number: int
    ends_iteration: bool
    progress: LaneProgress = LaneProgress.BEGUN


class Course:
    """One session's; the lane that has the session and the pump share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: the work that the lane is at
        self._work: Work | None = None
        #: the ops that it is at
        self._running: Running | None = None
        #: the work that was begun last
        self._latest: Work | Passed | None = None
        #: runs of this iteration that write some input: program, inputs, ops done
        self._runs: list[tuple[Definition, Sequence[Buffer], int]] = []
        #: some other of this iteration's has written a resident buffer
        self._wrote = False
        self._cancelling = False
        #: works up to this number are not concerned by the interrupt
        self._since = 0
        #: an interrupt was told that the iteration is not finished
        self._cut = False
        self._ended = False
        #: a launched work that waits for memory in its midst; nothing of the session runs before it
        self.halted: Work | None = None

    # -- the lane ----------------------------------------------------------------------------

    def begin(self, work: "Work") -> bool:
        """Whether the lane may begin the work, or go on with it."""
        with self._lock:
            if self._ended or work.taken:
                return False
            latest = self._latest
            if latest is not work and latest is not None and latest.ends_iteration:
                self._begin_iteration()
            self._latest = self._work = work
            return True

    def begin_reply(self, work: "Work") -> bool:
        """Whether the lane may reply to a work that it has begun, and may touch its buffers."""
        with self._lock:
            if self._ended or work.taken:
                return False
            self._work = work
            return True

    def end(self) -> None:
        """The lane is at no work of the session."""
        with self._lock:
            self._work = None

    def enter(self, running: Running) -> bool:
        """Whether ops of a run may be done from here on."""
        with self._lock:
            if self._ended or (self._cancelling and self._stops()):
                return False
            self._running = running
            return True

    def may_enter(self) -> bool:
        """As `enter`, of a run that nobody can stop: the pump itself does its ops."""
        with self._lock:
            return not (self._ended or (self._cancelling and self._stops()))

    def passed(
        self, passed: Passed, definition: Definition | None, buffers: Sequence[Buffer]
    ) -> None:
        """The pump has done something at once; a run has a definition, and `buffers` it was of."""
        with self._lock:
            if self._latest is not None and self._latest.ends_iteration:
                self._begin_iteration()
            self._latest = passed
            if definition is not None and definition.plan.written:
                self._keep(definition, buffers, definition.ops)

    def leave(self, definition: Definition, buffers: Sequence[Buffer], done: int) -> bool:
        """The lane is past so many ops of a run; returns whether their results are wanted."""
        with self._lock:
            self._running = None
            if definition.plan.written and done:
                self._keep(definition, buffers, done)
            return not self._ended

    # -- the pump ----------------------------------------------------------------------------

    @property
    def stops(self) -> bool:
        """Whether a run of this session that waits in its midst is to be left there."""
        with self._lock:
            return self._ended or self._stops()

    def interrupt(self, works: Sequence["Work"], since: int = 0) -> int:
        """Stop the session's unfinished works after number `since`; these are all, in order.

        Returns the number of those that go on, or end by themselves; all others are marked as taken
        back, and no lane begins them.
        """
        with self._lock:
            self._cancelling, self._since = True, since
            latest = self._latest
            begun = next((k for k, work in enumerate(works, 1) if work is latest), 0)
            older = sum(work.number <= since for work in works)
            if older and older >= begun:
                begun = older
            elif self._is_half_done():
                at = max(0, begun - 1)
                while at < len(works) and not works[at].ends_iteration:
                    at += 1
                begun = min(at + 1, len(works))
            else:
                self._cut = True
            for work in works[begun:]:
                work.taken = True
            return begun

    def resume(self) -> bool:
        """What was interrupted is over; returns whether its iteration was cut short."""
        with self._lock:
            self._cancelling = False
            cut, self._cut = self._cut, False
            if cut:
                self._latest = None
                self._begin_iteration()
            return cut

    def end_iteration(self) -> None:
        """The next work begins an iteration; the lane is at none."""
        with self._lock:
            self._latest = None
            self._begin_iteration()

    def abandon(self, free: Callable[[Running | None, int], None]) -> None:
        """The session has ended: stop it, and free what is not in use.

        `free(running, begun)` is called with a run that is in its midst and how many of its ops
        have begun, or with (None, 0) where the lane is at nothing of the session. It is not called
        where the lane is at something else, which is soon over; ask again then.
        """
        with self._lock:
            self._ended = True
            if self._running is not None:
                begun = self._running.stop()
                if begun:
                    free(self._running, begun)
            elif self._work is None:
                free(None, 0)

    # -- inside, under the lock --------------------------------------------------------------

    def _keep(self, definition: Definition, buffers: Sequence[Buffer], done: int) -> None:
        self._runs.append((definition, buffers, done))
        if len(self._runs) > _MOST_RUNS:
            self._look_at_runs()

    def _begin_iteration(self) -> None:
        self._runs.clear()
        self._wrote = False

    def _stops(self) -> bool:
        at = self._work or self._latest
        concerned = self._cancelling and (at is None or at.number > self._since)
        return concerned and not self._has_written()

    def _has_written(self) -> bool:
        if self._runs:
            self._look_at_runs()
        return self._wrote

    def _look_at_runs(self) -> None:
        # Only here, for few sessions are ever interrupted.
        self._wrote = self._wrote or any(
            has_written_resident(definition.plan, buffers, done)
            for definition, buffers, done in self._runs
        )
        self._runs.clear()

    def _is_half_done(self) -> bool:
        """Whether the iteration must be finished; else the run that the lane is at is stopped."""
        latest = self._latest
        if latest is None:
            return False
        is_over = self._work is None and latest.progress not in _UNDONE
        if is_over and latest.ends_iteration:
            return False
        if self._has_written():
            return True
        running = self._running
        if running is not None and running.has_written_resident(running.stop()):
            self._wrote = True
        return self._wrote
