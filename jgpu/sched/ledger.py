"""Who used how much device time, and who is owed some.

Charges are exact: over each interval with k lanes busy, the session that each of them is at pays
1/k of it, so that all charges together are the time during which the device was busy. Virtual time
is charged time by share, which is the weight, or a part of it for batch work, and has a floor:
whoever comes anew starts at the minimum of those who are active, and so neither repays nor is
repaid time when they were not there (Salus' published code lets a latecomer have the device until
it has caught up). Whoever was away for no longer than `Limits.grace_s`, as a notebook is that reads
its loss, keeps what they are owed, up to `Limits.credit_s`. A user who was away for longer is let
in first, ahead by one quantum: they were not served while they were away, and a short cell is soon
over (as by Borrowed Virtual Time, Duda and Cheriton, SOSP 1999, but for a turn only).

What is computed for a session beside the lanes (`charge_beside`) is charged as it was measured, on
top of that.

The rule: device time is charged here only; that of the lanes from `now` alone, never from
measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.sessions.user import User

if TYPE_CHECKING:
    from collections.abc import Collection

    from jgpu.sched.lanes.lane import Lane
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["FairShare"]


class FairShare:
    """The accounts of all users and sessions."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: every user there ever was, by name
        self.users: dict[str, User] = {}
        #: those with an active session, by name
        self.active: dict[str, User] = {}
        #: virtual time at which a user starts while no other is active; never falls
        self.floor_s = 0.0
        #: time during which at least one lane was busy; the sum of all charges for lanes
        self.busy_s = 0.0
        #: the sum of all charges for what was computed beside the lanes
        self.beside_s = 0.0
        #: what users were charged whose accounts are not kept
        self.forgotten_s = 0.0
        #: up to when has been charged
        self.now = 0.0
        #: grows whenever a weight changes, or what batch work counts
        self.version = 0
        #: whether any user is throttled
        self.throttles = False
        #: part of the weight that batch work counts beside other classes, as the policy says
        self.batch_part = 1.0
        #: users at batch work alone whose sessions of other classes had work a moment ago, by name
        self._fading: dict[str, User] = {}

    def user(self, name: str, weight: float) -> User:
        """Return the user of this name, made if need be, with the weight set."""
        user = self.users.get(name)
        if user is None:
            user = self.users[name] = User(name)
        if user.weight != weight:
            self.version += 1
            user.weight, user.share = weight, weight * user.part
        return user

    def weigh_batch(self, part: float) -> None:
        """Let batch work count this part of its user's weight from now on."""
        self.batch_part = part
        self.version += 1
        for user in self.users.values():
            user.part, user.share = 1.0, user.weight
            if user.active:
                self._weigh(user)

    def _weigh(self, user: User, newcomer: ScheduledSession | None = None) -> None:
        """Say what a user and the active sessions count, by the classes of those that have work.

        A notebook that reads its loss is at work, too: for a moment longer than it has something to
        run, or else its user would pay for batch work of these moments with the notebook's time.
        """
        recent = self._is_recent(user.urgent_until)
        only_batch = not (user.urgent or recent or (newcomer and not newcomer.is_batch))
        user.part = self.batch_part if only_batch else 1.0
        user.share = user.weight * user.part
        for session in user.active.values():
            session.share = self.batch_part if session.is_batch and not only_batch else 1.0
        if recent and user.active and not user.urgent:
            self._fading[user.name] = user
        else:
            self._fading.pop(user.name, None)

    def _fade(self) -> None:
        """Weigh users anew who are at batch work alone, and no longer just so."""
        for user in list(self._fading.values()):
            if not self._is_recent(user.urgent_until):
                self._weigh(user)

    def forget(self, here: set[str]) -> None:
        """Drop half of the accounts of users who are not `here`, those who were idle longest first.

        They come back as newcomers, who are neither owed anything nor owe it.
        """
        gone = [user for name, user in self.users.items() if name not in here]
        gone.sort(key=lambda user: user.idle_since or 0.0)
        for user in gone[: -(-len(gone) // 2)]:
            self.forgotten_s += user.device_seconds
            del self.users[user.name]
        self.throttles = any(user.throttled for user in self.users.values())

    def configure(self, name: str, weight: float, *, throttled: bool) -> None:
        """Set a user's share, and whether they run only where the device would idle."""
        self.user(name, weight).throttled = throttled
        self.throttles = any(user.throttled for user in self.users.values())

    def is_held_back(self, session: ScheduledSession) -> bool:
        """Whether a session is to begin nothing, for others have work and its user may wait."""
        return session.user.throttled and any(not user.throttled for user in self.active.values())

    def charge(self, now: float, lanes: Collection[Lane]) -> None:
        """Charge the time since the last call to the sessions that the lanes were at."""
        elapsed = now - self.now
        self.now = now
        if self._fading:
            self._fade()
        if elapsed <= 0.0:
            return
        busy = 0
        for lane in lanes:
            if lane.in_flight:
                busy += 1
        if not busy:
            return
        self.busy_s += elapsed
        share = elapsed / busy
        for lane in lanes:
            if lane.in_flight:  # as `_pay` does, without a call with nearly every event
                session = lane.in_flight[0].session
                user = session.user
                session.progress.device_seconds += share
                session.virtual_s += share / session.share
                user.device_seconds += share
                user.virtual_s += share / user.share

    def charge_alone(self, session: ScheduledSession, now: float) -> None:
        """Charge the time since the last call to a session that had the device to itself."""
        elapsed = now - self.now
        self.now = now
        if self._fading:
            self._fade()
        if elapsed > 0.0:
            self.busy_s += elapsed
            self._pay(session, elapsed)

    def charge_beside(self, session: ScheduledSession, seconds: float) -> None:
        """Charge a session for what was computed for it beside the lanes."""
        user = session.user
        if not user.active:
            self._weigh(user, session)
            self._lift(user)  # or it would be paid for with time that nobody owes them
        self.beside_s += seconds
        self._pay(session, seconds)

    def _pay(self, session: ScheduledSession, seconds: float) -> None:
        user = session.user
        session.progress.device_seconds += seconds
        session.virtual_s += seconds / session.share
        user.device_seconds += seconds
        user.virtual_s += seconds / user.share

    def ahead_s(self, user: User) -> float:
        """How much more virtual time a user has had than who of the others with work has least.

        By the part of the weight that counts for the user now, so in seconds of a weight of 1.
        Whoever had work a moment ago counts, too, as a notebook does that reads its loss. Not above
        0 where the user has had less, or nobody else has work.
        """
        others = [
            other.virtual_s + other.in_flight_s / other.share
            for other in self.users.values()
            if other is not user and (other.active or self._is_recent(other.idle_since))
        ]
        return (user.virtual_s - min(others)) * user.part if others else 0.0

    def _lift(self, user: User) -> None:
        """Bring a user who was not active to the floor, less what they are owed."""
        others, floor_s = self.active, self.floor_s
        if others:
            floor_s = min([other.virtual_s for other in others.values()])
        if user.virtual_s >= floor_s:
            return  # and what they are owed would lower it
        if self._is_recent(user.idle_since):
            floor_s -= self._limits.credit_s / user.share
        elif user.idle_since is not None:
            floor_s -= self._head_start_s(user.idle_since, len(others)) / user.share
        user.virtual_s = max(user.virtual_s, floor_s)

    def enter(self, session: ScheduledSession) -> None:
        """Count a session that has work and a lane among the active ones."""
        user = session.user
        # Beside sessions of other classes alone, whatever enters of them changes no share.
        is_batch = session.is_batch
        mixed = is_batch or user.part != 1.0 or len(user.active) != user.urgent
        if not user.active:
            if mixed:
                self._weigh(user, session)
            self._lift(user)
            self.active[user.name] = user
        floor_s = user.floor_s
        if user.active:
            floor_s = min([other.virtual_s for other in user.active.values()])
        if session.virtual_s < floor_s:
            if self._is_recent(session.waiting.idle_since):
                floor_s -= self._limits.credit_s
            session.virtual_s = max(session.virtual_s, floor_s)
        if session.id not in user.active:
            user.active[session.id] = session
            user.urgent += not is_batch
            if mixed:
                self._weigh(user)

    def leave(self, session: ScheduledSession) -> None:
        """Count a session among the active ones no longer; it may not have been there."""
        user = session.user
        if user.active.pop(session.id, None) is None:
            return
        session.waiting.idle_since, session.share = self.now, 1.0
        if not session.is_batch:
            user.urgent -= 1
            user.urgent_until = self.now
        if user.active:
            self._weigh(user)
            return
        if self._fading:
            self._fading.pop(user.name, None)
        user.idle_since = self.now
        if session.virtual_s > user.floor_s:
            user.floor_s = session.virtual_s
        del self.active[user.name]
        if not self.active and user.virtual_s > self.floor_s:
            self.floor_s = user.virtual_s

    def _head_start_s(self, idle_since: float, others: int) -> float:
        """Return what somebody who was away is ahead by: a turn, if they missed as much."""
        missed_s = (self.now - idle_since) / (others + 1)
        return min(self._limits.quantum_s, missed_s)

    def _is_recent(self, idle_since: float | None) -> bool:
        return idle_since is not None and self.now - idle_since <= self._limits.grace_s

    def validate(self) -> None:
        """Check every invariant of the accounts."""
        charged = self.forgotten_s + sum(user.device_seconds for user in self.users.values())
        total = self.busy_s + self.beside_s
        assert abs(charged - total) <= 1e-9 * max(1.0, total)
        for name, user in self.users.items():
            assert user.name == name
            user.validate()
            assert (name in self.active) == bool(user.active)
            assert user.part in {1.0, self.batch_part}
            assert (name not in self._fading) or (user.active and not user.urgent)
            flying = sum(session.in_flight_s for session in user.active.values())
            assert abs(flying - user.in_flight_s) <= 1e-9
