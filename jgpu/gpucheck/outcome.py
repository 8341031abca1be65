"""What became of a case: what it said, and how its process ended."""

import json
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["PROCESS", "CaseEnd", "GpuOutcome", "outcome_of"]

#: what a fault is called that is the end of the process itself
PROCESS = "process"
#: exit status of a case in which something did not hold
_FAULTS = 1
_MOST_TEXT = 600


class CaseEnd(StrEnum):
    """How it ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class GpuOutcome:
    """One case, as it is told."""

    case: str
    end: CaseEnd
    #: why it was skipped or not run; what failed first
    text: str = ""
    seconds: float = 0.0
    checks: int = 0
    #: what did not hold, by name
    faults: dict[str, str] = field(default_factory=dict)
    #: goals for speed that were missed, which is no failure
    missed: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """As a line of JSON, without what is empty."""
        told = {
            "case": self.case,
            "end": self.end.value,
            "text": self.text,
            "seconds": round(self.seconds, 1),
            "checks": self.checks,
            "faults": self.faults,
            "missed": self.missed,
            "figures": self.figures,
            "notes": self.notes,
        }
        return json.dumps({name: value for name, value in told.items() if value or name == "case"})


def outcome_of(
    case: str, status: int, said: Iterable[str], complained: str, seconds: float
) -> GpuOutcome:
    """By what a case's process printed, a line of JSON each, and by its exit status."""
    checks = 0
    faults: dict[str, str] = {}
    missed: list[str] = []
    notes: list[str] = []
    figures: dict[str, Any] = {}
    reason, is_through = "", False
    for line in said:
        match _read(line):
            case {"check": name, "holds": holds, "text": text}:
                checks += 1
                if not holds:
                    faults[name] = text[:_MOST_TEXT]
            case {"figure": name, **figure}:
                figures[name] = figure
                if figure.get("met") is False:
                    missed.append(name)
            case {"note": text}:
                notes.append(text)
            case {"skip": text}:
                reason = text
            case {"through": True}:
                is_through = True
    if ended := _trouble(status, complained, is_through=is_through):
        faults[PROCESS] = ended
    end = CaseEnd.PASSED
    if faults:
        end = CaseEnd.FAILED
        name, text = next(iter(faults.items()))
        reason = f"{name}: {text}" if text else name
    elif reason:
        end = CaseEnd.SKIPPED
    elif not checks and not figures:
        end, reason = CaseEnd.FAILED, "It ended without having looked at anything."
    return GpuOutcome(case, end, reason, seconds, checks, faults, missed, figures, notes)


def _read(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # a library's word
        return None


def _trouble(status: int, complained: str, *, is_through: bool) -> str:
    """What is wrong with how the process ended; empty if nothing."""
    if status in (0, _FAULTS) and is_through:
        return ""
    last = next(iter(complained.strip().splitlines()[-1:]), "")[:_MOST_TEXT]
    said = f" ({last.strip()})" if last.strip() else ""
    if status < 0:
        return f"It was ended by {signal.Signals(-status).name}{said}."
    return f"It ended with status {status} before it was through{said}."
