"""One workload under several policies: a row for each, and the distributions drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.simulate.results import percentile, summarise
from jgpu.simulate.chart import Chart, distribution
from jgpu.simulate.report import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jgpu.sched.simulate.engine import SimulatedRun

__all__ = ["COLUMNS", "chart_of", "table_of"]

COLUMNS = ("policy", "makespan", "queue", "JCT", "median", "p95", "JCT x", "median x", "p95 x")


def table_of(
    runs: Mapping[str, SimulatedRun], title: str, more: Sequence[Sequence[str | float | None]] = ()
) -> Table:
    """Return the figures of each run in seconds, and times better than the first."""
    figures = {policy: summarise(run.jobs) for policy, run in runs.items()}
    halves = {p: percentile([job.jct_s for job in run.jobs], 50) for p, run in runs.items()}
    first = next(iter(runs))
    rows: list[Sequence[str | float | None]] = []
    for policy, each in figures.items():
        row = [each.makespan_s, each.mean_queue_s, each.mean_jct_s, halves[policy]]
        row += [each.p95_jct_s, figures[first].mean_jct_s / each.mean_jct_s]
        row += [halves[first] / halves[policy], figures[first].p95_jct_s / each.p95_jct_s]
        rows.append([policy, *row])
    return Table(f"{title}; x: times better than {first}", COLUMNS, [*rows, *more])


def chart_of(runs: Mapping[str, SimulatedRun]) -> Chart:
    """Return the distributions of completion times."""
    lines = [
        distribution(policy, [job.jct_s / 60 for job in run.jobs]) for policy, run in runs.items()
    ]
    return Chart([("Completion times", "minutes", "part of the jobs", lines)])
