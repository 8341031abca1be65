"""Keeps charges and live settings until they are written, and says so while they are not.

Writing happens in a thread of its own, every few seconds, and whenever a setting changed. A ledger
that is locked, full, gone or no ledger at all costs nobody anything: what is to be written stays
here, each change of state is logged once, the status shows it, and it is tried again. At the end
what is left goes into a file for the next run.

Invariant: what was handed over is dropped only once it is on record.
"""

import asyncio
import contextlib
import enum
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from jgpu.broker.control.quotas.ledger.leftovers import (
    Leftovers,
    find_leftovers,
    leave,
    read_leftovers,
)
from jgpu.broker.control.quotas.ledger.meter import Charge, ChargeKey
from jgpu.broker.control.quotas.ledger.problems import (
    LedgerBroken,
    LedgerProblem,
    SettingKey,
    StoredSetting,
)
from jgpu.broker.control.quotas.ledger.thread import BlockingThread
from jgpu.wire.reports.records import EventReport
from jgpu.wire.reports.report import LedgerReport

__all__ = ["LedgerOwner", "LedgerState", "UsageLedger"]

T = TypeVar("T")

_LOG = logging.getLogger("jgpu.broker")
#: How long the end of the broker may wait for the last rows.
_FLUSH_S: Final = 3.0
#: Events that wait to be written, and those between two looks for what is too old.
_MOST_EVENTS: Final = 10_000
_EVENTS_BETWEEN: Final = 500
#: Events that are kept at most, however young.
_EVENTS_KEPT: Final = 200_000
#: Rows that wait to be written; an hour of sessions that come and go while nothing can be.
_MOST_ROWS: Final = 200_000


class LedgerState(enum.Enum):
    """Whether what is used gets written."""

    OPENING = "opening"
    WORKING = "working"
    FAILING = "failing"


class _File(enum.Enum):
    """What has become of the ledger's file."""

    #: not opened yet
    UNKNOWN = "unknown"
    OPEN = "open"
    #: was open, and broke: a new one lacks what is known
    LOST = "lost"


class LedgerOwner(Protocol):
    """Whom a ledger tells; called on the event loop."""

    def ledger_horizon(self) -> float:
        """Since when usage is to be read, in seconds since the epoch."""

    def ledger_opened(
        self, usage: list[tuple[str, float, float]], settings: Mapping[SettingKey, StoredSetting]
    ) -> None:
        """What earlier runs wrote."""

    def ledger_begun_anew(self) -> tuple[str, list[Charge]]:
        """The ledger was lost: a new run, and all that is known, to be written again."""


