"""Weighted fair sharing of device time between users, then between a user's sessions.

By virtual time, as in stride scheduling (Waldspurger and Weihl, 1995); the floor for newcomers is
kept by `jgpu.sched.ledger`. Work in flight counts as used, for it cannot be taken back.

Work of the class batch counts a quarter of its user's weight while the user does nothing else, and
a quarter of a session beside the same user's other sessions; the ledger keeps what each counts.
The class interactive has no larger share: it is ahead by one quantum, and pays for it afterwards
(the warp of Borrowed Virtual Time, Duda and Cheriton, SOSP 1999).

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
    batch_part = 0.25
    is_bounded = True

    def rank(self, session: SessionView) -> tuple[float, ...]:
        """Order by the user's, then by the session's virtual time, then by arrival."""
        user, lead_s = session.user, session.lead_s
        return (
            user.virtual_s + (user.in_flight_s - lead_s) / user.share,
            session.virtual_s + (session.in_flight_s - lead_s) / session.share,
            session.arrival,
        )

    def bound(self, session: SessionView) -> tuple[float, ...]:
        """Return the virtual times without what is in flight, which may come to nothing."""
        user, lead_s = session.user, session.lead_s
        if not lead_s:
            return (user.virtual_s, session.virtual_s, session.arrival)
        part = self.batch_part  # shares are no smaller
        own_s = session.virtual_s - lead_s / part
        return (user.virtual_s - lead_s / (user.weight * part), own_s, session.arrival)

    def choose(self, candidates: Iterable[SessionView]) -> Choice:
        """Return the least by `rank`, written out: this runs over all who wait, each turn."""
        chosen, least, least_own, arrival = None, float("inf"), float("inf"), 0
        for session in candidates:
            user = session.user
            used = user.virtual_s + (user.in_flight_s - session.lead_s) / user.share
            if used > least:
                continue
            own = session.virtual_s + (session.in_flight_s - session.lead_s) / session.share
            if used < least or (own, session.arrival) < (least_own, arrival):
                chosen, least, least_own, arrival = session, used, own, session.arrival
        assert chosen is not None
        return Choice(chosen.id, self.reason)

    def preempts(self, running: SessionView, candidate: SessionView, limits: Limits) -> str:
        """Let a user in who is owed more than a turn of the running session costs."""
        if candidate.user is running.user:
            return ""
        owed_s = (_of_user(running) - _of_user(candidate)) * candidate.user.share
        if owed_s <= limits.quantum_s and owed_s <= limits.hard_cap_s:
            return ""  # no turn costs less
        return f"owed {owed_s * 1000:.1f} ms" if owed_s > _turn_s(running, limits) else ""

    def outranks(self, chosen: SessionView, candidate: SessionView, limits: Limits) -> bool:
        """Let a user's sessions in different lanes share what the user has, too."""
        if candidate.user is not chosen.user:
            return bool(self.preempts(chosen, candidate, limits))
        owed_s = (_of_session(chosen) - _of_session(candidate)) * candidate.share
        return owed_s > _turn_s(chosen, limits)


def _of_user(session: SessionView) -> float:
    """Return the virtual time of a session's user, as it counts for this session."""
    user = session.user
    return user.virtual_s + (user.in_flight_s - session.lead_s) / user.share


def _of_session(session: SessionView) -> float:
    """Return a session's virtual time among its user's."""
    return session.virtual_s + (session.in_flight_s - session.lead_s) / session.share


def _turn_s(session: SessionView, limits: Limits) -> float:
    """Return what a turn costs at most: a quantum, and the iteration that outlasts it."""
    quantum_s = limits.quantum_of(session.iteration_s)
    return min(quantum_s + session.iteration_s, limits.hard_cap_s)
