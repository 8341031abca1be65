"""How much of what the broker hands out one identity may have, so that others always find some.

Three numbers each for seats, sessions and connections: how many there are in all, how many one
identity may have, and how many of them all are kept for those who have none. What is counted here
is what a client costs before it computes anything; device time and memory are the quotas' affair.
Pure: no socket, clock or randomness.
"""

from dataclasses import dataclass
from typing import Final

from jgpu.errors import QuotaExceeded
from jgpu.wire import limits

__all__ = ["Share", "Shares"]

#: one identity has a half of everything at most, where the settings do not say; small numbers whole
_PART: Final = 2
_WHOLE: Final = 4
#: an eighth of everything is kept for identities that have none
_KEPT_PART: Final = 8
_SEATS_PER_SESSION: Final = 4
#: identities whose connections may be full at the same time
_CROWDS: Final = 8


@dataclass(frozen=True, slots=True)
class Share:
    """So many of something for all, so many of them for one."""

    total: int
    each: int

    @property
    def kept(self) -> int:
        """How many of all only those may have who have none."""
        return self.total // _KEPT_PART

    def is_left(self, own: int, held: int) -> bool:
        """Whether one more of `held` is left for somebody who has `own` of them."""
        return held < self.total - (self.kept if own else 0)


@dataclass(frozen=True, slots=True)
class Shares:
    """What the settings make of it."""

    sessions: Share
    seats: Share
    connections: Share
    #: bytes of shared memory that the sessions of one identity may bring along
    arena_bytes: int

    @classmethod
    def of(
        cls,
        max_sessions: int,
        user_sessions: int = 0,
        user_seats: int = 0,
        user_connections: int = 64,
        user_arenas: int = 0,
    ) -> "Shares":
        """From the administrator's numbers, 0 where there is none."""
        sessions = user_sessions or max(_WHOLE, max_sessions // _PART)
        return cls(
            Share(max_sessions, sessions),
            Share(_SEATS_PER_SESSION * max_sessions, user_seats or _SEATS_PER_SESSION * sessions),
            Share(_CROWDS * user_connections, user_connections),
            user_arenas or sessions * limits.ARENA_BYTES,
        )

    def check_seat(self, who: str, own: int, held: int) -> None:
        """Raise `QuotaExceeded` unless `who`, with `own` of `held` seats, may have one more."""
        if own >= self.seats.each:
            raise QuotaExceeded(
                f"{who} has {own} seats (kernels) on the shared device, the most that one may have "
                "(max_user_seats). Shut down kernels that are not needed."
            )
        if not self.seats.is_left(own, held):
            raise QuotaExceeded(
                f"All {held} seats of the shared device are taken"
                f"{_but_kept(self.seats, own, held)}. Shut down kernels that are not needed, or "
                "ask the administrator to raise max_sessions."
            )

    def check_arena(self, who: str, own: int, nbytes: int) -> None:
        """Raise `QuotaExceeded` unless `who`, with arenas of `own` bytes, may bring `nbytes`."""
        if own + nbytes > self.arena_bytes:
            raise QuotaExceeded(
                f"The sessions of {who} share {own >> 20} MiB of memory with the broker; with "
                f"{nbytes >> 20} MiB more it would be more than one may have "
                f"({self.arena_bytes >> 20} MiB, max_user_arenas). Shut down notebooks that are "
                "not needed."
            )

    def connection_refusal(self, who: str, own: int, held: int) -> str:
        """Why `who`, with `own` of `held` connections, may not have one more; "" if they may."""
        if own >= self.connections.each:
            return (
                f"{who} has {own} connections to the broker that were not answered yet, the most "
                "that one may have (max_user_connections). Try again when some have ended."
            )
        if not self.connections.is_left(own, held):
            return f"The broker is answering {held} connections. Try again in a moment."
        return ""


def _but_kept(share: Share, own: int, held: int) -> str:
    """What is said where there are some left, for others."""
    if not own or held >= share.total:
        return ""
    return f", but for {share.total - held} that are kept for those who have none (you have {own})"
