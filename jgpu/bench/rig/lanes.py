"""What a trace of lanes says: device time of sessions, and what passes between two of them.

Rows are those of `jgpu.broker.executor.scheduling.trace`; times are seconds here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Piece", "Switch", "imbalance_s", "pieces_of", "switches_of"]


class Piece(NamedTuple):
    """A work of a session in a lane."""

    lane: int
    session: int
    ready: float
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it held the lane."""
        return self.ended - self.began


class Switch(NamedTuple):
    """From the last end of a session to the first begin of the next in a lane."""

    at: float
    seconds: float
    #: the next one's work was there before the last one's ended
    waited_for: bool


def pieces_of(
    traced: Iterable[Sequence[int]], begin: float = 0.0, end: float = float("inf")
) -> list[Piece]:
    """The works that began within a stretch, in order of their begin."""
    found = (Piece(row[0], row[1], *(each / 1e9 for each in row[2:])) for row in traced)
    return sorted(
        (piece for piece in found if begin <= piece.began < end), key=lambda piece: piece.began
    )


def switches_of(pieces: Iterable[Piece]) -> list[Switch]:
    """Every change of session, lane by lane."""
    before: dict[int, Piece] = {}
    found = []
    for piece in pieces:
        last = before.get(piece.lane)
        before[piece.lane] = piece
        if last is not None and last.session != piece.session:
            waited_for = piece.ready <= last.ended
            found.append(Switch(last.ended, piece.began - last.ended, waited_for))
    return found


def imbalance_s(pieces: Iterable[Piece], users: Mapping[int, str], late: str) -> float:
    """The most that a user's device time was above or below the others', since the first piece."""
    ahead, worst = 0.0, 0.0
    for piece in pieces:
        ahead += piece.seconds if users.get(piece.session) == late else -piece.seconds
        worst = max(worst, abs(ahead))
    return worst
