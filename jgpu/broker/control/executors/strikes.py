"""Programs that ended executors, by program and user, and users who are held off. Pure.

Time is an argument. What is remembered is bounded: programs that struck longest ago go first. It
outlives executors and ends with the broker.

Invariant: a program is refused for a user after `_TWICE` ends under that user, or one for which it
was alone on the device, being tried, and for everybody after it has ended executors under two
users; users are never refused for what others did.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, TypeVar

__all__ = ["Strike", "Strikes"]

_TWICE: Final = 2
_PROGRAMS: Final = 1024
_USERS: Final = 1024
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(slots=True)
class Strike:
    """What is held against a program."""

    program: bytes
    #: place and name of the op, and how the process ended, of the last time
    op: int
    name: str
    how: str
    #: it was alone on the device then, for it was in flight at an end before
    alone: bool = False
    #: user -> how often
    users: dict[str, int] = field(default_factory=dict)

    @property
    def for_all(self) -> bool:
        """Whether nobody's runs of it are done any more."""
        return len(self.users) > 1

    @property
    def refused(self) -> tuple[str, ...] | None:
        """Whose runs are refused, () for everybody's; None if nobody's are."""
        if self.for_all:
            return ()
        return tuple(user for user, count in self.users.items() if count >= _TWICE) or None


class Strikes:
    """What is held against programs and users."""

    def __init__(self, limit: int, window_s: float, pause_s: float) -> None:
        #: a user is held off after so many ends within the window, for the pause
        self.limit = limit
        self.window_s = window_s
        self.pause_s = pause_s
        self._programs: OrderedDict[bytes, Strike] = OrderedDict()
        #: user -> times of the ends, newest last
        self._ends: OrderedDict[str, deque[float]] = OrderedDict()
        #: user -> until when; the last one held off last
        self._held: OrderedDict[str, float] = OrderedDict()

    def note(
        self,
        user: str,
        now: float,
        program: bytes,
        op: int = 0,
        name: str = "",
        how: str = "",
        *,
        alone: bool = False,
    ) -> None:
        """A user's work ended an executor; `program` is all zeros where it was none.

        `alone`: it was tried then, for it may have been what ended one before.
        """
        if any(program):
            strike = self._programs.setdefault(program, Strike(program, op, name, how))
            strike.op, strike.name, strike.how, strike.alone = op, name, how, alone
            if not strike.for_all:
                strike.users[user] = strike.users.get(user, 0) + (_TWICE if alone else 1)
            _keep_last(self._programs, program, _PROGRAMS)
        ends = self._ends.setdefault(user, deque(maxlen=self.limit))
        ends.append(now)
        _keep_last(self._ends, user, _USERS)
        if len(ends) == self.limit and ends[0] >= now - self.window_s:
            ends.clear()
            for other in [each for each, until in self._held.items() if until <= now]:
                del self._held[other]
            self._held[user] = now + self.pause_s
            _keep_last(self._held, user, _USERS)

    def refused(self) -> list[Strike]:
        """Programs that are refused for somebody, those that struck last first."""
        return [s for s in reversed(self._programs.values()) if s.refused is not None]

    def struck(self, user: str, program: bytes) -> bool:
        """Whether a program is known to have ended an executor under this user."""
        strike = self._programs.get(program)
        return strike is not None and user in strike.users

    def held_s(self, user: str, now: float) -> float:
        """Seconds for which a user is held off still; 0 for one who is not."""
        return max(0.0, self._held.get(user, now) - now)

    def validate(self) -> None:
        """Assert what always holds."""
        assert len(self._programs) <= _PROGRAMS
        assert len(self._ends) <= _USERS
        assert len(self._held) <= _USERS
        for program, strike in self._programs.items():
            assert strike.program == program
            assert 1 <= len(strike.users) <= 2


def _keep_last(table: OrderedDict[_Key, _Value], key: _Key, most: int) -> None:
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
