"""A client that answers requests: each is a short job, come when it comes, one at a time.

The rule: requests do not wait for each other's senders (an open loop), so load beyond what the
device can do shows as a queue that grows.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from jgpu.sched import events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jgpu.sched.simulate.clock import Clock
    from jgpu.sched.simulate.device import Sent, SimulatedDevice

__all__ = ["Server"]


class Server:
    """A model that is kept and asked."""

    def __init__(
        self,
        clock: Clock,
        device: SimulatedDevice,
        session: int,
        user: str,
        programs: Sequence[float],
        arrivals: Sequence[float],
    ) -> None:
        """Have requests come at `arrivals`; each runs `programs`, of so many seconds alone."""
        self._clock = clock
        self._device = device
        self._session = session
        self._programs = programs
        self._waiting: deque[float] = deque()
        self._left = 0
        #: seconds from a request's arrival to its answer
        self.latencies: list[float] = []
        device.tell(events.SessionOpened(session, user))
        for arrival in arrivals:
            clock.at(arrival, self._comes, arrival)

    def _comes(self, arrival: float) -> None:
        self._waiting.append(arrival)
        if not self._left:
            self._answer()

    def _answer(self) -> None:
        self._left = len(self._programs)
        self._device.tell(events.CellStarted(self._session))
        self._device.tell(events.LoopTold(self._session, 1, sum(self._programs)))
        for number, seconds in enumerate(self._programs, start=1):
            self._device.send(
                self._session,
                (seconds,),
                ends=number == len(self._programs),
                load=1.0,
                done=self._done,
            )

    def _done(self, work: Sent) -> None:
        del work
        self._left -= 1
        if self._left:
            return
        self._device.tell(events.CellEnded(self._session))
        self.latencies.append(self._clock.now - self._waiting.popleft())
        if self._waiting:
            self._answer()
