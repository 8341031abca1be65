"""How far a drain is, and what stopping the broker would cost at this moment. Pure.

Nothing that was computed outlives the executor: what sessions keep on the device, and what of it is
on the host, goes with it. What they have in Python's own memory is their kernels', and stays.
"""

from dataclasses import dataclass

from jgpu.wire.messages import ReportIs
from jgpu.wire.reports.report import SessionReport
from jgpu.wire.sizes import short_size

__all__ = ["DrainProgress", "drain_of"]


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """As the report has it."""

    #: draining, drained, or empty
    state: str = ""
    waits_for: tuple[int, ...] = ()
    text: str = ""


def drain_of(report: ReportIs | None, *, ready: bool) -> DrainProgress:
    """How far it is, by the last report of an executor that was told of it, if it is ready.

    An executor that is about to begin runs nothing, and is told before it could.
    """
    if not ready:
        return DrainProgress("drained", (), "Nothing runs, for the device's process is not there.")
    if report is None or not report.draining:
        return DrainProgress(
            "draining", (), "The device's process was told, and has not answered yet."
        )
    if report.under_way:
        those = ", ".join(map(str, report.under_way[:8]))
        more = f" and {len(report.under_way) - 8} more" if len(report.under_way) > 8 else ""
        text = f"Iterations are under way, of session {those}{more}; stopping would interrupt them."
        return DrainProgress("draining", report.under_way, text)
    return DrainProgress(
        "drained", (), f"Nothing is under way: stopping interrupts nobody. {_lost(report)}"
    )


def _places(row: SessionReport) -> tuple[int, int, int]:
    """Bytes of a session's model on the device, of what else is there, and of both on the host."""
    model, away = row.spilled_resident_bytes, row.spilled_bytes
    return row.resident_bytes - model, row.ephemeral_bytes - (away - model), away


def _lost(report: ReportIs) -> str:
    """What goes with the executor."""
    held = [_places(row) for row in report.sessions if row.resident_bytes + row.ephemeral_bytes]
    if not held:
        return "Nothing is lost, for no session keeps anything on the device."
    models, others, away = (sum(column) for column in zip(*held, strict=True))
    whose = "1 session keeps" if len(held) == 1 else f"{len(held)} sessions keep"
    return (
        f"Lost would be what {whose} on the device: {short_size(models)} of models and optimizers, "
        f"{short_size(others)} else, and {short_size(away)} that are on the host for it. Kernels "
        "live on, with everything that is not on the device."
    )
