"""What sessions hold and need, as the lanes count it: measured, grown into, brought back.

A session whose next work needs more than its lane has grows the lane, or looks for another one; in
mid-iteration it cannot leave, and its work waits there for room as long as others can make any.

The rule: the table's sums change in one step with what a session holds on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.actions import Restore
from jgpu.sched.states import Residence

if TYPE_CHECKING:
    from jgpu.sched.journal import Journal
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["RoomKeeper"]


class RoomKeeper:
    """Counts what sessions hold, and has lanes grow with what they need."""

    def __init__(self, limits: Limits, journal: Journal, table: LaneTable) -> None:
        self._limits = limits
        self._journal = journal
        self._table = table

    def lower(self, session: ScheduledSession) -> None:
        """Let a session that waits ask for no more than its work is known to need."""
        session.room.uses_lower_bound = True
        self.refit(session)

    def measure(
        self, session: ScheduledSession, resident: int, kept: int, transient: int, spilled: int
    ) -> None:
        """Take over what was measured; `spilled` while the session is AWAY."""
        room = session.room
        self.hold(session, resident, kept)
        if transient != room.transient:
            room.transient, room.uses_lower_bound = transient, False
        if session.residence is Residence.AWAY:
            session.memory.spilled = spilled
            if not spilled:
                session.reside(Residence.HERE)
        self._table.changed = True
        self.refit(session)

    def hold(self, session: ScheduledSession, resident: int, kept: int) -> None:
        """Count what a session holds on the device from now on."""
        memory, table = session.memory, self._table
        table.held += resident + kept - memory.resident - memory.kept
        memory.resident, memory.kept = resident, kept
        memory.stale = min(memory.stale, kept)
        table.recount()

    def restore(self, session: ScheduledSession) -> None:
        """Have what is AWAY of a session brought back, and keep room for it."""
        memory, table = session.memory, self._table
        memory.returning = memory.spilled
        table.held += memory.returning
        session.reside(Residence.RESTORING)
        table.recount()
        self._journal.note(session.story, "is restored", f"{memory.spilled} bytes")
        self._journal.act(Restore(session.id, cause=self._journal.cause))

    def restored(self, session: ScheduledSession, resident: int, kept: int, spilled: int) -> None:
        """Count what has come back of a session that was RESTORING."""
        memory, table = session.memory, self._table
        table.held -= memory.returning
        memory.returning, memory.spilled = 0, spilled
        session.reside(Residence.AWAY if spilled else Residence.HERE)
        self.hold(session, resident, kept)
        memory.here_since = self._journal.now
        table.changed = True
        self.refit(session)

    def refit(self, session: ScheduledSession) -> None:
        """Adapt to what a session needs now: grow its lane, or have it look for another.

        In mid-iteration it cannot leave its lane: its next work waits there for room as long as
        others can make any.
        """
        table, room, memory = self._table, session.room, session.memory
        # What is coming back is among what it holds, and among what was spilled.
        beside = table.capacity - memory.resident - memory.kept - memory.spilled
        need = room.claim
        if room.transient > need and not room.uses_lower_bound:
            need = room.transient
        if need > beside:
            need = max(0, beside)
        lane = session.lane
        more = 0 if lane is None else need - lane.capacity
        fits = more <= 0 or table.committed + more <= table.capacity
        if not fits and session.pinned and self._may_wait(session):
            if room.awaits_growth_since is None:
                table.await_growth(session)
                self._journal.note(session.story, "waits in mid-iteration", f"for {more} bytes")
            room.wants = need
            return
        if room.awaits_growth_since is not None:
            table.end_wait_for_growth(session)
        if need == room.need:
            return
        if lane is not None and room.suspended:
            lane.suspended += need - room.need
        room.need = need
        table.recount()
        if lane is not None and more > 0:
            if session.pinned or fits:
                table.resize(lane, need)
            else:
                table.leave(session, "needs more than its lane can give")
        table.changed = True

    def _may_wait(self, session: ScheduledSession) -> bool:
        """Whether a work can wait in mid-iteration for room that others may make, in a while."""
        if session.room.suspended or not session.queue or session.queue[0].started:
            return False
        since, patience_s = session.room.awaits_growth_since, self._limits.room_patience_s
        if since is not None and self._journal.now - since >= patience_s:
            return False
        return any(
            each is not session and (each.memory.kept > 0 or each.lane not in (None, session.lane))
            for each in self._table.sessions.values()
        )

    def look_at_growth(self) -> None:
        """Give room in mid-iteration to those who waited for it, where there is some now."""
        for session in list(self._table.awaiting_growth.values()):
            self.refit(session)
