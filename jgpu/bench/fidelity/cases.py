"""What is compared and what came out: plain data, no torch and no process.

A case is an entry of one of PyTorch's databases with a dtype; each of its samples is compared in
some variants (forward, gradient, in place, ...), each with one outcome of `OUTCOMES`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["GEOMETRY", "OUTCOMES", "Case", "CaseResult", "Mismatch", "chosen"]

#: from best to worst
OUTCOMES: Final = ("equal", "close", "refused", "error", "wrong", "hung")
#: geometry that the device put right: outputs of other strides, found at a program's first run;
#: outputs of another shape or type, found there; ops whose outputs it was asked for beforehand
GEOMETRY: Final = ("restrided", "reshaped", "asked")


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """An entry of a database with a dtype."""

    database: str
    entry: str
    dtype: str

    @property
    def name(self) -> str:
        """For people and files."""
        return f"{self.database} {self.entry} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A comparison that was not `equal`."""

    variant: str
    sample: int
    outcome: str
    text: str


@dataclass(slots=True)
class CaseResult:
    """Everything that was found of a case."""

    case: Case
    samples: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Mismatch] = field(default_factory=list)
    #: by the words of `GEOMETRY`
    geometry: Counter[str] = field(default_factory=Counter)

    def add(self, variant: str, sample: int, outcome: str, text: str) -> None:
        """One comparison."""
        self.counts[outcome] += 1
        if outcome != "equal":
            self.findings.append(Mismatch(variant, sample, outcome, text))

    def as_json(self) -> dict[str, Any]:
        """For a file: counts, and what was not equal."""
        return {
            "case": self.case.name,
            "samples": self.samples,
            "counts": dict(self.counts),
            "geometry": {word: self.geometry[word] for word in GEOMETRY if self.geometry[word]},
            "findings": [[f.variant, f.sample, f.outcome, f.text] for f in self.findings],
        }


def chosen(
    cases: Iterable[Case], *, only: str = "", dtype: str = "", every: int = 1, first: int = 0
) -> Iterator[Case]:
    """Cases whose name has `only`, of `dtype`; every n-th of them, counted from `first`."""
    matching = (
        case
        for case in cases
        if only in f"{case.database} {case.entry}" and dtype in ("", case.dtype)
    )
    for k, case in enumerate(matching):
        if k % every == first % every:
            yield case
