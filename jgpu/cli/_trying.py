"""`jgpu doctor --gpu`: the first three minutes of what is to be found out with a GPU."""

from collections.abc import Iterator

from jgpu.gpucheck.catalogue import CASES
from jgpu.gpucheck.command import SOON_S, Found, check
from jgpu.gpucheck.outcome import CaseEnd, GpuOutcome

__all__ = ["try_the_gpu"]

_STATES = {CaseEnd.PASSED: "ok", CaseEnd.FAILED: "problem"}


def try_the_gpu(device: str = "cuda", budget_s: float = SOON_S) -> Iterator[tuple[str, ...]]:
    """Subject, state, text and advice of each case, and of all of them at the end."""
    cases = [case for case in CASES if case.soon]
    about = {case.name: case.about for case in cases}
    found = Found(cases)
    for outcome in check(cases, device, budget_s=budget_s, found=found):
        if not found.why_not:
            yield _line(outcome, about[outcome.case])
    state = "problem" if found.status else "note" if found.why_not else "ok"
    advice = "" if not found.failed else "`make test-gpu`, or python -m jgpu.gpucheck, says more."
    yield "GPU, all of it", state, found.sentence(), advice


def _line(outcome: GpuOutcome, about: str) -> tuple[str, ...]:
    state = _STATES.get(outcome.end, "note")
    text = f"{about[0].upper()}{about[1:]}" if state == "ok" else f"{outcome.end}: {outcome.text}"
    return f"GPU, {outcome.case}", state, f"{text.rstrip('.')}.", ""
