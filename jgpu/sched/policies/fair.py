"""Weighted fair sharing of device time between users, then between a user's sessions.

By virtual time, as in stride scheduling (Waldspurger and Weihl, 1995); the floor for newcomers is
kept by `jgpu.sched.ledger`. Work in flight counts as used, for it cannot be taken back.

A user who is owed more than a turn costs, that is a quantum and the iteration that outlasts it, is
let in before the turn of another ends. With the quantum alone for a measure, every turn would be
cut in mid-iteration as soon as its quantum is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.policies.base import Choice, Policy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.sched.limits import Limits
    from jgpu.sched.policies.base import SessionView

__all__ = ["Fair"]


class Fair(Policy):
    """The session with the least virtual time of the user with the least virtual time."""

    name = "fair"
    reason = "least virtual time"

    def rank(self, session: SessionView) -> tuple[float, ...]:
        """Order by the user's, then by the session's virtual time, then by arrival."""
        user = session.user
        return (
            user.virtual_s + user.in_flight_s / user.weight,
            session.virtual_s + session.in_flight_s,
            session.arrival,
        )

    def choose(self, candidates: Iterable[SessionView]) -> Choice:
        """Return the least by `rank`, written out: this runs over all who wait, each turn."""
        chosen, least, least_own, arrival = None, float("inf"), float("inf"), 0
        for session in candidates:
            user = session.user
            used = user.virtual_s + user.in_flight_s / user.weight
            if used > least:
                continue
            own = session.virtual_s + session.in_flight_s
            if used < least or (own, session.arrival) < (least_own, arrival):
                chosen, least, least_own, arrival = session, used, own, session.arrival
        assert chosen is not None
        return Choice(chosen.id, self.reason)

    def preempts(self, running: SessionView, candidate: SessionView, limits: Limits) -> str:
        """Let a user in who is owed more than a turn of the running session costs."""
        user, other = candidate.user, running.user
        if user is other:
            return ""
        used = other.virtual_s + other.in_flight_s / other.weight
        owed_s = (used - user.virtual_s - user.in_flight_s / user.weight) * user.weight
        return f"owed {owed_s * 1000:.1f} ms" if owed_s > _turn_s(running, limits) else ""

    def outranks(self, chosen: SessionView, candidate: SessionView, limits: Limits) -> bool:
        """Let a user's sessions in different lanes share what the user has, too."""
        if candidate.user is not chosen.user:
            return bool(self.preempts(chosen, candidate, limits))
        used_s = chosen.virtual_s + chosen.in_flight_s
        return used_s - candidate.virtual_s - candidate.in_flight_s > _turn_s(chosen, limits)


def _turn_s(session: SessionView, limits: Limits) -> float:
    """Return what a turn costs at most: a quantum, and the iteration that outlasts it."""
    quantum_s = limits.quantum_of(session.iteration_s)
    return min(quantum_s + session.iteration_s, limits.hard_cap_s)
