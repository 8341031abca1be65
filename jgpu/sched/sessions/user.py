"""A user's account: their share, and what they were charged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["User"]


@dataclass(slots=True, eq=False)
class User:
    """A person: the unit of fairness. Outlives its sessions, for it keeps the account."""

    #: not empty
    name: str
    #: above 0; one share of device time per unit
    weight: float = 1.0
    #: part of the weight that counts now: below 1 while the user is at batch work alone
    part: float = 1.0
    #: `weight` times `part`: what device time is divided by
    share: float = field(init=False)
    #: active sessions of other classes than batch
    urgent: int = 0
    #: when the last of these ceased to be active; None before the first
    urgent_until: float | None = None
    #: has used up what they may use while others wait; set by the ledger
    throttled: bool = False
    #: device time charged to all sessions there ever were; never falls
    device_seconds: float = 0.0
    #: device time by share, lifted to the floor when coming back; never falls
    virtual_s: float = 0.0
    #: predicted device time in flight; the sum over the user's sessions
    in_flight_s: float = 0.0
    #: the user's sessions that have work and a lane, by id
    active: dict[int, ScheduledSession] = field(default_factory=dict)
    #: when the last active session ceased to be so; None before the first
    idle_since: float | None = None
    #: virtual time at which a session starts while no other is active; never falls
    floor_s: float = 0.0

    def __post_init__(self) -> None:
        """Count the whole weight."""
        self.share = self.weight * self.part

    def validate(self) -> None:
        """Check every invariant of a user that shows without its sessions."""
        assert self.name
        assert self.weight > 0
        assert 0 < self.part <= 1
        assert self.share == self.weight * self.part
        assert self.urgent == sum(not each.is_batch for each in self.active.values())
        assert self.part == 1 or not self.urgent
        assert self.device_seconds >= 0
        assert self.in_flight_s >= 0
        for session_id, session in self.active.items():
            assert session.id == session_id
            assert session.user is self
            assert session.lane is not None
            assert session.has_work
