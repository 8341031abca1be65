"""Where this process stands: its own session, without waiting for it, and what the broker says.

Works before torch is imported, and while another thread computes.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Final

from jgpu.errors import BrokerUnreachable, DeviceLost
from jgpu.wire import address, limits
from jgpu.wire.reports import asking, report

if TYPE_CHECKING:
    from jgpu.device.client.session import ClientSession

__all__ = ["ask_report", "counted", "own_row", "own_user", "report_of", "session"]

_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 0.03


def session() -> "ClientSession | None":
    """This process's session, if it has used the device; what it recorded is on its way then.

    Raises `DeviceLost` where what it had is lost and nothing was made since.
    """
    current = sys.modules.get("jgpu.device.current")
    found: ClientSession | None = getattr(current, "session", None)
    if found is None:
        return None
    if found.used:
        found.catch_up()
    elif found.connection.why_lost:
        raise DeviceLost(found.connection.on_lost(found.connection.why_lost))
    else:
        return None
    return found


def counted(mine: "ClientSession") -> int:
    """Bytes that the executor has for this session and that Python has not forgotten."""
    held = mine.buffers.held
    return held.nbytes - held.of(mine.buffers.graveyard[:])


def ask_report() -> report.Report:
    """The broker's report; raises where this process has no seat or nobody answers."""
    if os.environ.get(address.TICKET) == address.NO_TICKET:
        raise BrokerUnreachable(
            os.environ.get(address.PROBLEM) or "This notebook could not get a seat."
        )
    return asking.ask_report(address.find(), _TIMEOUT_S)


def report_of(mine: "ClientSession") -> tuple[report.Report, report.SessionReport | None]:
    """The broker's report, and what it says of this session.

    A report may be older than what the cell has just done. It is asked for again until it counts
    what this process does, unless that takes too long, as it does while another thread computes.
    """
    deadline = time.monotonic() + 2 * limits.REPORT_AGE_S
    while True:
        told = ask_report()
        row = own_row(told, mine.connection.number)
        known = row.resident_bytes + row.ephemeral_bytes if row is not None else None
        if known == counted(mine) or time.monotonic() > deadline:
            return told, row
        time.sleep(_AGAIN_S)


def own_row(told: report.Report, number: int | None) -> report.SessionReport | None:
    """What the broker says of this session."""
    return next((row for row in told.sessions if row.id == number), None)


def own_user(told: report.Report, row: report.SessionReport | None) -> report.UserReport | None:
    """What the broker says of this notebook's user; None where it does not say."""
    name = row.user if row is not None else os.environ.get(address.USER, "") or told.broker.asker
    return next((user for user in told.users if user.name == name), None)