class UsageLedger:
    """One ledger. `run` is the task; everything else returns at once, but for `close`."""

    def __init__(
        self,
        url: str,
        directory: Path,
        run: str,
        owner: LedgerOwner,
        *,
        interval_s: float,
        keep_events_s: float = math.inf,
    ) -> None:
        self._url = url
        self._directory = directory
        self._run = run
        self._owner = owner
        self._interval_s = interval_s
        self._keep_events_s = keep_events_s
        self._thread = BlockingThread("ledger")
        #: one writes at a time
        self._attempts = asyncio.Lock()
        self._store: Any = None
        self._wake = asyncio.Event()
        self._file = _File.UNKNOWN
        #: rows to be written, the newest of each key
        self._charges: dict[ChargeKey, Charge] = {}
        self._settings: dict[SettingKey, StoredSetting | None] = {}
        self._events: dict[int, EventReport] = {}
        #: events that were written since it was looked for those that are too old
        self._unswept = _EVENTS_BETWEEN
        #: called when its report is another
        self.on_change: Callable[[], None] = lambda: None
        self.state = LedgerState.OPENING
        #: set when it was read, or could not be
        self.tried = asyncio.Event()
        #: why it fails; for people
        self.text = ""
        #: what happened to it that somebody should look into
        self.note = ""

    # -- for the owner -----------------------------------------------------------------------

    def keep(self, charges: Iterable[Charge]) -> None:
        """These are to be written with the next ones."""
        for charge in charges:
            self._charges[charge.key] = charge
        lost = len(self._charges) - _MOST_ROWS
        for key in list(self._charges)[: max(0, lost)]:
            del self._charges[key]
            self.note = "It could not be written for so long that the oldest usage is lost."

    def keep_setting(self, key: SettingKey, setting: StoredSetting | None) -> None:
        """This is to be written soon; None takes it out."""
        self._settings[key] = setting
        self._wake.set()

    def keep_event(self, event: EventReport) -> None:
        """This is to be written soon."""
        self._events[event.id] = event
        if len(self._events) > _MOST_EVENTS:
            del self._events[next(iter(self._events))]
            self.note = "It could not be written for so long that the oldest events are lost."
        if self.state is not LedgerState.FAILING:
            self._wake.set()

    @property
    def unwritten_events(self) -> tuple[EventReport, ...]:
        """What waits to be written, the oldest first."""
        return tuple(self._events.values())

    async def read(self, question: Callable[[Any], T]) -> T:
        """What the store answers, with everything written that was kept until now.

        Raises `LedgerProblem`. `question` is called on the ledger's thread.
        """
        if not await self.attempt():
            raise LedgerProblem(self.text or self.note)
        store = self._store
        try:
            return await self._thread.call(lambda: question(store))
        except LedgerProblem as error:
            self._failed(str(error))
            raise

    @property
    def is_open(self) -> bool:
        """Whether it could be read at the last attempt."""
        return self._file is _File.OPEN

    def is_unwritten(self, key: SettingKey) -> bool:
        """Whether a setting that was changed here waits to be written."""
        return key in self._settings

    async def usage_since(self, since: float) -> list[tuple[str, float, float]]:
        """What is on record since a time; nothing where the ledger cannot be read."""
        store = self._store
        if store is None or not self.is_open:
            return []
        try:
            found: list[tuple[str, float, float]] = await self._thread.call(
                lambda: store.usage_since(since)
            )
        except Exception as error:
            self._failed(str(error))
            return []
        return found

    def report(self) -> LedgerReport:
        """For the status."""
        return LedgerReport(
            state=self.state.value,
            text=self.text or self.note,
            url=self._store.shown if self._store is not None else "",
            unwritten_rows=len(self._charges) + len(self._settings) + len(self._events),
            unwritten_device_seconds=sum(c.device_seconds for c in self._charges.values()),
        )

    # -- writing -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            before = self.report()
            if await self.attempt() or self.state is LedgerState.FAILING:
                self.tried.set()
            if self.report() != before:
                self.on_change()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()

    async def attempt(self) -> bool:
        """Open what is not open, write what is not written; whether all went well."""
        async with self._attempts:
            return await self._attempt()

    async def _attempt(self) -> bool:
        try:
            if not self.is_open:
                await self._open()
            if self._charges or self._settings or self._events:
                await self._write()
        except LedgerBroken as error:
            if self.is_open:
                self._file = _File.LOST
            self.note = f"The usage ledger was broken: {error}."
            _LOG.error("%s A new one is begun with all that is known.", self.note)
            self._wake.set()
            return False
        except Exception as error:
            # Whatever a driver raises: usage is kept, and cells run on.
            self._failed(str(error) or type(error).__name__)
            return False
        self._works()
        return True

    async def _open(self) -> None:
        since, url, directory = self._owner.ledger_horizon(), self._url, self._directory
        known = self._store

        def open_store() -> tuple[Any, Any, list[Path]]:
            # Imported here: SQLAlchemy takes a moment, which is the thread's.
            from jgpu.broker.control.quotas.ledger.store import Store

            store = known or Store(url)
            loaded = store.open(since)
            taken = _take_leftovers(store, directory)
            return store, store.open(since) if taken else loaded, taken

        self._store, loaded, taken = await self._thread.call(open_store)
        for file in taken:
            _LOG.warning(
                "Usage that an earlier run could not write is in the ledger now: %s.", file
            )
        was, self._file = self._file, _File.OPEN
        if was is _File.LOST:
            self._run, charges = self._owner.ledger_begun_anew()
            self._charges = {charge.key: charge for charge in charges}
        else:
            self._owner.ledger_opened(loaded.usage, loaded.settings)

    async def _write(self) -> None:
        charges, settings = list(self._charges.values()), dict(self._settings)
        events = list(self._events.values())
        store = self._store
        await self._thread.call(lambda: store.write(charges, settings, events))
        for event in events:
            self._events.pop(event.id, None)
        await self._sweep(len(events))
        for charge in charges:
            if self._charges.get(charge.key) is charge:
                del self._charges[charge.key]
        for key, value in settings.items():
            if key in self._settings and self._settings[key] == value:
                del self._settings[key]

    async def _sweep(self, written: int) -> None:
        """Now and then, drop events that are too old or too many."""
        self._unswept += written
        if written and self._unswept >= _EVENTS_BETWEEN:
            self._unswept = 0
            store, since = self._store, time.time() - self._keep_events_s
            await self._thread.call(lambda: store.forget_events(since, _EVENTS_KEPT))

    def _failed(self, why: str) -> None:
        where = self._store.shown if self._store is not None else self._url.partition("://")[0]
        self.text = (
            f"The usage ledger ({where}) cannot be used: {why}. Usage and settings are kept in "
            "memory and written when it works again."
        )
        if self.state is not LedgerState.FAILING:
            self.state = LedgerState.FAILING
            _LOG.error("%s", self.text)

    def _works(self) -> None:
        if self.state is LedgerState.FAILING:
            _LOG.warning("The usage ledger works again; all that was kept is written.")
        self.state, self.text = LedgerState.WORKING, ""

    # -- the end -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Write what is left: to the ledger, or else to a file for the next run."""
        written = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                written = await self.attempt()
        self._thread.close()
        if written or not (self._charges or self._settings or self._events):
            return
        left = Leftovers(
            list(self._charges.values()), list(self._settings.items()), [*self._events.values()]
        )
        try:
            file = leave(self._directory, self._run, left)
        except OSError as error:
            seconds = sum(charge.device_seconds for charge in left.charges)
            _LOG.critical(
                "%.3g device-seconds and %d settings could not be written anywhere (%s); they "
                "are lost.", seconds, len(left.settings), error,
            )  # fmt: skip
        else:
            _LOG.error("Usage that could not be written waits for the next run: %s.", file)


def _take_leftovers(store: Any, directory: Path) -> list[Path]:
    """Write what earlier runs left; the files that are done with."""
    taken = []
    for file in find_leftovers(directory):
        left = read_leftovers(file)
        if left is None:
            _LOG.error("%s cannot be read and is left as it is.", file)
            continue
        store.write(left.charges, left.kept, left.events)
        file.unlink()
        taken.append(file)
    return taken
