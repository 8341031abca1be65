"""How one waits for the executor: awake for a moment where the host has cores to spare.

To fall asleep and be woken is a good part of a short round trip. Whoever looks again and again
instead uses a core that nobody else has use for; where somebody may have, one sleeps at once.

Covers the client's end. Nothing here knows sockets or messages.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, Final

__all__ = ["Wakefulness", "has_cores_to_spare"]

#: the longest that one stays awake, in seconds; who is not answered by then is not soon
_AWAKE_S: Final = 200e-6
#: seconds for which an answer about cores is believed
_BELIEVED_S: Final = 1.0
#: cores below which none is spare, and those of them that are left to others
_CORES: Final = 4
_OTHERS: Final = 2
#: which control groups this process is in, and where they are; each says what processor time all in
#: it may have together, "max" or -1 if as much as there is
_OWN: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")


class Wakefulness:
    """Waits, awake at first where that takes nothing from anybody."""

    def __init__(
        self,
        spare: "Callable[[], bool] | None" = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._spare = has_cores_to_spare if spare is None else spare
        self._clock = clock
        self._may = False
        self._ask_at = float("-inf")

    def wait(self, poll: Callable[[float | None], Any], timeout_ms: float | None) -> bool:
        """Whether `poll(milliseconds)` finds anything, asked with 0 for a moment at first."""
        now = self._clock()
        if now >= self._ask_at:
            self._ask_at, self._may = now + _BELIEVED_S, self._spare()
        if self._may and (timeout_ms is None or timeout_ms >= _AWAKE_S * 1000):
            until = now + _AWAKE_S
            while self._clock() < until:
                if poll(0):
                    return True
        return bool(poll(timeout_ms))


def has_cores_to_spare() -> bool:
    """Whether this process may use many cores, and enough of them have had nothing to do lately."""
    cores = len(os.sched_getaffinity(0))
    return cores >= _CORES and os.getloadavg()[0] <= cores - _OTHERS and not _is_rationed()


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
