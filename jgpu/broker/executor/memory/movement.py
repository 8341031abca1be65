"""Whether a session's memory is on its way between the device and the host.

Invariant: one state follows another only as `_MOVES` says; at most one copy of a session's memory
is under way.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["MemoryMovement", "MovementState"]


class MovementState(StrEnum):
    """What is done with a session's memory."""

    #: nothing: it is where it is
    STILL = "still"
    #: it is to be brought back when nothing of the session is in flight
    DUE_BACK = "due back"
    #: it is being copied to the host
    LEAVING = "leaving"
    #: it is being copied to the device
    RETURNING = "returning"


_DUE_BACK: Final = MovementState.DUE_BACK

_MOVES: Final[Mapping[MovementState, frozenset[MovementState]]] = {
    MovementState.STILL: frozenset(
        {MovementState.DUE_BACK, MovementState.LEAVING, MovementState.RETURNING}
    ),
    MovementState.DUE_BACK: frozenset({MovementState.RETURNING}),
    MovementState.LEAVING: frozenset({MovementState.STILL}),
    MovementState.RETURNING: frozenset({MovementState.STILL}),
}


class MemoryMovement:
    """One session's."""

    __slots__ = ("is_copying", "state")

    def __init__(self) -> None:
        self.state = MovementState.STILL
        #: LEAVING or RETURNING: nothing of the session runs, and nobody touches its buffers
        self.is_copying = False

    @property
    def is_due(self) -> bool:
        """Whether it is to be brought back."""
        return self.state is _DUE_BACK

    def become(self, state: MovementState) -> None:
        """Go to another state, if the table leads there."""
        assert state in _MOVES[self.state], f"memory goes from {self.state} to {state}"
        self.state = state
        self.is_copying = state in {MovementState.LEAVING, MovementState.RETURNING}

    def validate(self) -> None:
        """Check what must always hold."""
        copying = {MovementState.LEAVING, MovementState.RETURNING}
        assert self.is_copying == (self.state in copying)
