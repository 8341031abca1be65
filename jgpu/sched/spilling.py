"""Whose memory goes to the host when it is short, and whose comes back.

Whoever waits for memory has others give theirs up: first what a failed cell left, which nobody is
expected to use again; then what idle sessions keep, longest idle first; and when that is not
enough and they have waited for `Limits.memory_turn_s`, what those keep that are at work, who then
wait for memory themselves (Gandiva's suspend and resume, Xiao et al., OSDI 2018, section 3.1, with
the model left where it is). Nobody's model is ever chosen; only `SpillAsked` may name it.

The rule: nothing of a session is in flight and no iteration of it is open when it is spilled; and
nobody is spilled in vain, that is unless what is given up lets the one who waits go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.actions import MemoryPart, Spill
from jgpu.sched.states import IllegalEvent, Residence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jgpu.sched.events import SessionRestored, SessionSpilled
    from jgpu.sched.journal import Journal
    from jgpu.sched.lanes.room import RoomKeeper
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["SpillPlanner"]


class SpillPlanner:
    """Chooses who is spilled, and follows what is on its way."""

    def __init__(
        self, limits: Limits, journal: Journal, table: LaneTable, room: RoomKeeper
    ) -> None:
        self._limits = limits
        self._journal = journal
        self._table = table
        self._room = room
        #: what each session that is YIELDING or SPILLING gives up
        self.leaving: dict[int, MemoryPart] = {}
        #: sessions in mid-iteration, AWAY, that no room was found for yet, oldest first
        self.stranded: dict[int, ScheduledSession] = {}
        self._look_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether anything is to go or to come that waits for a boundary or for room."""
        return bool(self.leaving or self.stranded)

    # --- what is told

    def ask(self, session: ScheduledSession, part: MemoryPart, why: str) -> None:
        """Have a session give up a part of its memory, now or at its next boundary."""
        if not session.ready or session.stuck or not _bytes_of(session, part):
            return
        self._journal.note(session.story, f"gives up {part} memory", why)
        self.leaving[session.id] = part
        if not session.pinned:
            self._spill(session)
        elif not session.yields:
            session.reside(Residence.YIELDING)

    def spilled(self, session: ScheduledSession, event: SessionSpilled) -> None:
        """Take note of what was copied to the host."""
        _check(event)
        if session.residence is not Residence.SPILLING:
            raise IllegalEvent(f"Session {session.id} was spilled while {session.residence}.")
        del self.leaving[session.id]
        now = self._journal.now
        if event.resident + event.kept >= session.memory.resident + session.memory.kept:
            session.memory.spared_until = now + self._limits.memory_turn_s
        session.memory.spilled = event.spilled
        session.reside(Residence.AWAY if event.spilled else Residence.HERE)
        self._room.hold(session, event.resident, event.kept)
        self._room.refit(session)
        self._table.changed = True

    def restored(self, session: ScheduledSession, event: SessionRestored) -> None:
        """Take note of what was copied back."""
        _check(event)
        if session.residence is not Residence.RESTORING:
            raise IllegalEvent(f"Session {session.id} was restored while {session.residence}.")
        self._room.restored(session, event.resident, event.kept, event.spilled)
        if event.spilled:
            session.memory.away_until = self._journal.now + self._limits.retry_s
            self._put_aside(session)

    def short(self, session: ScheduledSession, nbytes: int) -> None:
        """Have those who rest give up what they keep, for less is free than was counted on."""
        others = self._givers(session)
        between_works = [
            (each, MemoryPart.KEPT, each.memory.kept - each.memory.stale)
            for each in others
            if each.arrival and not each.has_work and not each.pinned
        ]
        for victim, part, found in (*self._resting(others), *between_works):
            if nbytes <= 0:
                return
            self.ask(victim, part, f"session {session.id} is short of memory")
            nbytes -= found

    def wanted(self, session: ScheduledSession, spilled: int) -> None:
        """Bring back what would not have come back by itself, before anything else runs."""
        if spilled <= 0:
            raise IllegalEvent(f"Session {session.id} wants {spilled} bytes back.")
        if session.residence is Residence.AWAY:
            session.memory.spilled = spilled
        if not session.ready:
            return
        self.leaving.pop(session.id, None)
        session.memory.spilled = spilled
        session.reside(Residence.AWAY)
        self._put_aside(session)
        self._room.refit(session)
        self._table.changed = True

    def cell_started(self, session: ScheduledSession) -> None:
        """Bring back what is AWAY of a session ahead of its work, if there is room."""
        away, table = session.residence is Residence.AWAY, self._table
        waits = session.lane is None and not table.unplaced and not table.draining
        if away and waits and table.has_room_for(session):
            self._room.restore(session)

    def forget(self, session: ScheduledSession) -> None:
        """The session is closed, or comes to no boundary any more."""
        self.leaving.pop(session.id, None)
        self.stranded.pop(session.id, None)
        if session.yields:
            session.reside(Residence.HERE)

    def _put_aside(self, session: ScheduledSession) -> None:
        """Have an AWAY session wait for room, in its lane only where it cannot leave it."""
        if session.pinned:
            self.stranded[session.id] = session
        elif session.lane is not None:
            self._table.leave(session, "what it needs is on the host")

    # --- what is done of itself

    def advance(self) -> None:
        """Spill those who have come to a boundary, and restore those who wait for it in one."""
        table = self._table
        for number in list(self.leaving):
            session = table.sessions[number]
            if session.yields and not session.pinned:
                self._spill(session)
        for session in list(self.stranded.values()):
            if session.residence is not Residence.AWAY or not session.pinned:
                del self.stranded[session.id]
                if session.residence is Residence.AWAY:
                    self._put_aside(session)
            elif table.has_room_for(session):
                del self.stranded[session.id]
                self._room.restore(session)

    def _spill(self, session: ScheduledSession) -> None:
        if session.lane is not None:
            self._table.leave(session, "its memory goes to the host")
        session.reside(Residence.SPILLING)
        part = self.leaving[session.id]
        self._journal.act(Spill(session.id, part, cause=self._journal.cause))

    def relieve(self) -> None:
        """Have others give memory up for whoever has waited longest of those it can help.

        Those who wait in mid-iteration come first.
        """
        now = self._journal.now
        if now < self._look_at:
            return
        self._look_at = now + self._limits.look_s
        sessions, table = self._table.sessions, self._table
        on_its_way = sum(_bytes_of(sessions[id_], part) for id_, part in self.leaving.items())
        refused: float = float("inf")
        for claimant in (
            *self.stranded.values(),
            *table.awaiting_growth.values(),
            *(() if table.draining else table.unplaced.values()),
        ):
            lacking = table.lacking(claimant)
            if claimant.residence is Residence.SPILLING or not 0 < lacking < refused:
                continue
            if lacking <= on_its_way or self._find_for(claimant, lacking - on_its_way):
                return
            refused = lacking

    def _find_for(self, claimant: ScheduledSession, lacking: int) -> bool:
        """Have others give so many bytes up for one who waits; whether they can."""
        victims, found = [], 0
        for victim, part, nbytes in self._victims(claimant):
            victims.append((victim, part))
            found += nbytes
            if found >= lacking:
                break
        else:
            if self._waits_for_ever(claimant):
                self._room.lower(claimant)
            return False
        for victim, part in victims:
            self.ask(victim, part, f"session {claimant.id} waits for it")
        return True

    def _victims(
        self, claimant: ScheduledSession
    ) -> Iterator[tuple[ScheduledSession, MemoryPart, int]]:
        """Yield who may give up what, and how many bytes more that is; the best first."""
        now = self._journal.now
        others = self._givers(claimant)
        yield from self._resting(others)
        turn_s = self._limits.memory_turn_s
        since = claimant.waiting.lane_since
        if since is None:
            since = claimant.room.awaits_growth_since
        if since is not None and now - since < turn_s:
            return
        busy = [each for each in others if each.arrival and now - each.memory.here_since >= turn_s]
        for session in sorted(busy, key=lambda each: (each.has_work, each.memory.here_since)):
            stale = 0 if session.has_work or session.pinned else session.memory.stale
            yield session, MemoryPart.KEPT, session.memory.kept - stale

    def _givers(self, claimant: ScheduledSession) -> list[ScheduledSession]:
        """Return the other sessions that keep something and are not giving it up already."""
        now = self._journal.now
        others = [
            each
            for each in self._table.sessions.values()
            if each is not claimant
            and each.ready
            and not each.stuck
            and each.id not in self.leaving
        ]
        return [each for each in others if each.memory.kept and now >= each.memory.spared_until]

    def _resting(
        self, others: list[ScheduledSession]
    ) -> Iterator[tuple[ScheduledSession, MemoryPart, int]]:
        """Yield, of those who do nothing, first what is stale, then the rest of the idle ones."""
        resting = [each for each in others if not each.has_work and not each.pinned]
        for session in resting:
            if session.memory.stale:
                yield session, MemoryPart.STALE, session.memory.stale
        idle = [each for each in resting if not each.arrival]
        for session in sorted(idle, key=lambda each: each.waiting.idle_since or 0.0):
            yield session, MemoryPart.KEPT, session.memory.kept - session.memory.stale

    def _waits_for_ever(self, claimant: ScheduledSession) -> bool:
        """Whether what is asked for by estimate could not be had beside others' models.

        A work that is known to need less then goes ahead, after a while: the estimate is of other
        works, that ran when there was more room.
        """
        since = claimant.waiting.lane_since
        if since is None or claimant.room.need <= claimant.room.claim:
            return False
        if self._journal.now - since < self._limits.memory_turn_s:
            return False
        others = [each for each in self._table.sessions.values() if each is not claimant]
        models = sum(each.held if each.stuck else each.memory.resident for each in others)
        own = claimant.held + claimant.memory.spilled - claimant.memory.returning
        return models + own + claimant.room.need > self._table.capacity

    def validate(self) -> None:
        """Check every invariant of what is on its way."""
        sessions = self._table.sessions
        leaving = {Residence.YIELDING, Residence.SPILLING}
        assert self.leaving.keys() == {
            number for number, each in sessions.items() if each.residence in leaving
        }
        for number, session in self.stranded.items():
            assert sessions[number] is session


def _bytes_of(session: ScheduledSession, part: MemoryPart) -> int:
    """Return how many bytes of the device a part of a session's memory is."""
    if part is MemoryPart.STALE:
        return session.memory.stale
    return session.memory.kept + (session.memory.resident if part is MemoryPart.ALL else 0)


def _check(event: SessionSpilled | SessionRestored) -> None:
    if min(event.resident, event.kept, event.spilled) < 0:
        raise IllegalEvent(f"Session {event.session} holds less than nothing: {event}.")
