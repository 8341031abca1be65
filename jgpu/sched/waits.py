"""Why a session waits, for whom, and how many come before it: told to its user. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jgpu.sched.states import Residence, SessionState

if TYPE_CHECKING:
    from jgpu.sched.lanes.lane import Lane
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.policies import Policy
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["QueuePlace", "Reason", "places", "reason"]


class Reason(NamedTuple):
    """What a session waits for."""

    #: the end of a drain, a copy of its own memory, its turn, memory, or, beyond its user's budget,
    #: an idle device: drain, copy, turn, memory or budget
    on: str
    #: users, sorted
    users: tuple[str, ...] = ()


class QueuePlace(NamedTuple):
    """Where a session stands among those who wait in the same lane, or for a lane."""

    why: Reason
    #: 1 for whoever comes next
    position: int
    #: sessions that have the device before its turn comes, those that are at it now among them;
    #: None for what waits for something else than its turn
    ahead: int | None


def places(table: LaneTable, policy: Policy) -> dict[int, QueuePlace]:
    """Return the place of each waiting session."""
    found = {
        session.id: QueuePlace(reason(session, table), position, None)
        for position, session in enumerate(table.unplaced.values(), start=1)
    }
    for lane in table.lanes.values():
        found |= _in_lane(lane, table, policy)
    return found


def _in_lane(lane: Lane, table: LaneTable, policy: Policy) -> dict[int, QueuePlace]:
    """By the order in which their turns come as far as is known now; memory may change it."""
    waiting = [each for each in lane.members.values() if each.state is SessionState.WAITING]
    waiting.sort(key=lambda session: (session is not lane.holder, policy.rank(session)))
    at_it = (lane.running, lane.holder)
    before = {each.id for each in at_it if each is not None and each.pinned}
    found: dict[int, QueuePlace] = {}
    for position, session in enumerate(waiting, start=1):
        why = reason(session, table)
        ahead = len(before - {session.id}) if why.on == "turn" else None
        found[session.id] = QueuePlace(why, position, ahead)
        if ahead is not None:  # others may be passed by
            before.add(session.id)
    return found


def reason(session: ScheduledSession, table: LaneTable) -> Reason:
    """Return why a waiting session waits."""
    if table.draining and not session.pinned:
        return Reason("drain")
    if session.residence in (Residence.SPILLING, Residence.RESTORING):
        return Reason("copy")
    found = _behind(session, table)
    return Reason("budget", found.users) if session.user.throttled else found


def _behind(session: ScheduledSession, table: LaneTable) -> Reason:
    """Behind whom, in the lane or before all lanes."""
    if table.starving is not None and table.starving is not session:
        return Reason("memory", (table.starving.user.name,))
    lane = session.lane
    if lane is not None and session.room.awaits_growth_since is None:
        holder = lane.running if lane.holder is session else lane.holder
        return Reason("turn", (holder.user.name,) if holder is not None else ())
    others = {
        other.user.name
        for other in table.sessions.values()
        if other is not session and (other.lane or other.held)
    }
    return Reason("memory", tuple(sorted(others)))
