"""Programs that run alone, for one of them has broken the device, and who has it to itself now.

The control process says which; each user's runs of them are tried until it says that they are
through. A run that is tried begins when nothing else is on the device, and nothing else begins
until it is over; so, should the device break, it was this one. Nobody waits for that without end: a
run that others' work keeps from being alone begins beside it after a while, and counts as none.

Invariant: while somebody has the device, nothing else is on it but lanes that were given up.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.runs import RunWork
from jgpu.wire.messages import TryAlone

__all__ = ["Trials"]

#: seconds that whoever is tried waits for what is on the device, and all others behind them
PATIENCE_S: Final = 5.0


class Trials:
    """One executor's; on the pump."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: by program, or what is probed: users whose runs need not be alone
        self._through: dict[bytes, frozenset[str]] = {}
        #: who is tried, or next to be, and since when they have waited
        self._holder: object | None = None
        self._since = 0.0
        #: by lane, jobs that it was given and is not through with
        self._flying: Counter[int] = Counter()
        #: how many probes are being made beside the lanes
        self.beside: Callable[[], int] = lambda: 0
        #: told of a user and a program that went through alone
        self.on_through: Callable[[str, bytes], None] = lambda user, program: None

    def set(self, order: TryAlone) -> None:
        """From here on these are tried, and no others."""
        self._through = {each.program: frozenset(each.through) for each in order.programs}

    @property
    def quiet(self) -> bool:
        """Nobody is tried and nobody is to be."""
        return not self._through and self._holder is None

    def tries(self, user: str, program: bytes) -> bool:
        """Whether a user's runs of a program are to be alone."""
        through = self._through.get(program)
        return through is not None and user not in through

    # -- works ---------------------------------------------------------------------------------

    def admits(self, lane: int, work: Work) -> bool:
        """Whether a lane may be given a work now, which then it must be."""
        tried = isinstance(work, RunWork) and self.tries(
            work.session.owner.user, work.message.program
        )
        if not self._may_begin(work, tried=tried):
            return False
        self.given(lane)
        if isinstance(work, RunWork):
            work.alone = self._holder is work
        return True

    def given(self, lane: int) -> None:
        """A lane is given a job."""
        self._flying[lane] += 1

    def over(self, lane: int, work: Work) -> None:
        """A lane is through with a work, or gives it back."""
        if self._flying[lane]:
            self._flying[lane] -= 1
        if self._holder is work:
            self._holder = None
            assert isinstance(work, RunWork)
            if work.went_well and not work.waits:
                self.on_through(work.session.owner.user, work.message.program)

    def give_up(self, lane: int) -> None:
        """Nobody waits for what is left on this lane."""
        self._flying.pop(lane, None)

    # -- probes --------------------------------------------------------------------------------

    def admits_probe(self, probe: object, user: str, question: bytes) -> bool:
        """Whether a probe may begin now, which then it must."""
        return self._may_begin(probe, tried=self.tries(user, question))

    def probe_over(self, probe: object, user: str, question: bytes, *, well: bool) -> None:
        """A probe is through, or is not made."""
        if self._holder is probe:
            self._holder = None
            if well:
                self.on_through(user, question)

    def _may_begin(self, who: object, *, tried: bool) -> bool:
        if self._holder is None:
            if not tried:
                return True
            self._holder, self._since = who, self._clock()
        if self._holder is not who:
            return False
        if not (self._flying.total() or self.beside()):
            return True
        if self._clock() - self._since < PATIENCE_S:
            return False
        self._holder = None
        return True
