"""Runs the clients of a recording (`replay`) on a simulated device.

The rule: a client's steps stay in their order, and none comes before what it waited for has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched import events
from jgpu.sched.core import Core
from jgpu.sched.simulate.clock import Clock
from jgpu.sched.simulate.device import Hardware, SimulatedDevice
from jgpu.sched.simulate.jobs import JobMemory
from jgpu.sched.simulate.loop import LoopPace
from jgpu.sched.simulate.replay import cell_times

if TYPE_CHECKING:
    from jgpu.sched.simulate.device import Sent
    from jgpu.sched.simulate.replay import Recording, ReplayStep, Script
    from jgpu.sched.simulate.results import SimulatedCell

__all__ = ["replayed_cells"]


class _Player:
    """One client."""

    def __init__(
        self, clock: Clock, device: SimulatedDevice, script: Script, load: float, idle_s: float
    ) -> None:
        self._clock = clock
        self._device = device
        self._script = script
        self._load = load
        self._idle_s = idle_s
        self._next = 0
        self._step_s = 0.0
        #: when each work of the script ended; works end in their order
        self._ended_s: list[float] = []
        self._sent = 0
        self._works: list[int] = []
        self._held = False
        #: what was told, as in a recording; a work's id is its place in the script
        self.told: list[tuple[float, events.Event]] = []
        self._plan()

    @property
    def ended_s(self) -> dict[int, float]:
        """When each work ended, by its id in the recording."""
        return dict(zip(self._works, self._ended_s, strict=False))

    def _plan(self) -> None:
        """Ask for the next step at its time, once that is known."""
        self._held = False
        if self._next == len(self._script.steps):
            return
        step = self._script.steps[self._next]
        if step.after >= len(self._ended_s):
            self._held = True
            return
        since_s = self._step_s
        if step.after >= 0:
            since_s = max(since_s, self._ended_s[step.after])
        self._clock.at(since_s + step.gap_s, self._do, step)

    def _do(self, step: ReplayStep) -> None:
        self._next += 1
        self._step_s = self._clock.now
        event = step.event
        self.told.append((self._clock.now, event))
        if isinstance(event, events.WorkArrived):
            self._send(event, step)
        elif isinstance(event, events.MemoryMeasured):
            kept = event.kept + event.spilled
            self._device.measure(event.session, JobMemory(event.resident, kept, event.transient))
        else:
            self._device.tell(event)
        self._plan()

    def _send(self, event: events.WorkArrived, step: ReplayStep) -> None:
        if step.seconds:
            self._sent += 1
            self._works.append(event.work)
        self._device.send(
            event.session,
            step.seconds,
            ends=event.ends_iteration,
            load=self._load,
            done=self._done,
            predicted_s=[segment.predicted_s for segment in event.segments],
            live=[segment.live_bytes for segment in event.segments],
        )

    def _done(self, work: Sent) -> None:
        self._ended_s.append(self._clock.now)
        if self._held:
            self._plan()
        if len(self._ended_s) == self._sent:
            self._clock.after(self._idle_s, self._rest, self._sent)

    def _rest(self, sent: int) -> None:
        if sent == self._sent == len(self._ended_s):
            self._device.tell(events.SessionIdle(self._script.session))


def replayed_cells(
    recording: Recording, policy: str = "", lanes: int = 0, capacity: int = 0
) -> tuple[tuple[SimulatedCell, ...], SimulatedDevice]:
    """Run a recording again, with what was recorded unless something else is asked for.

    Returns the times of its cells and the device as it is after the last.
    """
    clock = Clock()
    lanes = lanes or recording.lanes
    hardware = Hardware(lanes=lanes, capacity=capacity or recording.capacity, look_s=0.25)
    core = Core(policy or recording.policy, recording.limits)
    device = SimulatedDevice(clock, core, hardware)
    # What was measured beside neighbours in other lanes holds their slowing already.
    load = 1 / recording.lanes
    players = [
        _Player(clock, device, script, load, LoopPace().idle_s) for script in recording.scripts
    ]
    clock.run()
    told = sorted(
        ((now, n, event) for n, each in enumerate(players) for now, event in each.told),
        key=lambda each: each[:2],
    )
    ended_s = {work: end for player in players for work, end in player.ended_s.items()}
    return cell_times([(now, event) for now, _, event in told], ended_s), device
