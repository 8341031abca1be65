"""Telling the core what happened, each event once, and having done what it decides.

Mostly the core hears of a work first, and starts it. There is a short way for brief work of
somebody who has the device to themselves, about which there is nothing to decide: the core says
beforehand in which lane it would start at once (`Core.would_start`), the device that it would be
over when it is submitted. It runs, and the core hears of it afterwards, as of something that
arrived when it began, so that it charges the time that it took. Whoever waits for a value is
answered before that.

Invariant: the core hears of what ran first before it hears of anything else, and starts it where it
ran.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.scheduling.feed import LaneFeed
from jgpu.sched import Core, actions, events
from jgpu.sched.reports.recording import EventRecorder

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.works.base import Work

__all__ = ["CoreTeller", "arrival"]


class CoreTeller:
    """Tells the core; `handlers` do what it decides, by the kind of action."""

    def __init__(
        self,
        core: Core,
        clock: Callable[[], float],
        handlers: Mapping[type, Callable[[Any], None]],
        recorder: EventRecorder | None = None,
    ) -> None:
        self._core = core
        self._clock = clock
        self._handlers = handlers
        self._recorder = recorder
        #: the core's numbers of works, to be taken from
        self.keys = count(1)
        #: tells of what ran first and of which the core has not heard
        self.untold: Callable[[], None] | None = None

    def tell(self, event: events.Event) -> None:
        """Something happened just now."""
        if self.untold is not None:
            self.catch_up()
        self._tell_at(event, self._clock())

    def tell_of(self, event: events.WorkArrived, began: float, lane: int) -> int:
        """Something that is over arrived when it began; returns the lease that it ran under."""
        epoch = -1
        if self._recorder is not None:
            self._recorder.note(event, began)
        for action in self._core.handle(event, began):
            if type(action) is actions.Start and action.work == event.work:
                assert action.lane == lane, "it is started where it ran"
                epoch = action.epoch
            else:
                self._handlers[type(action)](action)
        assert epoch >= 0, "it is started where it ran"
        return epoch

    def tell_ran(self, event: events.WorkRan, began: float) -> None:
        """Something that is over began then, and there was nothing to decide about it."""
        if self._recorder is not None:
            self._recorder.note(event, began)
        for action in self._core.handle(event, began):
            self._handlers[type(action)](action)

    def catch_up(self) -> None:
        """Tell the core of what ran first, if anything did."""
        if self.untold is not None:
            untold, self.untold = self.untold, None
            untold()

    def _tell_of_work(self, work: "Work", began: float) -> None:
        started = self._tell_at(arrival(work), began)
        assert (work.key, work.session.standing.lane) in started, "it is started where it ran"

    def run_first(
        self, session: "ExecutorSession", work: "Work", device: Device, feed: LaneFeed
    ) -> bool:
        """Run a work that was just offered, if nothing could come of telling the core first."""
        if not self._may_run_first(session, work, device, feed):
            return False
        self.run_now(session, work, feed)
        return True

    def run_now(self, session: "ExecutorSession", work: "Work", feed: LaneFeed) -> None:
        """Run a work that was just offered in the lane that its session was in last."""
        lane = session.standing.lane
        self.untold = partial(self._tell_of_work, work, self._clock())
        session.standing.riders = 0
        if not feed.launch_at_once(session, work, lane):
            feed.launch(session, work, lane)
            feed.flush()

    def _may_run_first(
        self, session: "ExecutorSession", work: "Work", device: Device, feed: LaneFeed
    ) -> bool:
        lane = session.standing.lane
        return (
            self.untold is None
            and feed.trials.quiet
            and len(session.queue.offered) == 1
            and not session.movement.is_copying
            and not session.table.away
            and device.does_at_once(lane, [work])
            and self._core.would_start(session.number, work.claim) == lane
        )

    def _tell_at(self, event: events.Event, moment: float) -> list[tuple[int, int]]:
        """Returns the works that the core started, each with its lane."""
        if self._recorder is not None:
            self._recorder.note(event, moment)
        started = []
        for action in self._core.handle(event, moment):
            self._handlers[type(action)](action)
            if type(action) is actions.Start:
                started.append((action.work, action.lane))
        return started


def arrival(work: "Work") -> events.WorkArrived:
    """What the core is told of a work, with what is predicted of it."""
    segment = (events.Segment(work.predicted_s(), work.claim),)
    return events.WorkArrived(work.session.number, work.key, segment, work.ends_iteration)
