"""Play a recording of a live broker again (`jgpu broker --record FILE`), or under another policy.

Each client does what it did, as long after what it waited for as it did live; what the scheduler
makes of it follows anew. The first row is what was recorded, the second the same policy simulated:
how well the two agree tells what the other rows are worth.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jgpu.errors import ConfigError
from jgpu.sched.reports.recording import read_recording
from jgpu.sched.simulate.player import replayed_cells
from jgpu.sched.simulate.replay import Recording, read_scripts
from jgpu.sched.simulate.results import mean, percentile
from jgpu.simulate.chart import Chart, distribution
from jgpu.simulate.classroom import size
from jgpu.simulate.report import SimulationReport, Table, at_least

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jgpu.sched.simulate.results import SimulatedCell

__all__ = ["add_options", "simulate"]

_PARTS = (10, 25, 50, 75, 90, 95)
#: of each percentile, and of the mean, between recorded and simulated
_GOAL = 0.10


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the recording")
    parser.add_argument(
        "--policies", default="", metavar="NAME,...", help="others to try beside the recorded one"
    )
    parser.add_argument("--lanes", type=at_least(1, int), default=0, help="(default: as recorded)")
    parser.add_argument("--memory", type=size, default=0, help="(default: as recorded)")


def simulate(options: argparse.Namespace) -> SimulationReport:
    """Run it."""
    recording = _read(options.file)
    if not recording.cells:
        raise ConfigError(f"{options.file}: no cell in it ended, and no work; nothing to compare.")
    same, _ = replayed_cells(recording)
    rows = [_row("recorded", recording.cells), _row(f"simulated, {recording.policy}", same)]
    lines = [
        distribution("recorded", [cell.took_s for cell in recording.cells]),
        distribution(f"{recording.policy}, simulated", [cell.took_s for cell in same]),
    ]
    policies = [name for name in options.policies.split(",") if name]
    if not policies and (options.lanes or options.memory):
        policies = [recording.policy]
    for policy in policies:
        cells, device = replayed_cells(recording, policy, options.lanes, options.memory)
        name = f"{policy}, {device.hardware.lanes} lanes" if options.lanes else policy
        rows.append(_row(name, cells))
        lines.append(distribution(name, [cell.took_s for cell in cells]))
    off = _differences(recording.cells, same)
    worst = max(off, key=lambda each: abs(each[1]))
    verdict = "agree" if abs(worst[1]) <= _GOAL else "do not agree"
    columns = ["", "cells", "mean", *(f"p{each}" for each in _PARTS), "worst", "until"]
    findings = [
        f"recorded and simulated times {verdict} within {_GOAL * 100:g} %: the mean differs by "
        f"{off[0][1] * 100:+.1f} %, {worst[0]} most, by {worst[1] * 100:+.1f} %"
    ]
    if recording.policy_changed:
        findings.append("the policy was changed while recording; the simulation keeps the first")
    return SimulationReport(
        title=f"{options.file}: {recording.events} events of {len(recording.scripts)} clients, "
        f"{recording.lanes} lane(s)",
        tables=[Table("Completion times of cells; seconds", columns, rows)],
        findings=findings,
        assumes=[
            "a cell ends when its last work has ended, or when its client says so if that is later",
            "a client waits for the works that ended between two of its steps, and takes as long "
            "afterwards as it did live",
            "a segment takes what it took live, from its start or the end of the one before it",
        ],
        leaves_out=[
            "what another policy changes in the host's load, in caches, and in a person; works "
            "that were cancelled; where several lanes were recorded, how they slowed each other",
        ],
        chart=Chart([("Completion times", "seconds", "part of the cells", lines)]),
        more={"differences": dict(off)},
    )


def _read(path: Path) -> Recording:
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            header, recorded = read_recording(lines, str(path))
            return read_scripts(header, recorded, str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None


def _row(name: str, cells: Sequence[SimulatedCell]) -> list[str | float | int]:
    took = [cell.took_s for cell in cells]
    until_s = max(cell.ended_s for cell in cells) - min(cell.began_s for cell in cells)
    parts = [percentile(took, each) for each in _PARTS]
    return [name, len(cells), mean(took), *parts, max(took), until_s]


def _differences(
    recorded: Sequence[SimulatedCell], simulated: Sequence[SimulatedCell]
) -> list[tuple[str, float]]:
    """Return by how much the mean and each percentile differ, as parts of what was recorded."""
    live = [cell.took_s for cell in recorded]
    ours = [cell.took_s for cell in simulated]
    parts = [(f"p{each}", percentile(ours, each) / percentile(live, each) - 1) for each in _PARTS]
    return [("mean", mean(ours) / mean(live) - 1), *parts]
