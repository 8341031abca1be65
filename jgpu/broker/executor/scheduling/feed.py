"""What was started and is on its way to the lanes.

Works are handed to a lane in batches, so that a burst of works costs one hand-over.
"""

from typing import TYPE_CHECKING

from jgpu.broker.executor.devices.base import Device, LaneJob
from jgpu.broker.executor.scheduling.trace import Stamped, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.works.base import Work

__all__ = ["LaneFeed"]


class LaneFeed:
    """Hands works to lanes."""

    def __init__(self, device: Device, trace: Trace | None) -> None:
        self._device = device
        self._trace = trace
        #: by lane, works that were started and not handed over
        self._starts: dict[int, list[Work]] = {}
        #: by lane, the session that was last given to it
        self._tails: dict[int, ExecutorSession] = {}

    def launch(self, session: "ExecutorSession", work: "Work", lane: int) -> None:
        """A lane is to have a session's oldest work that none has."""
        standing = session.standing
        session.queue.launch(work)
        work.began_at_boundary = standing.at_boundary
        standing.at_boundary = work.ends_iteration or (work.rides and standing.at_boundary)
        self._starts.setdefault(lane, []).append(work)
        self._tails[lane] = session

    def launch_again(self, lane: int, works: "Iterable[Work]") -> None:
        """A lane is to go on with works that it gave back."""
        self._starts.setdefault(lane, []).extend(works)

    def flush(self) -> None:
        """Hand what was started to the lanes."""
        while self._starts:
            lane, works = self._starts.popitem()
            jobs: list[LaneJob] = list(works) if self._trace is None else [*map(Stamped, works)]
            self._device.submit(lane, jobs)

    def tail(self, lane: int) -> "ExecutorSession | None":
        """The session that was last given to a lane."""
        return self._tails.get(lane)

    def give_up(self, lane: int) -> None:
        """A lane was given up."""
        self._tails.pop(lane, None)

    def forget(self, session: "ExecutorSession") -> None:
        """A session is gone."""
        if self._tails.get(session.standing.lane) is session:
            del self._tails[session.standing.lane]
