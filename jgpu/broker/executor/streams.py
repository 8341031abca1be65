"""The descriptors that the pump waits for, and back-pressure: who is read, who is written.

A session that has much in hand already, or whose user has, is not read until it has less to do;
what waits for a socket that was full is written when it takes more.

Invariant: a session waits in one place at most, and only while messages of it were read and not
dealt with.
"""

import select
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.session import ExecutorSession
from jgpu.wakefulness import Wakefulness
from jgpu.wire.messages import ClientMessage

__all__ = ["Streams"]

#: works, and bytes of works, past which a session's stream is not read
_QUEUED_WORKS: Final = 2048
_QUEUED_BYTES: Final = 16 << 20
#: the same of all sessions of a user, and what its notebooks may leave unread
_USERS_QUEUED_BYTES: Final = 64 << 20
_USERS_UNSENT_BYTES: Final = 128 << 20
#: so little that it never matters who else has how much
_LITTLE_BYTES: Final = 256 << 10
#: probes and definitions of one session that may be with the helper threads
_HELPING: Final = 64


class Streams:
    """The sessions whose sockets the pump has to come back to."""

    def __init__(self, wake_fd: int) -> None:
        """`wake_fd` is what other threads wake the pump by."""
        self._epoll = select.epoll()
        #: what to call with the mask when a descriptor is ready; none where it has ended meanwhile
        self.handlers: dict[int, Callable[[int], None]] = {wake_fd: lambda mask: None}
        self._epoll.register(wake_fd, select.EPOLLIN | select.EPOLLET)
        self._wakefulness = Wakefulness()
        #: something was ready since one last waited
        self._heard = False
        #: bytes that were read last: who repeats a program says the same at each turn
        self._received = 0
        #: sessions with messages that were read and not dealt with
        self.backlog: dict[int, ExecutorSession] = {}
        #: sessions that are not read until they have less to do
        self.stalled: dict[int, ExecutorSession] = {}
        #: by user, what waits of all its sessions, where somebody looked in this turn
        self._waiting_bytes: dict[str, int] = {}
        #: sessions whose socket was full when something was sent
        self.blocked: set[int] = set()

    # -- descriptors -------------------------------------------------------------------------

    def watch(self, descriptor: int, handler: Callable[[int], None]) -> None:
        """Call `handler(mask)` whenever the descriptor can be read."""
        self.handlers[descriptor] = handler
        self._epoll.register(descriptor, select.EPOLLIN)

    def poll(self, wait_s: float, *, awake: bool = False) -> list[tuple[int, int]]:
        """Wait so long, below 0 for ever; returns what is ready, and how.

        `awake`: for a moment after somebody was heard, more of the same may be soon.
        """
        poll = self._epoll.poll
        if awake and wait_s and self._heard:
            ready = self._wakefulness.wait(poll, wait_s, self._received, self._nap)
        else:
            ready = poll(wait_s)
        if wait_s or ready:
            self._heard = bool(ready)
        return ready

    def _nap(self, seconds: float) -> None:
        """Sleep, or until something is ready, more exactly than `epoll` counts."""
        select.select((self._epoll,), (), (), seconds)

    def end(self, session: ExecutorSession) -> None:
        """A session's stream is closed next: nothing of it is read any more."""
        self.backlog.pop(session.number, None)
        self.handlers.pop(session.connection.fileno(), None)
        self._epoll.unregister(session.connection.fileno())

    def forget(self, number: int) -> None:
        """The session of this number is gone: nothing is written to it any more."""
        self.blocked.discard(number)

    def update_mask(self, session: ExecutorSession) -> None:
        """Read while there is room, write while something waits to be written."""
        connection = session.connection
        mask = 0 if session.number in self.stalled else select.EPOLLIN
        if connection.unsent_bytes:
            mask |= select.EPOLLOUT
        if mask != connection.mask:
            connection.mask = mask
            self._epoll.modify(connection.fileno(), mask)

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._epoll.close()

    # -- reading -----------------------------------------------------------------------------

    def read(self, connection: Connection[ClientMessage]) -> Iterator[ClientMessage]:
        """Messages in what a session's socket holds now."""
        found = connection.receive()
        self._received = connection.received
        return found

    def has_room(self, session: ExecutorSession) -> bool:
        """Whether another message of a session may be dealt with."""
        queue, programs = session.queue, session.programs
        waiting = queue.nbytes + queue.notes_bytes + programs.nbytes  # its `waiting_bytes`
        return (
            queue.outstanding < _QUEUED_WORKS
            and (waiting < _LITTLE_BYTES or self._has_room_beside(session, waiting))
            and programs.helping + len(queue.cancel_requests) < _HELPING
        )

    def _has_room_beside(self, session: ExecutorSession, waiting: int) -> bool:
        """Whether what waits is not much: of the session, and of all of its user's."""
        if waiting >= _QUEUED_BYTES:
            return False
        account = session.account
        if account.user not in self._waiting_bytes:
            self._waiting_bytes[account.user] = account.waiting_bytes
        return self._waiting_bytes[account.user] < _USERS_QUEUED_BYTES

    def put_back(self, session: ExecutorSession) -> None:
        """Messages of a session are left: for the next round, or until it has less to do."""
        kept = self.backlog if self.has_room(session) else self.stalled
        kept[session.number] = session

    def resume(self) -> None:
        """Read the stalled sessions again that have less to do."""
        self._waiting_bytes.clear()
        for session in list(self.stalled.values()) if self.stalled else ():
            if session.life.is_closed:
                del self.stalled[session.number]
            elif self.has_room(session):
                del self.stalled[session.number]
                self.backlog[session.number] = session
                self.update_mask(session)

    # -- writing -----------------------------------------------------------------------------

    def write_blocked(
        self, sessions: Mapping[int, ExecutorSession]
    ) -> Iterator[tuple[ExecutorSession, str]]:
        """Write where a socket was full; yields who is to be ended for that, and why."""
        while self.blocked:
            session = sessions.get(self.blocked.pop())
            if session is None or session.life.is_closed:
                continue
            connection = session.connection
            if connection.broken is not None:
                yield session, connection.broken
                continue
            connection.flush()
            unsent = connection.unsent_bytes
            if unsent > _LITTLE_BYTES and session.account.unsent_bytes > _USERS_UNSENT_BYTES:
                yield session, "This user's notebooks do not read what they are sent."
            else:
                self.update_mask(session)

    def validate(self, sessions: Mapping[int, ExecutorSession]) -> None:
        """Check what must always hold between two rounds."""
        for kept in (self.backlog, self.stalled):
            assert all(session.connection.inbox is not None for session in kept.values())
            assert kept.keys() <= sessions.keys()
        assert not self.backlog.keys() & self.stalled.keys()
