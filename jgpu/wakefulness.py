"""How the two ends wait for each other: awake for a moment, where that takes nothing from anybody.

To fall asleep and be woken is more than half of a short round trip: the wake itself, caches that
have cooled, and the pause that the sleeper's core makes of it. Whoever looks again and again
instead uses a core that nobody else has use for. That this is so is found out by offering it:
between two looks one yields, and whoever else could run there does; a look that took too long says
that somebody did, and one sleeps as ever for a while, for longer each time. So does who was awake
in vain many times in a row. (Spinning before blocking, with a bound: Ousterhout, Scheduling
Techniques for Concurrent Systems, ICDCS 1982.)

What takes longer than one may be awake is slept through until shortly before it comes, by
experience: programs that repeat wait alike each time.

Nothing here knows sockets or messages.
"""

import os
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TypeVar

__all__ = ["Wakefulness", "has_cores_to_spare"]

_Found = TypeVar("_Found")
#: the longest that one stays awake, in seconds; who is not answered by then is not soon
_AWAKE_S: Final = 200e-6
#: seconds past which a look and a yield say that somebody else had the core meanwhile
_TAKEN_S: Final = 50e-6
#: seconds before what is expected that one is awake again, of which a timer takes half
_LEAD_S: Final = 120e-6
#: seconds past which nothing is expected, and of how many waits anything is
_SOON_S: Final = 0.005
_MOST_EXPECTED: Final = 256
#: times in a row that one is awake in vain before one is not for a while
_VAIN: Final = 16
#: seconds without being awake, the first time and at most
_REST_S: Final = 0.01
_LONGEST_REST_S: Final = 1.0
#: seconds for which an answer about cores is believed
_BELIEVED_S: Final = 1.0
#: cores that the two ends need, and from how many on some are left to others
_ENDS: Final = 2
_MANY: Final = 4
#: which control groups this process is in, and where they are; each says what processor time all in
#: it may have together, "max" or -1 if as much as there is
_OWN: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")


class Wakefulness:
    """Looks for what comes, for a moment at most, and only where nobody else wants the core."""

    def __init__(
        self,
        spare: Callable[[], bool] | None = None,
        clock: Callable[[], float] = monotonic,
        offer: Callable[[], object] = os.sched_yield,
    ) -> None:
        """`spare` says whether there are cores enough, `offer` lets others have this one."""
        self._spare = has_cores_to_spare if spare is None else spare
        self._clock = clock
        self._offer = offer
        #: not awake before this, and for how long the next time that one should not be
        self._rests_until = float("-inf")
        self._rest_s = _REST_S
        #: times in a row that nothing came
        self._vain = 0
        self._ask_at = float("-inf")
        #: seconds that the last three waits took, by what is known of them beforehand
        self._took: dict[Hashable, tuple[float, ...]] = {}

    def wait(
        self,
        poll: Callable[[float], _Found],
        timeout: float,
        after: Hashable,
        nap: Callable[[float], object],
    ) -> _Found:
        """What `poll` finds, for which it is given the timeout once one sleeps.

        Waits that come `after` the same take about as long, as the median of the last three says:
        one that was quick or slow by chance says nothing, nor does what is there already.
        `nap` sleeps so many seconds, or until there is something.
        """
        if found := poll(0):
            self._vain = 0
            return found
        began = self._clock()
        took = self._took.get(after, ())
        expected = sorted(took)[len(took) // 2] if took else 0.0
        found = self.look(poll, expected, nap) or poll(timeout)
        if found:
            self._note(after, took, self._clock() - began)
        return found

    def _note(self, after: Hashable, before: tuple[float, ...], took_s: float) -> None:
        if took_s > _SOON_S:
            self._took.pop(after, None)
            return
        if not before and len(self._took) >= _MOST_EXPECTED:
            self._took.clear()
        self._took[after] = (*before[-2:], took_s)

    def look(
        self,
        poll: Callable[[float], _Found],
        expected_s: float = 0.0,
        nap: Callable[[float], object] = sleep,
    ) -> _Found | None:
        """What `poll(0)` finds within a moment; None if nothing came, or one had better sleep.

        The moment is now, or about when it is expected.
        """
        before = self._clock()
        if before < self._rests_until or not self._has_cores(before):
            return None
        if expected_s > _AWAKE_S:
            nap(expected_s - _LEAD_S)
            before = self._clock()
        until = before + _AWAKE_S
        while not (found := poll(0)):
            self._offer()
            now = self._clock()
            if now - before > _TAKEN_S:
                self._rest(now)
                return None
            if now >= until:
                self._vain += 1
                if self._vain >= _VAIN:
                    self._rest(now)
                return None
            before = now
        self._vain, self._rest_s = 0, _REST_S
        return found

    def _has_cores(self, now: float) -> bool:
        if now >= self._ask_at:
            self._ask_at = now + _BELIEVED_S
            if not self._spare():
                self._rests_until = self._ask_at
        return now >= self._rests_until

    def _rest(self, now: float) -> None:
        self._rests_until = now + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)


def has_cores_to_spare() -> bool:
    """Whether both ends may have a core each, and of many two have had nothing to do lately."""
    cores = len(os.sched_getaffinity(0))
    if cores < _ENDS or _is_rationed():
        return False
    return cores < _MANY or os.getloadavg()[0] <= cores - _ENDS


def _is_rationed() -> bool:
    """Whether a group that this process is in, or one around it, may not use all cores."""
    return any(map(_has_ration, _rations()))


def _rations() -> Iterator[Path]:
    try:
        lines = _OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            top, name = _GROUPS, "cpu.max"
        elif "cpu" in controllers.split(","):  # control groups of the first version
            top, name = _GROUPS / "cpu", "cpu.cfs_quota_us"
        else:
            continue
        # In a container the root may be the container's own group.
        at = top / group.lstrip("/")
        for folder in (at, *at.parents):
            yield folder / name
            if folder == top:
                break


def _has_ration(file: Path) -> bool:
    try:
        return not file.read_text(encoding="ascii").startswith(("max", "-1"))
    except OSError:
        return False
