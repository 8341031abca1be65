"""Whose messages are dealt with next, and who is not read for now: back-pressure.

A session is dealt with a few messages at a time. One that has much in hand already, or whose user
has, is not read until it has less to do.

Invariant: a session waits in one place at most, and only while messages of it were read and not
dealt with.
"""

from collections.abc import Iterator
from typing import Final

from jgpu.broker.executor.session import ExecutorSession

__all__ = ["HELPING", "LITTLE_BYTES", "Streams"]

#: works, and bytes of works, past which a session's stream is not read
_QUEUED_WORKS: Final = 2048
_QUEUED_BYTES: Final = 16 << 20
#: the same of all sessions of a user
_USERS_QUEUED_BYTES: Final = 64 << 20
#: so little that it never matters who else has how much
LITTLE_BYTES: Final = 256 << 10
#: probes and definitions of one session that may be with the helper threads
HELPING: Final = 64


class Streams:
    """The sessions whose sockets the pump has to come back to."""

    def __init__(self) -> None:
        #: sessions with messages that were read and not dealt with
        self.backlog: dict[int, ExecutorSession] = {}
        #: sessions that are not read until they have less to do
        self.stalled: dict[int, ExecutorSession] = {}
        #: by user, what waits of all its sessions, where somebody looked in this turn
        self._waiting_bytes: dict[str, int] = {}
        #: sessions whose socket was full when something was sent
        self.blocked: set[int] = set()

    def has_room(self, session: ExecutorSession) -> bool:
        """Whether another message of a session may be dealt with."""
        queue, programs = session.queue, session.programs
        return (
            queue.outstanding < _QUEUED_WORKS
            and self._has_room_for_bytes(session)
            and programs.helping + len(queue.cancel_requests) < HELPING
        )

    def _has_room_for_bytes(self, session: ExecutorSession) -> bool:
        """Whether what waits is little, or not much: of the session, and of all of its user's."""
        waiting = session.waiting_bytes
        if waiting < LITTLE_BYTES or waiting >= _QUEUED_BYTES:
            return waiting < LITTLE_BYTES
        account = session.account
        if account.user not in self._waiting_bytes:
            self._waiting_bytes[account.user] = account.waiting_bytes
        return self._waiting_bytes[account.user] < _USERS_QUEUED_BYTES

    def put_back(self, session: ExecutorSession) -> None:
        """Messages of a session are left: for the next round, or until it has less to do."""
        kept = self.backlog if self.has_room(session) else self.stalled
        kept[session.number] = session

    def resume(self) -> Iterator[ExecutorSession]:
        """Yield the stalled sessions that are read again from here on."""
        self._waiting_bytes.clear()
        for session in list(self.stalled.values()):
            if session.life.is_closed:
                del self.stalled[session.number]
            elif self.has_room(session):
                del self.stalled[session.number]
                self.backlog[session.number] = session
                yield session

    def forget(self, number: int) -> None:
        """The session of this number is gone: nothing is written to it any more."""
        self.blocked.discard(number)

    def validate(self, sessions: dict[int, ExecutorSession]) -> None:
        """Check what must always hold between two rounds."""
        for kept in (self.backlog, self.stalled):
            assert all(session.connection.inbox is not None for session in kept.values())
            assert kept.keys() <= sessions.keys()
        assert not self.backlog.keys() & self.stalled.keys()
