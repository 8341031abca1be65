"""Finds lanes for the sessions that have none, and takes places away where memory is short.

The rule: whoever has waited longest is looked at first; a session is taken out of its lane at a
boundary only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.lanes.memory import find_lane
from jgpu.sched.states import LaneState, Residence

if TYPE_CHECKING:
    from jgpu.sched.journal import Journal
    from jgpu.sched.lanes.lane import Lane
    from jgpu.sched.lanes.memory import Placement
    from jgpu.sched.lanes.room import RoomKeeper
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions.session import ScheduledSession
    from jgpu.sched.spilling import SpillPlanner

__all__ = ["LanePlacing"]


class LanePlacing:
    """Gives sessions places in lanes, and takes them."""

    def __init__(
        self, limits: Limits, journal: Journal, table: LaneTable, room: RoomKeeper
    ) -> None:
        self._limits = limits
        self._journal = journal
        self._table = table
        self._room = room

    def make_room(self, spilling: SpillPlanner) -> None:
        """Let those go on who wait for memory, as far as that can be."""
        table = self._table
        if spilling.busy:
            spilling.advance()
        if table.awaiting_growth:
            self._room.look_at_growth()
        if (table.unplaced or table.starving is not None) and not table.draining:
            self.place_waiting()
        if table.unplaced or table.awaiting_growth or spilling.busy:
            spilling.relieve()

    def spread(self) -> None:
        """Let somebody who waits in the fullest lane look for another, for there may be more."""
        table = self._table
        if not table.lanes or not table.may_open:
            return
        fullest = max(table.lanes.values(), key=lambda lane: (len(lane.waiting), -lane.id))
        movable = [each for each in fullest.waiting.values() if not each.pinned and each.ready]
        if movable:
            table.leave(movable[-1], "a lane more may be used")

    def sweep(self) -> None:
        """Clear lanes that must close, and all lanes while the safety condition is broken."""
        for lane in list(self._table.lanes.values()):
            if lane.state is LaneState.CLOSING:
                self._vacate_lane(lane, "the lane closes", idle_only=False)
        if self._table.overcommitted:
            self._vacate(idle_only=True)
        if self._table.overcommitted:
            self._vacate(idle_only=False)

    def place_waiting(self) -> None:
        """Find lanes for the sessions that have none, longest waiting first."""
        table = self._table
        table.starving = self._find_starving()
        if table.starving is not None:
            self._vacate(idle_only=False)
            if self._place(table.starving):
                table.starving = None
            else:
                return
        if not table.changed:
            return
        table.changed = False
        refused = None
        for session in list(table.unplaced.values()):
            if self._journal.now < session.memory.away_until:
                table.changed = True  # it is looked at again with the next event
                continue
            wanted = session.room.need + session.memory.spilled
            if refused is not None and wanted >= refused:
                continue
            if not self._place(session):
                refused = wanted

    def _find_starving(self) -> ScheduledSession | None:
        """Return the first who has lost patience and whom it would help if others held still."""
        table = self._table
        for session in table.unplaced.values():
            assert session.waiting.lane_since is not None
            if self._journal.now - session.waiting.lane_since < self._limits.patience_s:
                return None
            wanted = session.room.need + session.memory.spilled
            fits = table.held + wanted + self._stuck_bytes() <= table.capacity
            if fits and self._journal.now >= session.memory.away_until:
                return session
        return None

    def _stuck_bytes(self) -> int:
        """Return what iterations hold that are under way but have nothing to run, or do not end."""
        stuck = 0
        for lane in self._table.lanes.values():
            if lane.state is LaneState.RETIRED:
                stuck += lane.capacity + lane.suspended
                continue
            needs = [
                (each.room.need, each.room.suspended)
                for each in lane.members.values()
                if each.iteration_open and not each.has_work
            ]
            if needs:
                stuck += max(need for need, _ in needs)
                stuck += sum(need for need, suspended in needs if suspended)
        return stuck

    def _place(self, session: ScheduledSession) -> bool:
        table = self._table
        if session.residence is Residence.SPILLING:
            return True  # it finds out when that is over
        placement = self._find(session)
        if placement is None:
            self._vacate(idle_only=True)
            placement = self._find(session)
            if placement is None:
                return False
        lane = placement.lane or table.open_lane(placement.capacity)
        table.resize(lane, placement.capacity)
        table.join(session, lane, placement.reason)
        if session.residence is Residence.AWAY:
            self._room.restore(session)
        return True

    def _find(self, session: ScheduledSession) -> Placement | None:
        table, memory = self._table, session.memory
        committed = table.committed + (memory.spilled - memory.returning)
        maximum = table.maximum + table.retired
        return find_lane(
            session.room.need, committed, table.capacity, maximum, table.lanes.values()
        )

    def _vacate(self, *, idle_only: bool) -> None:
        """Take sessions at a boundary out of all lanes, and shrink the lanes to what is left."""
        for lane in list(self._table.lanes.values()):
            self._vacate_lane(lane, "others need the memory", idle_only=idle_only)
            if lane.members:
                self._table.resize(lane, max(each.room.need for each in lane.members.values()))

    def _vacate_lane(self, lane: Lane, reason: str, *, idle_only: bool) -> None:
        for session in list(lane.members.values()):
            if not session.pinned and not (idle_only and session.queue):
                self._table.leave(session, reason)
