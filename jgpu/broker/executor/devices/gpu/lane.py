"""One stream of the `cuda` device, and the jobs that are on it or wait for it.

A job is launched when it is submitted, unless an earlier one was put aside: that one waits for a
condition on which the pump must not block (an empty stream, a copy, torch's switches), or has used
the pump for long. Later jobs of the lane keep their order; other lanes continue.
"""

from collections import deque
from typing import Any

from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.gpu.port import Flight, StreamPort, Uses
from jgpu.broker.flightpage import Record

__all__ = ["StreamLane"]


class StreamLane(StreamPort):
    """A stream with its jobs."""

    def __init__(self, stream: Any, shared: Uses, flight: Record) -> None:
        super().__init__(stream, shared, flight)
        #: a job that is to be launched again, and the later ones, which are not launched yet
        self.aside: LaneJob | None = None
        self.waiting: deque[LaneJob] = deque()
        #: seconds that the parts of it took which are over
        self._earlier_s = 0.0
        #: when the last flight that landed was over on the device, by the host's clock
        self._over_ns = 0

    @property
    def busy(self) -> bool:
        """Whether it has jobs or values that are not finished."""
        return bool(self.flying or self.aside or self._glimpses)

    def submit(self, jobs: list[LaneJob]) -> None:
        """Launch jobs, after the waiting ones."""
        self.waiting.extend(jobs)
        if self.aside is None:
            self.advance()

    def advance(self) -> None:
        """Launch what waits, as far as it may be launched now."""
        if self.aside is not None:
            if self._until is None or not self._until():
                return
            job, self.aside = self.aside, None
            self._launch(job)
        while self.waiting and self.aside is None:
            self._launch(self.waiting.popleft())

    def take_back(self) -> list[LaneJob]:
        """The jobs of which nothing was launched, in order; they never are."""
        taken, self.waiting = list(self.waiting), deque()
        return taken

    def _launch(self, job: LaneJob) -> None:
        """Put a job's ops on the stream, between two events."""
        calls = self._calls
        calls.set_stream(self.stream)
        begin_ns = None
        if self.flying:
            begin = self.flying[-1].end
        else:  # the idle stream is there at once
            begin, begin_ns = self._event(), self._shared.clock_ns()
            calls.record(begin, self.stream)
        flight = self._flight = Flight(job, begin, begin_ns)
        self._until, self._began_ns, self._waits = None, 0, False
        try:
            with calls.launching():
                job.launch(self)
        except Exception as error:
            self._until = None
            job.broke(error)
        flight.end = self.last = self._event()
        calls.record(flight.end, self.stream)
        flight.place = self.flight.fly()
        self.flight.rest()
        self._flight = None
        self.flying.append(flight)
        flight.whole = self._until is None
        if flight.whole:
            self._hop = None
        else:
            self.aside = job

    def land(self) -> LaneJob | None:
        """The oldest job, if the device is through with it."""
        while self.flying and self._calls.done(self.flying[0].end):
            flight = self.flying[0]
            if len(flight.hops) < len(flight.copies):
                flight.hops = [self._shared.staging.take(*copy) for copy in flight.copies]
            if not all(hop.over for hop in flight.hops):
                return None
            del self.flying[0]
            self._landed(flight)
            if flight.whole:
                return flight.job
        return None

    def _landed(self, flight: Flight) -> None:
        self.flight.landed(flight.place)
        job = flight.job
        took_s = self._calls.elapsed_s(flight.begin, flight.end)
        began = self._over_ns if flight.begin_ns is None else flight.begin_ns
        self._over_ns = began + round(took_s * 1e9)
        self._earlier_s += took_s
        for buffer in flight.retired:
            self._uses.pop(id(buffer), None)
            self._calls.release(buffer)
        try:
            for hop in flight.hops:
                hop.check()
            for action in flight.after:
                action()
            while self._glimpses and self._glimpses[0].flight is flight:
                self._tell()
            if flight.whole:
                job.measured_s, job.over_ns = self._earlier_s, self._over_ns
                self._earlier_s = 0.0
                job.finish()
        except Exception as error:
            job.broke(error)
        # It is not needed any more: it lies before `end`, and so before `last`.
        self._spare.append(flight.begin)

    def look(self) -> None:
        """Send the values of the oldest job that have arrived.

        Values of later jobs wait until this one has landed: they may follow from an error that it
        is still to report.
        """
        while self._glimpses and self._glimpses[0].flight is self.flying[0]:
            if not self._calls.done(self._glimpses[0].event):
                return
            try:
                self._tell()
            except Exception as error:
                self.flying[0].job.broke(error)

    def _tell(self) -> None:
        glimpse = self._glimpses.popleft()
        self._spare.append(glimpse.event)
        self._shared.ring.tell(glimpse)
