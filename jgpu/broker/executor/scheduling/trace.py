"""When each piece of work was ready, began and ended, for measurements of the executor itself.

A ring of the youngest works, written to a file when the executor ends: a line of five numbers
each, `LANE SESSION READY BEGAN ENDED`, in the order in which they ended; times are nanoseconds of
the host's monotonic clock, which all processes of a host share. `READY` is when the scheduler was
told of the work. On `cpu` a work begins and ends with its lane's thread; on `cuda` the times are
those of the host: when it was launched, and when it was seen to be over.

An executor that is not asked for a trace does nothing for one.
"""

import logging
from collections import deque
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from jgpu.broker.executor.devices.base import Port
    from jgpu.broker.executor.works.base import Work

__all__ = ["Stamped", "Trace", "open_record"]

_log = logging.getLogger(__name__)

#: works that are remembered; some 60 MB
_WORKS: Final = 1 << 18


class Trace:
    """What is remembered, until it is written."""

    def __init__(self, file: Path, works: int = _WORKS) -> None:
        self._file = file
        self._rows: deque[tuple[int, int, int, int, int]] = deque(maxlen=works)

    def ready(self, work: "Work") -> None:
        """The scheduler is told of it now."""
        work.ready_ns = monotonic_ns()

    def over(self, lane: int, stamped: "Stamped") -> "Work":
        """Note a work that a lane is through with, and return it."""
        work = stamped.work
        self._rows.append((lane, work.session.number, work.ready_ns, stamped.began, stamped.ended))
        return work

    def write(self) -> None:
        """Write the file; one that cannot be written is told in the log, and costs nothing else."""
        try:
            with self._file.open("w", encoding="ascii") as stream:
                stream.writelines(" ".join(map(str, row)) + "\n" for row in self._rows)
        except OSError as error:
            _log.error("The trace %s cannot be written: %s.", self._file, error.strerror)


class Stamped:
    """A work on its way through a lane, with the times of its two ends."""

    __slots__ = ("began", "ended", "work")

    def __init__(self, work: "Work") -> None:
        self.work = work
        self.began = 0
        self.ended = 0

    @property
    def measured_s(self) -> float:
        """The work's."""
        return self.work.measured_s

    @measured_s.setter
    def measured_s(self, seconds: float) -> None:
        self.work.measured_s = seconds

    @property
    def over_ns(self) -> int:
        """The work's."""
        return self.work.over_ns

    @over_ns.setter
    def over_ns(self, moment: int) -> None:
        self.work.over_ns = moment

    def known_s(self) -> float:
        """The work's."""
        return self.work.known_s()

    def launch(self, port: "Port") -> None:
        """It begins."""
        self.began = self.began or monotonic_ns()
        self.work.launch(port)

    def finish(self) -> None:
        """It ends."""
        self.work.finish()
        self.ended = monotonic_ns()

    def broke(self, error: BaseException) -> None:
        """It ends by a mistake of ours."""
        self.work.broke(error)
        self.ended = monotonic_ns()


def open_record(file: str) -> TextIO | None:
    """The file that a recording goes to; one that cannot be written is told, and nothing else."""
    if not file:
        return None
    try:
        return Path(file).open("w", encoding="utf-8", buffering=1 << 16)
    except OSError as error:
        _log.error("Nothing is recorded: %s cannot be written: %s.", file, error.strerror)
        return None
