"""What is known not to be bit-equal, each with its reason; whether a run found worse; the page.

The file lists, per entry of a database and outcome, how many comparisons of which dtype and variant
come out so, and why. A run is worse where it has more of an outcome than the file allows. Results
that differ between two native runs of one call are nobody's fault: they are not counted, and their
entry may be close any number of times, for two native runs can also agree by chance.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jgpu.bench.fidelity.cases import OUTCOMES, CaseResult

__all__ = ["FILE", "UNEXPLAINED", "Expectation", "Expectations", "page"]

FILE: Final = Path(__file__).parent / "resources" / "expectations.json"
UNEXPLAINED: Final = "not explained yet"
#: how the judge begins its sentence where native runs differ among themselves
_UNSTABLE: Final = "native runs differ"
_UNSTABLE_WHY: Final = "native results, too, differ from run to run"

#: (entry with its database, outcome)
Key = tuple[str, str]


@dataclass(slots=True)
class Expectation:
    """Why an entry has an outcome, and how often by dtype and variant."""

    why: str
    counts: Counter[str] = field(default_factory=Counter)
    #: native runs differ among themselves: any number of times is right
    unstable: bool = False


@dataclass(slots=True)
class Expectations:
    """The file's content."""

    torch: str
    known: dict[Key, Expectation]
    #: per database: cases, samples, and comparisons by outcome, as of the last whole run
    totals: dict[str, dict[str, int]]

    @classmethod
    def read(cls, path: Path = FILE) -> "Expectations":
        """From a file."""
        data = json.loads(path.read_text())
        known = {
            (each["entry"], each["outcome"]): Expectation(
                each["why"], Counter(each["counts"]), each.get("unstable", False)
            )
            for each in data["known"]
        }
        return cls(data["torch"], known, data["totals"])

    def write(self, path: Path = FILE) -> None:
        """To a file, in a stable order."""
        known = [
            {
                "entry": entry,
                "outcome": outcome,
                "why": each.why,
                "counts": dict(sorted(each.counts.items())),
            }
            | ({"unstable": True} if each.unstable else {})
            for (entry, outcome), each in sorted(self.known.items())
        ]
        data = {"torch": self.torch, "totals": self.totals, "known": known}
        path.write_text(json.dumps(data, indent=1) + "\n")

    def worse(self, found: CaseResult) -> list[str]:
        """Sentences about what is worse than expected."""
        sentences = []
        for (outcome, place), (count, text) in sorted(_stable(found).items()):
            known = self.known.get((_entry(found), outcome))
            allowed = known.counts[place] if known else 0
            if count > allowed and not (known and known.unstable):
                sentences.append(
                    f"{found.case.name}: {outcome} {count} times ({place}), "
                    f"{allowed} expected: {text}"
                )
        return sentences

    def updated(self, torch: str, runs: Sequence[CaseResult]) -> "Expectations":
        """What a whole run found; reasons are kept, refusals are their own reason."""
        known = {key: Expectation(each.why, unstable=True) for key, each in self.known.items()
                 if each.unstable}  # fmt: skip
        for found in runs:
            if any(each.text.startswith(_UNSTABLE) for each in found.findings):
                known.setdefault(
                    (_entry(found), "close"), Expectation(_UNSTABLE_WHY, unstable=True)
                )
            for (outcome, place), (count, text) in _stable(found).items():
                key = _entry(found), outcome
                if key not in known:
                    old = self.known.get(key)
                    why = old.why if old else UNEXPLAINED
                    if outcome == "refused" and why == UNEXPLAINED:
                        why = (text.partition(": ")[2] or text).rstrip(".")
                    known[key] = Expectation(why)
                known[key].counts[place] += count
        return Expectations(torch, known, _totals(runs))


def _entry(found: CaseResult) -> str:
    return f"{found.case.database} {found.case.entry}"


def _stable(found: CaseResult) -> dict[tuple[str, str], tuple[int, str]]:
    """How often, and with which first words, by outcome and "dtype variant"."""
    counted: dict[tuple[str, str], tuple[int, str]] = {}
    for each in found.findings:
        if not each.text.startswith(_UNSTABLE):
            key = each.outcome, f"{found.case.dtype} {each.variant}"
            count, text = counted.get(key, (0, each.text))
            counted[key] = count + 1, text
    return counted


def _totals(runs: Iterable[CaseResult]) -> dict[str, dict[str, int]]:
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for found in runs:
        mine = totals[found.case.database]
        mine["cases"] += 1
        mine["samples"] += found.samples
        mine.update(found.counts)
    return {name: dict(totals[name]) for name in sorted(totals)}


_DATABASES: Final = {"module": "modules", "op": "operators", "optim": "optimizers"}
_INTRODUCTION: Final = """\
# What PyTorch can do on the shared device

PyTorch's own test databases are the judge: every operator, module and optimizer that they list,
with every sample input, forward and backward, in place and into given outputs, is computed natively
and through the shared device (its `cpu` kind, one thread each, PyTorch {torch}), and compared.
`equal` means the same bits, shapes, types and strides, or the same error; `close` is within the
databases' own tolerances. This page is made from the list of what is known not to be equal
(`jgpu bench fidelity --page docs/fidelity.md`); the tests hold the device to that list.
"""


def page(expectations: Expectations) -> str:
    """What works, what is refused and why, for people."""
    lines = [_INTRODUCTION.format(torch=expectations.torch)]
    heads = ["", "entries x types", "samples", "comparisons", *OUTCOMES]
    lines += ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for name, mine in expectations.totals.items():
        numbers = [mine["cases"], mine["samples"], sum(mine.get(o, 0) for o in OUTCOMES)]
        numbers += [mine.get(outcome, 0) for outcome in OUTCOMES]
        lines.append(f"| {_DATABASES[name]} | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    lines += ["", "## Refused", "", _REFUSED, *_section(expectations, "refused")]
    lines += ["", "## Close, not equal", "", _CLOSE, *_section(expectations, "close")]
    rest = [line for o in ("error", "wrong", "hung") for line in _section(expectations, o)]
    if rest:
        lines += ["", "## Known to be wrong", "", *rest]
    return "\n".join(lines) + "\n"


_REFUSED: Final = """\
A refusal is raised on the notebook's own line, says what to do instead, and harms nothing else.
"""
_CLOSE: Final = """\
Right within the databases' tolerances, of other last bits or in another layout in memory.
"""


def _section(expectations: Expectations, outcome: str) -> list[str]:
    """Entries of one outcome, gathered by reason."""
    entries: dict[str, list[str]] = defaultdict(list)
    for (entry, found), known in sorted(expectations.known.items()):
        if found == outcome:
            name = entry.partition(" ")[2]
            count = "" if known.unstable else f" ({known.counts.total():,})"
            entries[known.why].append(f"`{name}`{count}")
    if not entries:
        return ["Nothing that the databases try."] if outcome in ("refused", "close") else []
    return [f"- {', '.join(names)}: {why}." for why, names in sorted(entries.items())]
