"""What a simulated run gave: times of jobs and cells, and figures over them.

Percentiles are interpolated between ranks (the pth of n values lies at p (n - 1) / 100). The rule:
figures are functions of the log alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jgpu.sched.simulate.jobs import SimulatedJob

__all__ = ["JobTimes", "Log", "SimulatedCell", "Summary", "jain", "mean", "percentile", "summarise"]


@dataclass(frozen=True, slots=True)
class SimulatedCell:
    """One cell: when it began and ended, and its device time alone; seconds."""

    session: int
    began_s: float
    ended_s: float
    service_s: float
    #: when its first work began on the device; None where that is not known
    first_s: float | None = None

    @property
    def waited_s(self) -> float:
        """How long it was until it began to compute; 0 where that is not known."""
        return 0.0 if self.first_s is None else self.first_s - self.began_s

    @property
    def took_s(self) -> float:
        """How long a person waited for it."""
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class JobTimes:
    """One job; seconds."""

    session: int
    name: str
    user: str
    arrival_s: float
    #: when it first ran on the device
    first_s: float
    ended_s: float
    #: device time alone
    service_s: float

    @property
    def jct_s(self) -> float:
        """Job completion time: from arrival to end."""
        return self.ended_s - self.arrival_s

    @property
    def queue_s(self) -> float:
        """Completion time beyond its own device time."""
        return self.jct_s - self.service_s


@dataclass(frozen=True, slots=True)
class Summary:
    """The four figures of Salus' Table 1, and the wait until the first run; seconds."""

    makespan_s: float
    mean_queue_s: float
    mean_jct_s: float
    p95_jct_s: float
    mean_first_s: float


class Log:
    """Takes down what clients see."""

    def __init__(self) -> None:
        #: in the order of their ends
        self.cells: list[SimulatedCell] = []
        self._first_s: dict[int, float] = {}
        self._ended_s: dict[int, float] = {}

    def ran(self, session: int, began_s: float) -> None:
        """Note that a work of a session ran; the first one counts."""
        self._first_s.setdefault(session, began_s)

    def cell_ended(self, cell: SimulatedCell) -> None:
        """Note a cell's end."""
        self.cells.append(cell)

    def job_ended(self, session: int, ended_s: float) -> None:
        """Note that a session has done all its cells."""
        self._ended_s[session] = ended_s

    def jobs(self, jobs: Iterable[tuple[int, SimulatedJob]]) -> tuple[JobTimes, ...]:
        """Return the times of those of these jobs that have ended."""
        return tuple(
            JobTimes(
                session,
                job.name,
                job.user,
                job.arrival_s,
                self._first_s[session],
                self._ended_s[session],
                job.service_s,
            )
            for session, job in jobs
            if session in self._ended_s
        )


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of at least one value, interpolated between ranks."""
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of fairness (Jain, Chiu and Hawe, 1984): 1 where all are equal."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def summarise(jobs: Sequence[JobTimes]) -> Summary:
    """Return the figures over at least one job."""
    completion = [job.jct_s for job in jobs]
    return Summary(
        makespan_s=max(job.ended_s for job in jobs) - min(job.arrival_s for job in jobs),
        mean_queue_s=mean([job.queue_s for job in jobs]),
        mean_jct_s=mean(completion),
        p95_jct_s=percentile(completion, 95),
        mean_first_s=mean([job.first_s - job.arrival_s for job in jobs]),
    )
