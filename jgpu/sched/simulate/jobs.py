"""What is simulated: jobs made of cells made of iterations, and what they hold.

Times are seconds, sizes bytes, durations of device work as it takes when alone on the device. The
rule: a job is plain data, the same for every policy; nothing in it depends on what is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

__all__ = ["Cell", "JobMemory", "SimulatedJob"]


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What a session holds and needs, in bytes; see `jgpu.sched.events.MemoryMeasured`."""

    resident: int = 0
    kept: int = 0
    transient: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A loop: `iterations` times `host_s` in Python, then `iteration_s` on the device."""

    #: at least 1
    iterations: int
    #: device time of one, alone; above 0
    iteration_s: float
    #: how long the person thinks before
    think_s: float = 0.0
    #: the client's own time before it sends an iteration
    host_s: float = 0.0
    #: iterations that the client sends before it waits for the oldest; 1 where each loss is read
    ahead: int = 4
    #: programs that an iteration is sent in
    programs: int = 1
    #: whether the number of iterations is known when the cell starts (a loop with a length)
    told: bool = True

    @property
    def service_s(self) -> float:
        """Device time of all iterations, alone."""
        return self.iterations * self.iteration_s

    def coarsened(self, grain_s: float) -> Cell:
        """Return a cell of the same device time whose iterations take about `grain_s`."""
        iterations = max(1, min(self.iterations, ceil(self.service_s / grain_s)))
        factor = self.iterations / iterations
        return replace(
            self,
            iterations=iterations,
            iteration_s=self.iteration_s * factor,
            host_s=self.host_s * factor,
        )


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A session from its arrival to its end."""

    name: str
    user: str
    arrival_s: float
    cells: tuple[Cell, ...]
    memory: JobMemory = JobMemory()
    #: the part of the device that it keeps busy while it runs, interference included; see `rates`
    load: float = 1.0
    #: the user's share
    weight: float = 1.0
    #: the session's class, as in `jgpu.sched.priorities`
    priority: int = 1
    #: between arrival and first cell: imports, data, moving the model
    startup_s: float = 0.0

    @property
    def service_s(self) -> float:
        """Device time of all cells, alone."""
        return sum(cell.service_s for cell in self.cells)

    def coarsened(self, grain_s: float) -> SimulatedJob:
        """Return the same job in iterations of about `grain_s`."""
        return replace(self, cells=tuple(cell.coarsened(grain_s) for cell in self.cells))
