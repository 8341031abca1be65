"""Programs that may have broken a GPU, by user, and what clears them. Pure.

What breaks a GPU is told of when several programs are in flight, and it was one of them. The values
that they ran with are gone with the device, so nobody can do the same again to see; but whoever was
in flight runs alone from then on, until it has gone through, and what breaks the device alone is
known for certain.

A program that breaks the device with some values only may go through with others. So whoever is
suspected again has to go through more often, sixteen times as often each time.

What is remembered is bounded: those suspected longest ago go first. It outlives executors and ends
with the broker.

Invariant: a program is tried while a user who was suspected with it is not through, and no longer;
meanwhile each other user's runs of it are tried, too, until one has gone through.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Suspects"]

_MORE: Final = 16
_MOST_RUNS: Final = 4096
_PROGRAMS: Final = 256
_USERS: Final = 256
_REMEMBERED: Final = 1024


@dataclass(slots=True)
class _Suspicion:
    """Of one program."""

    #: users who were suspected with it -> runs that have to go through yet
    left: dict[str, int] = field(default_factory=dict)
    #: users with whom it went through, the last of them last
    through: OrderedDict[str, None] = field(default_factory=OrderedDict)


class Suspects:
    """What is tried, and for whom not any more."""

    def __init__(self) -> None:
        self._programs: OrderedDict[bytes, _Suspicion] = OrderedDict()
        #: (user, program) -> how often they were suspected
        self._times: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def suspect(self, pairs: Iterable[tuple[str, bytes]]) -> None:
        """It was one of these users' programs."""
        for user, program in dict.fromkeys(pairs):
            suspicion = self._programs.setdefault(program, _Suspicion())
            self._programs.move_to_end(program)
            times = self._times.pop((user, program), 0) + 1
            self._times[user, program] = times
            suspicion.left[user] = min(_MOST_RUNS, _MORE ** (times - 1))
            suspicion.through.pop(user, None)
        while len(self._programs) > _PROGRAMS:
            self._programs.popitem(last=False)
        while len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)

    def tries(self, user: str, program: bytes) -> bool:
        """Whether this user's runs of it are tried."""
        suspicion = self._programs.get(program)
        return suspicion is not None and user not in suspicion.through

    def went_through(self, user: str, program: bytes) -> bool:
        """A run of theirs did; whether anything is tried otherwise from here on."""
        suspicion = self._programs.get(program)
        if suspicion is None or user in suspicion.through:
            return False
        left = suspicion.left.get(user, 1) - 1
        if left:
            suspicion.left[user] = left
            return False
        suspicion.left.pop(user, None)
        suspicion.through[user] = None
        if not suspicion.left:
            del self._programs[program]
        elif len(suspicion.through) > _USERS:
            suspicion.through.popitem(last=False)
        return True

    def convict(self, user: str, program: bytes) -> bool:
        """It broke the device under this user, for certain; whether it was being tried."""
        tried = self.tries(user, program)
        suspicion = self._programs.get(program)
        if suspicion is not None:
            suspicion.left.pop(user, None)
            if not suspicion.left:
                del self._programs[program]
        return tried

    def tried(self) -> list[tuple[bytes, tuple[str, ...]]]:
        """Programs that are tried, and for whom they are not any more; the last ones first."""
        return [
            (program, tuple(suspicion.through))
            for program, suspicion in reversed(self._programs.items())
        ]

    def validate(self) -> None:
        """Assert what always holds."""
        assert len(self._programs) <= _PROGRAMS
        assert len(self._times) <= _REMEMBERED
        for suspicion in self._programs.values():
            assert suspicion.left
            assert min(suspicion.left.values()) >= 1
            assert len(suspicion.through) <= _USERS
            assert not suspicion.left.keys() & suspicion.through.keys()
