"""What was started and is on its way to the lanes.

Works are handed to a lane in batches, so that a burst of works costs one hand-over. While a program
is tried (`trials`) the others stay here.
"""

from typing import TYPE_CHECKING

from jgpu.broker.executor.devices.base import Device, LaneJob
from jgpu.broker.executor.scheduling.trace import Stamped, Trace
from jgpu.broker.executor.scheduling.trials import Trials

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.works.base import Work

__all__ = ["LaneFeed"]


class LaneFeed:
    """Hands works to lanes."""

    def __init__(self, device: Device, trace: Trace | None, trials: Trials) -> None:
        self._device = device
        self.trace = trace
        self.trials = trials
        #: by lane, works that were started and not handed over
        self.starts: dict[int, list[Work]] = {}
        #: by lane, the session that was last given to it
        self._tails: dict[int, ExecutorSession] = {}

    @property
    def is_traced(self) -> bool:
        """Whether it is written down when each work ran."""
        return self.trace is not None

    def launch(self, session: "ExecutorSession", work: "Work", lane: int) -> None:
        """A lane is to have a session's oldest work that none has."""
        self._note(session, work, lane)
        self.starts.setdefault(lane, []).append(work)

    def launch_at_once(self, session: "ExecutorSession", work: "Work", lane: int) -> bool:
        """Have a lane do it now, as `Device.does_at_once` says it would; False behind others."""
        if self.starts:
            return False
        self._note(session, work, lane)
        self.trials.given(lane)
        job: LaneJob = work if self.trace is None else Stamped(work)
        self._device.do_at_once(lane, [job])
        return True

    def _note(self, session: "ExecutorSession", work: "Work", lane: int) -> None:
        standing = session.standing
        session.queue.launch(work)
        work.began_at_boundary = standing.at_boundary
        standing.at_boundary = work.ends_iteration or (work.rides and standing.at_boundary)
        self._tails[lane] = session

    def launch_again(self, lane: int, works: "Iterable[Work]") -> None:
        """A lane is to go on with works that it gave back."""
        self.starts.setdefault(lane, []).extend(works)

    def flush(self, *, at_once: bool = False) -> None:
        """Hand what was started to the lanes; `at_once`: whoever is tried meanwhile."""
        if not self.starts:
            return
        trials = self.trials
        if not trials.quiet and not at_once:
            self._flush_as_admitted()
            return
        while self.starts:
            lane, works = self.starts.popitem()
            for _ in works:
                trials.given(lane)
            self._submit(lane, works)

    def _flush_as_admitted(self) -> None:
        for lane in list(self.starts):
            works = self.starts.pop(lane)
            count = 0
            while count < len(works) and self.trials.admits(lane, works[count]):
                count += 1
            if works[count:]:
                self.starts[lane] = works[count:]
            if count:
                self._submit(lane, works[:count])

    def _submit(self, lane: int, works: "list[Work]") -> None:
        jobs: list[LaneJob] = list(works) if self.trace is None else [*map(Stamped, works)]
        self._device.submit(lane, jobs)

    def over(self, lane: int, work: "Work") -> None:
        """A lane is through with a work, or gives it back."""
        self.trials.over(lane, work)

    def tail(self, lane: int) -> "ExecutorSession | None":
        """The session that was last given to a lane."""
        return self._tails.get(lane)

    def give_up(self, lane: int) -> None:
        """A lane was given up."""
        self._tails.pop(lane, None)
        self.trials.give_up(lane)

    def forget(self, session: "ExecutorSession") -> None:
        """A session is gone."""
        if self._tails.get(session.standing.lane) is session:
            del self._tails[session.standing.lane]
