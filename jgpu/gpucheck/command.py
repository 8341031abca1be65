"""Running the cases and telling: JSON lines as they come, a file of them, and one sentence.

    python -m jgpu.gpucheck [--device cuda|cuda-on-host] [--soon] [--only CASE ...] [--file FILE]

Ends with 1 where a case failed, with 0 where none did, none could be run, or there is no GPU.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from jgpu import __version__
from jgpu.broker.control.executors.gpus import GpuClaim, claim_gpu
from jgpu.errors import ConfigError
from jgpu.gpucheck.carried import carried_environment
from jgpu.gpucheck.catalogue import CASES, GpuCase
from jgpu.gpucheck.outcome import CaseEnd, GpuOutcome
from jgpu.gpucheck.running import Runner
from jgpu.gpucheck.sight import why_not

__all__ = ["ALL_S", "SOON_S", "Found", "check", "main"]

#: seconds for all cases, and for those of the beginning
ALL_S: Final = 480.0
SOON_S: Final = 180.0
_AT_ONCE: Final = 4
_DEVICES: Final = ("cuda", "cuda-on-host")
_UNUSABLE: Final = "the GPU cannot be used"


class Found:
    """What came of a run, told as it comes."""

    def __init__(self, cases: Sequence[GpuCase]) -> None:
        self.cases = cases
        self.outcomes: list[GpuOutcome] = []
        #: why nothing was run; and whether that is a fault
        self.why_not = ""
        self.is_fault = False

    @property
    def failed(self) -> list[GpuOutcome]:
        """What did not hold."""
        return [each for each in self.outcomes if each.end is CaseEnd.FAILED]

    @property
    def status(self) -> int:
        """For the shell."""
        return int(bool(self.failed) or self.is_fault)

    def sentence(self) -> str:
        """All of it."""
        if self.why_not:
            return self.why_not
        count = {end: sum(each.end is end for each in self.outcomes) for end in CaseEnd}
        missed = sum(len(each.missed) for each in self.outcomes)
        rest = [
            f"{count[end]} {end.value}" for end in (CaseEnd.SKIPPED, CaseEnd.NOT_RUN) if count[end]
        ]
        rest += [f"{missed} {'goal' if missed == 1 else 'goals'} for speed missed"] * bool(missed)
        beside = f" ({', '.join(rest)})" if rest else ""
        if not self.failed:
            return f"Nothing is wrong: {count[CaseEnd.PASSED]} cases passed{beside}."
        names = ", ".join(each.case for each in self.failed)
        first = self.failed[0]
        return (
            f"{len(self.failed)} of {len(self.outcomes)} cases failed{beside}: {names}. "
            f"Look at {first.case} first: {first.text.rstrip('.')}."
        )


def check(
    cases: Sequence[GpuCase],
    device: str,
    *,
    budget_s: float,
    patience: float = 1.0,
    found: Found | None = None,
) -> Iterator[GpuOutcome]:
    """Run the cases, and say what became of each; `found` gets all of it.

    The first that is run decides whether there is anything to go on with. Times of single cases
    are multiplied by `patience`.
    """
    found = found or Found(cases)
    for outcome in _outcomes(cases, device, budget_s, patience, found):
        found.outcomes.append(outcome)
        yield outcome


def _outcomes(
    cases: Sequence[GpuCase], device: str, budget_s: float, patience: float, found: Found
) -> Iterator[GpuOutcome]:
    claim: GpuClaim | None = None
    if device == "cuda":
        found.why_not, found.is_fault = why_not()
        if not found.why_not:
            try:
                claim = claim_gpu(0)  # nobody else's broker; those of the cases do without
            except ConfigError as error:
                found.why_not, found.is_fault = str(error), True
    if found.why_not:
        for case in cases:
            yield GpuOutcome(case.name, CaseEnd.SKIPPED, "There is nothing to run it on.")
        return
    until_s = time.monotonic() + budget_s
    with contextlib.ExitStack() as ending:
        if claim is not None:
            ending.callback(claim.release)
        environ = ending.enter_context(_apart())

        def run(some: Sequence[GpuCase]) -> Iterator[GpuOutcome]:
            runner = Runner(
                lambda case: (sys.executable, "-m", "jgpu.gpucheck.case", case.name, device),
                environ,
                budget_s=until_s - time.monotonic(),
                at_once=_AT_ONCE,
                patience=patience,
            )
            yield from runner.run(some)

        ground = [case for case in cases if case is CASES[0]]
        usable = True
        for outcome in run(ground):
            usable = outcome.end is not CaseEnd.FAILED
            yield outcome
        rest = [case for case in cases if case not in ground]
        if usable:
            yield from run(rest)
        else:
            yield from (GpuOutcome(case.name, CaseEnd.NOT_RUN, _UNUSABLE) for case in rest)


@contextlib.contextmanager
def _apart() -> Iterator[dict[str, str]]:
    """An environment without any broker, and with folders of its own."""
    with tempfile.TemporaryDirectory(prefix="jgpu-gpu-") as folder:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("JGPU_")}
        for name in ("STATE_HOME", "RUNTIME_DIR", "CONFIG_HOME"):
            place = Path(folder, name.lower())
            place.mkdir(mode=0o700)
            environ[f"XDG_{name}"] = str(place)
        yield carried_environment(environ, Path(folder))


def main(arguments: Sequence[str]) -> int:
    """`python -m jgpu.gpucheck`."""
    options = _parser().parse_args(arguments)
    names = {case.name for case in CASES}
    if unknown := set(options.only) - names:
        _parser().error(f"there is no case {sorted(unknown)}; there are {sorted(names)}")
    cases = [
        case
        for case in CASES
        if (not options.only or case.name in options.only) and (case.soon or not options.soon)
    ]
    budget_s = options.budget or (SOON_S if options.soon else ALL_S)
    found, lines = Found(cases), [_about(options.device, budget_s)]
    _print(lines[0])
    try:
        for outcome in check(
            cases, options.device, budget_s=budget_s, patience=options.patience, found=found
        ):
            lines.append(outcome.line())
            _print(lines[-1])
    except KeyboardInterrupt:
        found.why_not, found.is_fault = "It was interrupted.", True
    lines.append(json.dumps({"sentence": found.sentence(), "status": found.status}))
    _print(lines[-1])
    if not found.why_not:
        file = options.file or _default_file(options.device)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(lines) + "\n")
            print(f"Written to {file}.", file=sys.stderr)
    return found.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jgpu.gpucheck", description="Does jgpu work on the GPU of this host?"
    )
    parser.add_argument("--device", default="cuda", choices=_DEVICES, help="default: cuda")
    parser.add_argument("--soon", action="store_true", help="the cases of the first three minutes")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="these cases alone")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="for all cases (default: 480; soon: 180)"
    )
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="FACTOR", help="with single cases"
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="for the lines (default: one in bench/results, where there is such a folder)",
    )
    return parser


def _about(device: str, budget_s: float) -> str:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return json.dumps(
        {
            "measured": "gpu",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": _name_of(device),
            "jgpu": __version__,
            "torch": torch,
            "python": sys.version.split()[0],
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2),
            "budget_s": budget_s,
        }
    )


def _name_of(device: str) -> str:
    """Of the GPU, as the driver has it."""
    if device != "cuda" or why_not()[0]:
        return device
    with contextlib.suppress(Exception):  # whatever is wrong, the first case says it
        import pynvml

        from jgpu.broker.control.executors.gpus import gpu_uuid

        pynvml.nvmlInit()
        return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(0))))
    return device


def _default_file(device: str) -> Path | None:
    """In the checkout that this is run from, where it is one; a host's are nobody's figures."""
    folder = Path("bench/results")
    if device != "cuda" or not folder.is_dir():
        return None
    name = re.sub(r"[^a-z0-9]+", "-", _name_of(device).lower()).strip("-")
    return folder / f"{datetime.now(UTC).date().isoformat()}-{name}-gpu.jsonl"


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
