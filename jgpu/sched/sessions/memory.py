"""What a session holds between its works, and what it needs of its lane while it runs.

What is not covered: what the lanes and the device have for it (`jgpu.sched.lanes`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jgpu.sched.states import Residence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.sched.sessions.work import ScheduledWork

__all__ = ["HeldMemory", "LaneRoom"]


@dataclass(slots=True, eq=False)
class HeldMemory:
    """What a session holds between its works: sizes in bytes, as measured."""

    #: P
    resident: int = 0
    #: K
    kept: int = 0
    #: bytes of K that nobody is expected to use again; at most `kept`
    stale: int = 0
    #: bytes on the host that must come back before anything runs; above 0 exactly while AWAY, or
    #: RESTORING
    spilled: int = 0
    #: room kept for what comes back; `spilled` while RESTORING, 0 otherwise
    returning: int = 0
    #: when it last came to be on the device, or its session to a place in a lane after a while
    here_since: float = 0.0
    #: until when it is not to be spilled again, for that failed
    spared_until: float = 0.0
    #: until when what is AWAY is not to be brought back, for there was no room on the device
    away_until: float = 0.0

    def validate(self, residence: Residence) -> None:
        """Check every invariant of what a session holds that lives there."""
        assert (self.spilled > 0) == (residence in {Residence.AWAY, Residence.RESTORING})
        assert self.returning == (self.spilled if residence is Residence.RESTORING else 0)
        assert 0 <= self.stale <= self.kept
        assert self.resident >= 0


@dataclass(slots=True, eq=False)
class LaneRoom:
    """What a session needs of its lane while it runs: sizes in bytes."""

    #: T, as measured
    transient: int = 0
    #: what unfinished work is known to need at least; where there is none, what the last work of
    #: an open iteration needed, or 0
    claim: int = 0
    #: unfinished works that claim more than every later one, oldest first; the first is the claim
    claims: deque[ScheduledWork] = field(default_factory=deque)
    #: max(transient, claim), but no more than the device has beside P and K of the session, away or
    #: not
    need: int = 0
    #: `transient` is not asked for: it could not be had even if everybody gave way
    uses_lower_bound: bool = False
    #: since when its next work waits in mid-iteration for its lane to grow; None unless it does
    awaits_growth_since: float | None = None
    #: what it would need then; 0 otherwise
    wants: int = 0
    #: its iteration is open and another session has the turn: its need counts beside the lane's
    suspended: bool = False

    @property
    def may_grow(self) -> bool:
        """Whether what is under way may leave more behind than was ever seen of the session."""
        return self.claim > self.transient

    def note(self, work: ScheduledWork) -> None:
        """Count the claim of a work that is younger than all others."""
        while self.claims and self.claims[-1].claim <= work.claim:
            self.claims.pop()
        if work.claim:
            self.claims.append(work)

    def count_anew(self, works: Iterable[ScheduledWork]) -> None:
        """Count the claims of these works, oldest first, and of no others."""
        self.claims.clear()
        for work in works:
            self.note(work)

    def validate(self) -> None:
        """Check every invariant of what is needed that shows without the works."""
        assert min(self.transient, self.claim, self.need) >= 0
        assert self.need <= max(self.transient, self.claim)
        assert (self.wants > 0) <= (self.awaits_growth_since is not None)
