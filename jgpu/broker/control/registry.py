"""Seats and sessions: who holds what, who may have one more. Pure: no socket, clock or randomness.

A seat is a kernel's place at the broker, known by its ticket; it survives restarts of the kernel
and lasts until its holder gives it up or is gone. A session is one connected process. A kernel and
the processes it starts share a ticket; each has a session of its own. A session whose ticket is
not known (the broker was restarted meanwhile) is served like any other: the ticket names the seat,
it is no key to the door.

Invariant: a ticket means something only where it was taken: to the same uid, by the same socket.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from jgpu.broker.control.listening.identity import Identity, Peer
from jgpu.broker.control.listening.shares import Shares
from jgpu.errors import BrokerRefused, QuotaExceeded

__all__ = ["Origin", "Registry", "SeatRecord", "SessionPhase", "SessionRecord", "UserUsage"]


#: where a seat was taken, as `Peer.origin` has it
Origin: TypeAlias = tuple[int, str]
#: users whose settled use is remembered
_USERS: Final = 4096


class SessionPhase(Enum):
    """Where a session is, as the control process knows it."""

    #: admitted; no executor has it yet, or the one that had it ended
    WAITING = "waiting"
    #: an executor has it
    ADOPTED = "adopted"
    #: the executor was told to drop it and has not answered yet
    ENDING = "ending"
    #: its memory is free
    ENDED = "ended"


_NEXT = {
    SessionPhase.WAITING: {SessionPhase.ADOPTED, SessionPhase.ENDED},
    SessionPhase.ADOPTED: {SessionPhase.WAITING, SessionPhase.ENDING, SessionPhase.ENDED},
    SessionPhase.ENDING: {SessionPhase.ENDED},
    SessionPhase.ENDED: set[SessionPhase](),
}


@dataclass(slots=True)
class SeatRecord:
    """A kernel's place. `holder` is the process that took it, normally the Jupyter server."""

    ticket: str
    user: str
    holder: Peer
    kernel_id: str
    label: str
    #: whose limits it counts for
    identity: Identity
    #: the holder's process is gone; the seat goes with its last session
    abandoned: bool = False


@dataclass(slots=True)
class SessionRecord:
    """One connected process."""

    number: int
    user: str
    peer: Peer
    ticket: str
    kernel_id: str
    label: str
    since: float
    #: whose limits it counts for
    identity: Identity
    #: bytes of the memory that it shares with the broker
    arena: int = 0
    state: SessionPhase = SessionPhase.WAITING
    #: how many executors have had it; `Adopt.epoch` of the next one
    adoptions: int = 0
    #: its class: 0 interactive, 1 normal, 2 batch
    priority: int = 1

    def become(self, state: SessionPhase) -> None:
        """Change the state; a pair that is not in the table is our own mistake."""
        if state not in _NEXT[self.state]:
            raise AssertionError(f"Session {self.number} cannot go from {self.state} to {state}.")
        self.state = state

    @property
    def live(self) -> bool:
        """Counts against limits: neither ending nor ended."""
        return self.state in (SessionPhase.WAITING, SessionPhase.ADOPTED)


@dataclass(slots=True)
class UserUsage:
    """What a user's ended sessions used, since the broker started."""

    sessions: int = 0
    device_seconds: float = 0.0


