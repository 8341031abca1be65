"""Lanes that are given up, because what runs in them does not end.

The sessions that wait in such a lane go elsewhere: those at a boundary look for a lane as everybody
does, those in mid-iteration go on in another at once, for only their iteration's end gives memory
back. What was started there and never begun is started again. Whoever's work does not end stays,
and so does what it may touch: P and K, and T as the lane's capacity. A retired lane does not count
among the lanes that there may be; it closes when its work ends after all.

What is not covered: who decides that something does not end, which takes a clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from jgpu.sched.lanes.memory import committed_bytes
from jgpu.sched.states import IllegalEvent, LaneState, WorkState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jgpu.sched.journal import Journal
    from jgpu.sched.lanes.lane import InFlight, Lane
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.sessions.session import ScheduledSession
    from jgpu.sched.spilling import SpillPlanner
    from jgpu.sched.turns import Turns

__all__ = ["Retirement", "is_cut_off"]


def is_cut_off(table: LaneTable) -> bool:
    """Whether no lane is open, and somebody waits for memory that retired lanes hold."""
    lanes, sessions = table.lanes.values(), table.sessions.values()
    retired = [lane for lane in lanes if lane.state is LaneState.RETIRED]
    if not retired or any(lane.state is LaneState.OPEN for lane in lanes):
        return False
    stuck = committed_bytes(sum(each.held for each in sessions if each.stuck), retired)
    return any(0 < table.lacking(each) <= stuck for each in table.unplaced.values())


class Retirement:
    """Gives lanes up, and finds places for those who were in them."""

    def __init__(
        self, journal: Journal, table: LaneTable, turns: Turns, spilling: SpillPlanner
    ) -> None:
        self._journal = journal
        self._table = table
        self._turns = turns
        self._spilling = spilling

    def retire(self, lane: Lane, returned: Sequence[int]) -> list[ScheduledSession]:
        """Give a lane up that is at something; returns the sessions whose works came back."""
        back = _returned(lane, returned)
        self._table.closing -= lane.state is LaneState.CLOSING
        self._table.retired += 1
        lane.become(LaneState.RETIRED)
        self._table.changed = True
        for each in reversed(back):
            self._unstart(lane, each)
        gone = {id(each) for each in back}
        lane.in_flight = deque(each for each in lane.in_flight if id(each) not in gone)
        self._give_turn(lane, lane.in_flight[0].session)
        for session in lane.members.values():
            self._square(lane, session)
            if session.in_flight:
                self._spilling.forget(session)
                self._journal.note(session.story, "is stuck", f"lane {lane.id} is retired")
        return list(dict.fromkeys(each.session for each in back))

    def clear(self) -> None:
        """Take sessions that have nothing in flight out of retired lanes."""
        table = self._table
        for lane in list(table.lanes.values()):
            if lane.state is not LaneState.RETIRED:
                continue
            for session in list(lane.members.values()):
                if session.in_flight:
                    continue
                if session.iteration_open:
                    self._rescue(session)
                else:
                    table.leave(session, "its lane is retired")
            if lane.members:
                table.resize(lane, max(each.room.need for each in lane.members.values()))

    def _rescue(self, session: ScheduledSession) -> None:
        """Have a session in mid-iteration, nothing of which is in flight, go on in another lane."""
        table = self._table
        open_lanes = [each for each in table.lanes.values() if each.state is LaneState.OPEN]
        if len(open_lanes) < table.maximum:
            lane = table.open_lane(session.room.need)
        else:
            lane = max(open_lanes, key=lambda each: (each.capacity, -each.id))
        table.move(session, lane, "its lane is retired")
        table.suspend(session)
        if lane.holder is None:
            self._turns.lease(lane, session, "is in mid-iteration")

    def _unstart(self, lane: Lane, flying: InFlight) -> None:
        """Undo a start, the youngest of its session's."""
        session, work, count = flying.session, flying.work, flying.count
        lane.take_off(session, count, sum(work.seconds[work.started - count : work.started]))
        work.started -= count
        if session.started and session.started[-1] is work:
            session.queue.appendleft(session.started.pop())
        if not work.started:
            work.become(WorkState.QUEUED)
        session.iteration_open = work.started > 0 or work.continues
        self._journal.note(session.story, "has not begun after all", f"lane {lane.id} is retired")

    def _give_turn(self, lane: Lane, session: ScheduledSession) -> None:
        """Let whoever the lane is at have the turn, unless who has it is bound to the lane too."""
        if lane.holder is None or not lane.holder.in_flight:
            lane.holder = session

    def _square(self, lane: Lane, session: ScheduledSession) -> None:
        """Bring in line what a member waits for and what of it is suspended."""
        holds = lane.holder is session
        if session.room.suspended and (holds or not session.iteration_open):
            self._table.resume(session)
        elif session.iteration_open and not (holds or session.room.suspended):
            self._table.suspend(session)
        if holds:
            lane.waiting.pop(session.id, None)
        elif session.queue and session.id not in lane.waiting:
            lane.await_turn(session, self._journal.now)


def _returned(lane: Lane, works: Sequence[int]) -> list[InFlight]:
    """Return what is in flight of these works; raises `IllegalEvent` where that cannot be so."""
    named = set(works)
    back = [each for each in lane.in_flight if each.work.id in named]
    if len({each.work.id for each in back}) < len(named):
        raise IllegalEvent(f"Lane {lane.id} gave back works that it does not have: {works}.")
    if lane.in_flight[0].work.id in named:
        raise IllegalEvent(f"Lane {lane.id} gave back work {lane.in_flight[0].work.id}, its own.")
    gone: set[int] = set()
    for each in lane.in_flight:
        if each.work.id in named:
            gone.add(each.session.id)
        elif each.session.id in gone:
            raise IllegalEvent(f"Lane {lane.id} kept work {each.work.id}, but none before it.")
    return back
