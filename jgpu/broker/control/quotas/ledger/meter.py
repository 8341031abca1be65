"""Counts device time once: executors tell totals of sessions, the meter what came on top.

A total belongs to one executor process; the next one begins at 0. What a session used is kept by
slices of time as *absolute* figures under one key, so that writing a row twice changes nothing and
no second can be counted twice, whatever fails on the way to the ledger.

Invariant: the sum of all charges of a session is what was told of it.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["SLICE_S", "Charge", "ChargeKey", "Meter"]

#: Length of a slice of time, in seconds: one row per session that computes within it.
SLICE_S: Final = 300

#: run of the broker, session, slice, user
ChargeKey = tuple[str, int, int, str]


@dataclass(frozen=True, slots=True)
class Charge:
    """What one session used within one slice of time; times are seconds since the epoch."""

    #: 32 letters that name one run of one broker
    run: str
    #: 0: several sessions, of which no more is known
    session: int
    #: number of the slice: its beginning / SLICE_S
    slice: int
    user: str
    device: str
    kernel_id: str
    start: float
    end: float
    device_seconds: float

    @property
    def key(self) -> ChargeKey:
        """The row that it is."""
        return self.run, self.session, self.slice, self.user


@dataclass(slots=True)
class _Account:
    """One session."""

    user: str
    kernel_id: str
    #: device-seconds that the executor of the moment has told so far
    told_s: float = 0.0


class Meter:
    """The sessions' totals, and the charges that changed since they were last taken."""

    def __init__(self, run: str) -> None:
        self._run = run
        #: session -> account
        self._accounts: dict[int, _Account] = {}
        #: session -> its charge in the slice that is not over
        self._current: dict[int, Charge] = {}
        #: charges that changed since `take`, each as it is now
        self._changed: dict[ChargeKey, Charge] = {}

    def opened(self, session: int, user: str, kernel_id: str) -> None:
        """A session may use the device; harmless when repeated."""
        self._accounts.setdefault(session, _Account(user, kernel_id))

    def executor_gone(self) -> None:
        """The next executor counts from 0."""
        for account in self._accounts.values():
            account.told_s = 0.0

    def measured(self, session: int, total_s: float, device: str, now: float) -> float:
        """The session's total is so much now; returns what came on top. Unknown ones count 0."""
        account = self._accounts.get(session)
        if account is None or not total_s > account.told_s:
            return 0.0
        used_s, account.told_s = total_s - account.told_s, total_s
        number = int(now // SLICE_S)
        charge = self._current.get(session)
        if charge is None or charge.slice != number:
            charge = Charge(
                self._run, session, number, account.user, device, account.kernel_id,
                now - used_s, now, 0.0,
            )  # fmt: skip
        charge = Charge(
            charge.run, session, number, account.user, device, account.kernel_id,
            charge.start, now, charge.device_seconds + used_s,
        )  # fmt: skip
        self._current[session] = self._changed[charge.key] = charge
        return used_s

    def ended(self, session: int) -> None:
        """The session has told its last total."""
        self._accounts.pop(session, None)
        self._current.pop(session, None)

    def take(self) -> list[Charge]:
        """Charges that changed since the last call; the caller keeps them from here on."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def begin_anew(self, run: str) -> None:
        """What was charged so far is somebody else's affair; from here on a new run counts."""
        self._run = run
        self._current.clear()
        self._changed.clear()