@dataclass(slots=True)
class Registry:
    """All seats and sessions of one broker."""

    shares: Shares
    #: (origin of the holder, ticket) -> seat
    seats: dict[tuple[Origin, str], SeatRecord] = field(default_factory=dict)
    #: number -> session, none of them ENDED
    sessions: dict[int, SessionRecord] = field(default_factory=dict)
    #: user -> what is settled, of those whose sessions ended last
    usage: OrderedDict[str, UserUsage] = field(default_factory=OrderedDict)
    #: number of the last session; never used again
    last_number: int = 0

    # -- seats -------------------------------------------------------------------------------

    def take_seat(
        self, ticket: str, user: str, holder: Peer, kernel_id: str, label: str, identity: Identity
    ) -> SeatRecord:
        """A new seat under a fresh ticket; a seat costs little, so only their number is limited.

        Raises `QuotaExceeded`.
        """
        own = sum(seat.identity == identity for seat in self.seats.values())
        self.shares.check_seat(user, own, len(self.seats))
        seat = SeatRecord(ticket, user, holder, kernel_id, label, identity)
        self.seats[holder.origin, ticket] = seat
        return seat

    def holder_of(self, ticket: str, origin: Origin) -> str:
        """The user whose ticket it is, where that is not of this origin; empty where it is."""
        others = (s.user for s in self.seats.values() if s.ticket == ticket)
        return next(others, "") if ticket and (origin, ticket) not in self.seats else ""

    def leave_seat(self, ticket: str, origin: Origin, *, restart: bool) -> list[SessionRecord]:
        """The sessions to end; the seat itself is kept for a restart. Unknown tickets end none."""
        if not restart:
            self.seats.pop((origin, ticket), None)
        return [s for s in self.of_ticket(origin, ticket) if s.live] if ticket else []

    def holder_gone(self, origin: Origin, ticket: str) -> None:
        """The process that took the seat ended without giving it up."""
        seat = self.seats.get((origin, ticket))
        if seat is not None:
            seat.abandoned = True
            self._drop_abandoned(origin, ticket)

    def of_ticket(self, origin: Origin, ticket: str) -> Iterator[SessionRecord]:
        """The sessions that came with this ticket."""
        return (s for s in self.sessions.values() if s.ticket == ticket and s.peer.origin == origin)

    def _drop_abandoned(self, origin: Origin, ticket: str) -> None:
        seat = self.seats.get((origin, ticket))
        if seat is not None and seat.abandoned and not any(self.of_ticket(origin, ticket)):
            del self.seats[origin, ticket]

    # -- sessions ----------------------------------------------------------------------------

    def check_room(self, user: str, identity: Identity, most: int = 0, arena: int = 0) -> None:
        """Raise `BrokerRefused` or `QuotaExceeded` if `user` cannot have one more session.

        `most` sessions are what the user's quota allows, 0: what one identity may have. `arena`
        bytes of shared memory are what it brings along.
        """
        share = self.shares.sessions
        live = [session for session in self.sessions.values() if session.live]
        mine = [session for session in live if session.identity == identity]
        if not share.is_left(len(mine), len(live)):
            kept = (
                ""
                if len(live) >= share.total
                else (f" but {share.kept}, which are kept for those who have none")
            )
            raise BrokerRefused(
                f"The shared device serves {len(live)} sessions already, the most it is set up "
                f"for{kept}. Try again when some have ended, or ask the administrator to raise "
                "max_sessions."
            )
        own = sum(session.user == user for session in live) if most else len(mine)
        limit = most or share.each
        if own >= limit:
            setting = "" if most else " (max_user_sessions)"
            raise QuotaExceeded(
                f"{user} has {own} sessions on the shared device; {user} may have {limit}"
                f"{setting}. Shut down notebooks that are not needed."
            )
        # Those that are ending hold descriptors and memory until they have ended.
        every = [s for s in self.sessions.values() if s.identity == identity]
        if len(every) - len(mine) >= 2 * limit:  # whoever restarts all kernels has `limit`
            raise QuotaExceeded(
                f"{len(every) - len(mine)} sessions of {user} are ending, twice as many as {user} "
                "may have. Try again when their last computations are over."
            )
        self.shares.check_arena(user, sum(s.arena for s in every), arena)

    def admit(
        self,
        peer: Peer,
        user: str,
        *,
        ticket: str,
        kernel_id: str,
        label: str,
        now: float,
        identity: Identity,
        arena: int = 0,
        priority: int = 1,
        most: int = 0,
    ) -> SessionRecord:
        """A new session, seated if its ticket is known; raises as `check_room` does.

        What the request leaves empty comes from the seat.
        """
        seat = self.seats.get((peer.origin, ticket))
        if seat is not None:
            kernel_id, label = kernel_id or seat.kernel_id, label or seat.label
        self.check_room(user, identity, most, arena)
        self.last_number += 1
        session = SessionRecord(
            self.last_number, user, peer, ticket, kernel_id, label, now, identity, arena,
            priority=priority,
        )  # fmt: skip
        self.sessions[session.number] = session
        return session

    def adopted(self, number: int) -> None:
        """An executor got the session."""
        session = self.sessions[number]
        session.become(SessionPhase.ADOPTED)
        session.adoptions += 1

    def book(self, number: int, device_seconds: float) -> None:
        """Time that an executor which is gone had measured for a session that goes on."""
        user = self.sessions[number].user
        self._usage_of(user).device_seconds += max(0.0, device_seconds)

    def _usage_of(self, user: str) -> UserUsage:
        usage = self.usage.setdefault(user, UserUsage())
        self.usage.move_to_end(user)
        if len(self.usage) > _USERS:
            self.usage.popitem(last=False)
        return usage

    def end(self, number: int) -> bool:
        """Begin the end of a session; False if no executor has to be told."""
        session = self.sessions.get(number)
        if session is None or session.state is SessionPhase.ENDING:
            return False
        if session.state is SessionPhase.ADOPTED:
            session.become(SessionPhase.ENDING)
            return True
        self.ended(number, 0.0)
        return False

    def ended(self, number: int, device_seconds: float) -> SessionRecord | None:
        """The session's memory is free; its time is booked. None if it was not known."""
        session = self.sessions.pop(number, None)
        if session is None:
            return None
        session.become(SessionPhase.ENDED)
        usage = self._usage_of(session.user)
        usage.sessions += 1
        usage.device_seconds += max(0.0, device_seconds)
        self._drop_abandoned(session.peer.origin, session.ticket)
        return session

    def executor_gone(self) -> list[SessionRecord]:
        """All sessions lost their executor: live ones wait again; the others, returned, ended."""
        over = []
        for session in list(self.sessions.values()):
            if session.state is SessionPhase.ENDING:
                self.ended(session.number, 0.0)
                over.append(session)
            elif session.state is SessionPhase.ADOPTED:
                session.become(SessionPhase.WAITING)
        return over

    def waiting(self) -> list[SessionRecord]:
        """Sessions that no executor has, in the order they came."""
        return [s for s in self.sessions.values() if s.state is SessionPhase.WAITING]

    @property
    def unused(self) -> bool:
        """Nobody has a seat or a session."""
        return not self.seats and not self.sessions

    def validate(self) -> None:
        """Assert every invariant above."""
        for (origin, ticket), seat in self.seats.items():
            assert seat.ticket == ticket
            assert seat.holder.origin == origin
            assert not seat.abandoned or any(self.of_ticket(origin, ticket))
        for number, session in self.sessions.items():
            assert session.number == number <= self.last_number
            assert session.state is not SessionPhase.ENDED
            assert session.adoptions > 0 or session.state is SessionPhase.WAITING
        assert sum(s.live for s in self.sessions.values()) <= self.shares.sessions.total
        assert len(self.seats) <= self.shares.seats.total
        for identity in {seat.identity for seat in self.seats.values()}:
            own = [seat for seat in self.seats.values() if seat.identity == identity]
            assert len(own) <= self.shares.seats.each
        for identity in {session.identity for session in self.sessions.values()}:
            held = [s.arena for s in self.sessions.values() if s.identity == identity]
            assert sum(held) <= self.shares.arena_bytes
