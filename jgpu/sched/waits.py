"""Why a session waits, and for whom: told to its user. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jgpu.sched.states import Residence

if TYPE_CHECKING:
    from jgpu.sched.lane_table import LaneTable
    from jgpu.sched.sessions import Session

__all__ = ["Reason", "reason"]


class Reason(NamedTuple):
    """What a session waits for."""

    #: the end of a drain, a copy of its own memory, its turn, memory, or, beyond its user's budget,
    #: an idle device: drain, copy, turn, memory or budget
    on: str
    #: users, sorted
    users: tuple[str, ...] = ()


def reason(session: Session, table: LaneTable) -> Reason:
    """Return why a waiting session waits."""
    if table.draining and not session.pinned:
        return Reason("drain")
    if session.residence in (Residence.SPILLING, Residence.RESTORING):
        return Reason("copy")
    found = _behind(session, table)
    return Reason("budget", found.users) if session.user.throttled else found


def _behind(session: Session, table: LaneTable) -> Reason:
    """Behind whom, in the lane or before all lanes."""
    if table.starving is not None and table.starving is not session:
        return Reason("memory", (table.starving.user.name,))
    lane = session.lane
    if lane is not None and session.cramped_since is None:
        holder = lane.running if lane.holder is session else lane.holder
        return Reason("turn", (holder.user.name,) if holder is not None else ())
    others = {
        other.user.name
        for other in table.sessions.values()
        if other is not session and (other.lane or other.held)
    }
    return Reason("memory", tuple(sorted(others)))
