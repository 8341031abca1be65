"""Brings quotas, usage and ledger together: what each user may have now, told to the executor.

Counts what executors report, judges every user with a session every few seconds (sooner where a
budget is nearly used up), and sends `SetUser` whenever anything of it changes.

Invariant: an executor is told of a user before it is given their session.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jgpu.broker.control.quotas.budgets import Standing, Verdict, judge, sentence
from jgpu.broker.control.quotas.excess import InUse
from jgpu.broker.control.quotas.groups import Groups
from jgpu.broker.control.quotas.ledger.charges import UsageLedger
from jgpu.broker.control.quotas.ledger.live import LiveSettings
from jgpu.broker.control.quotas.ledger.meter import Charge, Meter
from jgpu.broker.control.quotas.ledger.problems import SettingKey, StoredSetting
from jgpu.broker.control.quotas.ledger.usage import UsageHistory
from jgpu.broker.control.quotas.scopes import QuotaSettings, Scope, Scopes
from jgpu.broker.control.quotas.spec import (
    PRIORITIES,
    Quota,
    make_spec,
)
from jgpu.broker.control.registry import Registry, SessionPhase, SessionRecord
from jgpu.errors import QuotaExceeded
from jgpu.wire.messages import ReportIs, SetUser, Tell

if TYPE_CHECKING:
    import msgspec

__all__ = ["QuotaService"]

_LOG = logging.getLogger("jgpu.broker")
#: The executor is asked at most so often, in seconds, however near a budget's end is.
_SOONEST_S: Final = 0.25
#: For so long a newcomer waits for a ledger that was not read yet.
_FIRST_WORD_S: Final = 3.0
#: Usage is known at least as far back, for `jgpu quota set` with a longer period.
_LEAST_HORIZON_S: Final = 7 * 86400.0
#: Standings of which the user is told by a notice; a refusal tells itself.
_TOLD: Final = (Standing.WARNED, Standing.THROTTLED)


class QuotaService:
    """The quotas of one broker; on its event loop."""

    def __init__(
        self,
        settings: QuotaSettings,
        registry: Registry,
        *,
        ledger: str,
        directory: Path,
        interval_s: float,
        private: bool = False,
        keep_events_s: float = math.inf,
        clock: Callable[[], float] = time.time,
        groups: Groups | None = None,
    ) -> None:
        run = secrets.token_hex(16)
        self.scopes = Scopes(settings)
        self.groups = groups or Groups(settings.members)
        self.usage = UsageHistory()
        self.ledger = UsageLedger(
            ledger, directory, run, self, interval_s=interval_s, keep_events_s=keep_events_s
        )
        self.live = LiveSettings(self.scopes, self.ledger)
        self._registry = registry
        self._meter = Meter(run)
        self._interval_s = interval_s
        self._private = private
        self._clock = clock
        self._wake = asyncio.Event()
        #: since when usage is known, as far as it was written
        self._horizon = self.now
        #: to the executor; set by whoever has one
        self.send: Callable[[msgspec.Struct], None] = lambda order: None
        #: told when a user passes their budget, or is within it again
        self.on_standing: Callable[[str, str], None] = lambda user, text: None
        #: told whose use of the device was counted just now
        self.on_use: Callable[[str], None] = lambda user: None
        #: called when everybody was judged, which may have changed what they may have
        self.on_change: Callable[[], None] = lambda: None
        #: why new work of a user is refused for another reason than their budget; empty for most
        self.held: Callable[[str], str] = lambda user: ""
        #: user -> what the executor of the moment was told last
        self._orders: dict[str, SetUser] = {}
        #: session -> bytes of its model, and of all else, as last reported
        self._bytes: dict[int, tuple[int, int]] = {}
        #: user -> where they stood when their sessions were last looked at
        self._standings: dict[str, Standing] = {}

    # -- what a user may have ----------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock()

    def quota(self, user: str) -> Quota:
        """What counts for a user."""
        self.live.end(self.now)
        return self.scopes.quota(user, self.groups.of(user))

    def verdict(self, user: str) -> Verdict:
        """Where a user stands with their budget."""
        quota = self.quota(user)
        return judge(quota, self.usage.window(user, quota.period), self.now)

    async def look_up(self, user: str) -> None:
        """Have what is needed to judge a user: what is on record, and their groups.

        Waits for the ledger's first word, but not for long; asks the host for groups off the event
        loop, if that was long ago.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_WORD_S):
                await self.ledger.tried.wait()
        if not self.groups.is_fresh(user, self.now):
            await asyncio.to_thread(self.groups.refresh, user, self.now)

    def priority(self, user: str, asked: str) -> int:
        """The class of a new session; raises `QuotaExceeded` for one that is too urgent."""
        best = self.quota(user).priority
        asked = asked.strip().lower() or best
        if self._private and self.scopes.said(user, self.groups.of(user)).priority is None:
            best = PRIORITIES[0]  # one's own broker: there is nobody to be before
        if asked not in PRIORITIES:
            raise QuotaExceeded(f"There is no priority {asked!r}; it is one of {_or(PRIORITIES)}.")
        if PRIORITIES.index(asked) < PRIORITIES.index(best):
            raise QuotaExceeded(
                f"{user} asked for the priority {asked}; the most urgent that {user} may have is "
                f"{best}."
            )
        return PRIORITIES.index(asked)

    def in_use(self, user: str) -> InUse:
        """What a user has, as last reported."""
        here = [s for s in self._registry.sessions.values() if s.user == user and s.live]
        held = [self._bytes.get(session.number, (0, 0)) for session in here]
        return InUse(
            memory=sum(map(sum, held)),
            resident=sum(resident for resident, _ in held),
            priorities=tuple(session.priority for session in here),
        )

    # -- sessions ----------------------------------------------------------------------------

    def order(self, user: str) -> SetUser:
        """What an executor has to know of a user now."""
        quota, verdict, held = self.quota(user), self.verdict(user), self.held(user)
        denied = verdict.standing is Standing.DENIED
        return SetUser(
            user,
            weight=quota.weight,
            limit=quota.memory,
            resident_limit=quota.resident,
            throttled=verdict.standing is Standing.THROTTLED,
            refusal=held or (sentence(user, verdict, self.now) if denied else ""),
            refused_as="HeldOff" if held else "BudgetExceeded",
        )

    def before_adoption(self, session: SessionRecord) -> SetUser:
        """Count the session from here on; what the executor is told before it gets it."""
        self._meter.opened(session.number, session.user, session.kernel_id)
        self._wake.set()
        order = self._orders[session.user] = self.order(session.user)
        return order

    def after_adoption(self, session: SessionRecord) -> None:
        """Tell a new session where its user stands, if that is worth a word."""
        verdict = self.verdict(session.user)
        self._standings[session.user] = verdict.standing
        if verdict.standing in _TOLD:
            self.send(Tell(session.number, sentence(session.user, verdict, self.now)))

    def measured(self, report: ReportIs, device: str) -> None:
        """Count what sessions have used since the last report."""
        for row in report.sessions:
            self._count(row.id, row.device_seconds, device)
        self._bytes = {row.id: (row.resident_bytes, row.ephemeral_bytes) for row in report.sessions}

    def session_ended(self, session: int, total_s: float, device: str) -> None:
        """Count what a session has used to its end."""
        self._count(session, total_s, device)
        self.session_gone(session)

    def session_gone(self, session: int) -> None:
        """No executor will tell any more of this session."""
        self._meter.ended(session)

    def executor_gone(self) -> None:
        """The next executor knows nobody, and counts from 0."""
        self._meter.executor_gone()
        self._orders.clear()
        self._bytes.clear()

    def _count(self, number: int, total_s: float, device: str) -> None:
        session = self._registry.sessions.get(number)
        used_s = self._meter.measured(number, total_s, device, self.now)
        if session is not None and used_s:
            self.usage.add(session.user, used_s, self.now)
            self.on_use(session.user)

    # -- every few seconds -------------------------------------------------------------------

    async def run(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Until cancelled; `ask` has the executor report, which comes to `measured`."""
        while True:
            self._wake.clear()
            if not self._registry.sessions:
                await self._wake.wait()
            try:
                await ask()
                await self._reach_back()
                self.look()
            except Exception:
                # Whoever computes must not suffer for a mistake in counting.
                _LOG.exception("Budgets could not be looked at.")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._delay_s()):
                    await self._wake.wait()

    def look(self) -> None:
        """Judge everybody who has a session, and hand what was used to the ledger."""
        self.live.end(self.now)
        self.ledger.keep(self._meter.take())
        old = self.now - 2 * max(self.scopes.longest_period, _LEAST_HORIZON_S)
        self._horizon = max(self._horizon, old)
        self.usage.forget(old)
        here = {session.user for session in self._registry.sessions.values()}
        self._orders = {user: order for user, order in self._orders.items() if user in here}
        self._standings = {user: s for user, s in self._standings.items() if user in here}
        for user in here:
            self._look_at(user)
        self.on_change()

    def _look_at(self, user: str) -> None:
        sessions = [
            session
            for session in self._registry.sessions.values()
            if session.user == user and session.state is SessionPhase.ADOPTED
        ]
        if not sessions:
            return
        verdict, order = self.verdict(user), self.order(user)
        if order != self._orders.get(user):
            self._orders[user] = order
            self.send(order)
        before = self._standings.get(user, Standing.WITHIN)
        if verdict.standing is before:
            return
        self._standings[user] = verdict.standing
        if verdict.standing is Standing.WITHIN:
            _LOG.info("%s is within the budget again.", user)
            self.on_standing(user, "Within the budget again.")
            return
        text = sentence(user, verdict, self.now)
        _LOG.info("%s", text)
        self.on_standing(user, text)
        if verdict.standing in _TOLD:
            for session in sessions:
                self.send(Tell(session.number, text))

    def _delay_s(self) -> float:
        """Until the next look: no budget is passed unseen for long."""
        delay_s = self._interval_s
        for user in {session.user for session in self._registry.sessions.values()}:
            verdict = self.verdict(user)
            if verdict.budget_s and verdict.standing is Standing.WITHIN:
                delay_s = min(delay_s, verdict.budget_s - verdict.used_s)
        delay_s = max(delay_s, min(_SOONEST_S, self._interval_s))
        return max(0.0, min(delay_s, self.scopes.next_end - self.now))

    async def count_all(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Count what was used up to now, and hand it to the ledger."""
        if self._registry.sessions:
            await ask()
        self.look()

    # -- settings ----------------------------------------------------------------------------

    async def set_live(self, scope: Scope, settings: Mapping[str, str], until: float = 0.0) -> None:
        """Change what a scope says, as `LiveSettings.change` does, and have it felt at once."""
        self.live.change(scope, settings, until)
        await self.changed()

    def set_hub(self, group: str, settings: Mapping[str, str]) -> None:
        """Replace what a hub says of a group; raises `ConfigError`, and then nothing has."""
        self.scopes.set_hub(Scope.parse(f"group:{group}"), make_spec(settings))

    async def changed(self) -> None:
        """Have what was just set felt at once."""
        await self._reach_back()
        self.look()
        self._wake.set()

    async def _reach_back(self) -> None:
        """Have usage as far back as any budget looks, which a new one may do further."""
        since = self.now - self.scopes.longest_period
        if since < self._horizon and self.ledger.is_open:
            self._horizon = since
            self.usage.load_older(await self.ledger.usage_since(since))

    # -- what the ledger tells ---------------------------------------------------------------

    def ledger_horizon(self) -> float:
        """As far back as any budget looks."""
        self._horizon = self.now - max(self.scopes.longest_period, _LEAST_HORIZON_S)
        return self._horizon

    def ledger_opened(
        self, usage: list[tuple[str, float, float]], settings: Mapping[SettingKey, StoredSetting]
    ) -> None:
        """Take in what earlier runs wrote; what was set meanwhile stands."""
        self.live.load(settings, self.now)
        self.usage.load(usage)
        self.look()

    def ledger_begun_anew(self) -> tuple[str, list[Charge]]:
        """All that is known, for a ledger that has lost it."""
        run = secrets.token_hex(16)
        self._meter.begin_anew(run)
        self.live.keep_all()
        return run, self.usage.carried(run)


def _or(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + " or " + words[-1]
