"""`%jgpu`: one line, and a sentence more where something is wrong."""

from typing import Final

from jgpu.device.magics.asking import ask_report, own_user, report_of, session
from jgpu.device.magics.words import of, seconds
from jgpu.wire.reports.report import DeviceReport, Report, SessionReport, UserReport
from jgpu.wire.sizes import short_size

__all__ = ["describe", "line"]

_UNUSED: Final = "this notebook does not use it yet"
#: the words that the pages of JupyterLab have for the same
_STATES: Final = {"idle": "resting", "spilled": "resting"}
_WAITS: Final = {
    "memory": "waiting for memory",
    "copy": "waiting for its memory",
    "drain": "waiting for maintenance",
    "budget": "waiting, over budget",
}


def line() -> str:
    """Where this notebook stands on the shared device."""
    mine = session()
    told, row = report_of(mine) if mine is not None else (ask_report(), None)
    return "\n".join(describe(told, row, own_user(told, row)))


def describe(told: Report, row: SessionReport | None, user: UserReport | None) -> list[str]:
    """The line, and sentences of the broker's that concern this notebook."""
    device = told.devices[0] if told.devices else None
    parts = [_state(row)]
    if device is not None:
        parts.append(_memory(device, row, user))
    if row is not None:
        parts.append(_time(row, user))
    parts.append(_others(told, row))
    if device is not None and device.kind == "cpu":
        parts.append("the device is the CPU")
    said = [f"GPU: {' · '.join(part for part in parts if part)}"]
    said += [device.note] if device is not None and device.note else []
    said += [told.broker.drain_text] if told.broker.drain and told.broker.drain_text else []
    said += [user.text] if user is not None and user.text else []
    return said


def _state(row: SessionReport | None) -> str:
    if row is None:
        return _UNUSED
    if row.state != "waiting":
        return _STATES.get(row.state, row.state)
    if row.ahead is None:  # not for its turn
        return _WAITS.get(row.waits_on, "waiting")
    return f"waiting, {row.ahead} ahead" if row.ahead else "waiting, next"


def _memory(device: DeviceReport, row: SessionReport | None, user: UserReport | None) -> str:
    """What it has of what it may have, of which kind; what the user has beside it."""
    limit = user.quota.memory if user is not None else 0
    whole = min(limit or device.capacity_bytes, device.capacity_bytes)
    if row is None:
        whose = "for you" if limit else "on the device"
        return f"{short_size(whole)} {whose}" if whole else ""
    used = row.resident_bytes + row.ephemeral_bytes
    text = of(used, whole) if whole else short_size(used)
    if used:
        text += f" (model {short_size(row.resident_bytes)}, kept {short_size(row.ephemeral_bytes)}"
        text += (
            f"; of this {short_size(row.spilled_bytes)} on the host)" if row.spilled_bytes else ")"
        )
    if user is not None:
        beside = user.resident_bytes + user.ephemeral_bytes - used
        text += f", {short_size(beside)} in your other notebooks" if beside > 0 else ""
    return text


def _time(row: SessionReport, user: UserReport | None) -> str:
    text = f"{seconds(row.device_seconds)} of device time"
    if user is not None and user.quota.device_seconds:
        quota = user.quota
        text += (
            f" (you: {seconds(user.used_in_period)} of {seconds(quota.device_seconds)} "
            f"in {seconds(quota.period)})"
        )
    return text


def _others(told: Report, row: SessionReport | None) -> str:
    """Whether somebody else waits for the device."""
    waiting = sum(each.state == "waiting" for each in told.sessions if each is not row)
    if not waiting:
        return "nobody else waits" if row is not None and row.state == "waiting" else "nobody waits"
    return f"{waiting} other{'s' if waiting > 1 else ''} wait{'' if waiting > 1 else 's'}"
