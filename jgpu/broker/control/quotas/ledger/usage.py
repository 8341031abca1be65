"""Who used how much, as far back as any budget looks: exact windows, and a coarse history.

Each user has a window of the period that their quota names. Behind it stands what was used by
slices of the ledger, from which a longer window can be made.
"""

import math
from collections.abc import Iterable

from jgpu.broker.control.quotas.ledger.meter import SLICE_S, Charge
from jgpu.broker.control.quotas.ledger.window import Window

__all__ = ["UsageHistory"]


class UsageHistory:
    """All users' use of the device within a horizon."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        #: user -> number of the slice -> (device-seconds, until when)
        self._history: dict[str, dict[int, tuple[float, float]]] = {}

    @property
    def users(self) -> set[str]:
        """Everybody who used anything."""
        return set(self._history)

    def add(self, user: str, seconds: float, at: float) -> None:
        """A user used so many device-seconds until `at`."""
        if seconds <= 0:
            return
        self._note(user, seconds, at)
        if (window := self._windows.get(user)) is not None:
            window.add(seconds, at)

    def load(self, entries: Iterable[tuple[str, float, float]]) -> None:
        """Take in what an earlier run wrote: (user, end, seconds)."""
        for user, end, seconds in entries:
            self.add(user, seconds, end)

    def load_older(self, entries: Iterable[tuple[str, float, float]]) -> None:
        """Take in what lies before everything that is known of each user, for longer periods."""
        known = {user: min(slices) for user, slices in self._history.items()}
        for user, end, seconds in entries:
            if math.floor(end / SLICE_S) < known.get(user, math.inf):
                self._note(user, seconds, end)
                self._windows.pop(user, None)

    def window(self, user: str, period_s: float) -> Window:
        """The user's window, of this period from now on."""
        window = self._windows.get(user)
        if window is None:
            window = Window(period_s)
            for end, seconds in self._slices(user):
                window.add(seconds, end)
        elif window.period_s != period_s:
            window = window.resized(period_s, self._slices(user))
        self._windows[user] = window
        return window

    def carried(self, run: str) -> list[Charge]:
        """All that is known, as charges of a run that nobody wrote yet."""
        return [
            Charge(run, 0, number, user, "", "", number * SLICE_S, end, seconds)
            for user, slices in self._history.items()
            for number, (seconds, end) in slices.items()
        ]

    def forget(self, before: float) -> None:
        """Drop slices that ended before a time."""
        first = math.floor(before / SLICE_S)
        for user in list(self._history):
            kept = {n: used for n, used in self._history[user].items() if n >= first}
            if kept:
                self._history[user] = kept
            else:
                del self._history[user]
        for user in self._windows.keys() - self._history.keys():
            del self._windows[user]

    def _note(self, user: str, seconds: float, at: float) -> None:
        slices = self._history.setdefault(user, {})
        number = math.floor(at / SLICE_S)
        before_s, end = slices.get(number, (0.0, at))
        slices[number] = before_s + seconds, max(end, at)

    def _slices(self, user: str) -> list[tuple[float, float]]:
        slices = self._history.get(user, {})
        return [(end, seconds) for seconds, end in slices.values()]
