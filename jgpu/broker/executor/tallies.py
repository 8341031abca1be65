"""What an executor counts for metrics, beside what the scheduler counts."""

from jgpu.sched import BOUNDS_S, Counts, Histogram, Snapshot
from jgpu.wire.reports.report import MeasuresReport, TimesReport

__all__ = ["Tallies"]


class Tallies:
    """Since the executor began."""

    def __init__(self) -> None:
        self.spills = self.restores = 0
        self.spilled_bytes = self.restored_bytes = 0
        #: device time of single programs
        self.programs = Histogram()

    def moved(self, nbytes: int) -> None:
        """So many bytes of a session went to the host, or, below 0, came back."""
        if nbytes > 0:
            self.spills += 1
            self.spilled_bytes += nbytes
        elif nbytes < 0:
            self.restores += 1
            self.restored_bytes -= nbytes

    def report(self, snapshot: Snapshot) -> MeasuresReport:
        """All of it."""
        return MeasuresReport(
            spills=self.spills,
            restores=self.restores,
            spilled_bytes=self.spilled_bytes,
            restored_bytes=self.restored_bytes,
            waits=_times(snapshot.waits),
            iterations=_times(snapshot.iterations),
            programs=_times(self.programs.now),
        )


def _times(counts: Counts) -> TimesReport:
    return TimesReport(bounds=BOUNDS_S, counts=counts.counts, seconds=counts.seconds)
