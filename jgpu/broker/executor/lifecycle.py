"""What has become of a session: it lives, its client broke the protocol, it ends, it is gone.

The pump moves a session on; a lane that finds the protocol broken says so, and no more. What a
lane says of a session that the pump has ended meanwhile changes nothing.

Invariant: a phase follows another only as `PHASE_MOVES` says.
"""

from collections.abc import Mapping
from enum import StrEnum
from threading import Lock
from typing import Final

__all__ = ["PHASE_MOVES", "LifePhase", "Lifecycle"]


class LifePhase(StrEnum):
    """How far a session's life has come."""

    LIVE = "live"
    #: a work showed that the client breaks the protocol; lanes skip what is behind it
    VIOLATED = "violated"
    #: its client wants to end; the pump closes the stream next
    ENDING = "ending"
    #: the stream is closed; what runs runs out
    CLOSED = "closed"
    #: everything was given back
    RELEASED = "released"


PHASE_MOVES: Final[Mapping[LifePhase, frozenset[LifePhase]]] = {
    LifePhase.LIVE: frozenset({LifePhase.VIOLATED, LifePhase.ENDING, LifePhase.CLOSED}),
    LifePhase.VIOLATED: frozenset({LifePhase.ENDING, LifePhase.CLOSED}),
    LifePhase.ENDING: frozenset({LifePhase.CLOSED}),
    LifePhase.CLOSED: frozenset({LifePhase.RELEASED}),
    LifePhase.RELEASED: frozenset(),
}

#: phases in which lanes skip, nothing is sent any more, the stream is closed
_OVER: Final = frozenset(LifePhase) - {LifePhase.LIVE}
_ENDED: Final = _OVER - {LifePhase.VIOLATED}
_CLOSED: Final = _ENDED - {LifePhase.ENDING}


class Lifecycle:
    """One session's."""

    __slots__ = ("_lock", "_phase", "has_ended", "is_closed", "is_over", "reason")

    def __init__(self) -> None:
        self.phase = LifePhase.LIVE
        #: why the session ends, for its client; empty while it lives, and where nothing is wrong
        self.reason = ""
        self._lock = Lock()

    @property
    def phase(self) -> LifePhase:
        """How far it has come."""
        return self._phase

    @phase.setter
    def phase(self, phase: LifePhase) -> None:
        self._phase = phase
        # Kept beside it, for every message asks several times.
        #: lanes skip the session's works from here on
        self.is_over = phase in _OVER
        #: the session ends, or has: nothing is sent to its client any more
        self.has_ended = phase in _ENDED
        #: the stream is closed
        self.is_closed = phase in _CLOSED

    def become(self, phase: LifePhase, reason: str = "") -> None:
        """Go to another phase, if the table of phases leads there."""
        with self._lock:
            assert phase in PHASE_MOVES[self.phase], f"a session goes from {self.phase} to {phase}"
            self.phase = phase
            self.reason = reason or self.reason

    def violate(self) -> None:
        """The client broke the protocol; where the session ends already, that is nothing new."""
        with self._lock:
            if self.phase is LifePhase.LIVE:
                self.phase = LifePhase.VIOLATED

    def validate(self) -> None:
        """Check what must always hold."""
        said = self.is_over, self.has_ended, self.is_closed
        assert said == tuple(self.phase in phases for phases in (_OVER, _ENDED, _CLOSED))
        assert not self.reason or self.has_ended
