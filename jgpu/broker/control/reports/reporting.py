"""Puts the report together from what the parts of the broker know at the moment.

Where a user stands takes a tenth of a millisecond to find out, and watchers are told ten times a
second: it is found out anew when the desk has judged everybody, when a user's use was counted, or
what was said of users changed; of those without a session it holds for a minute, in which only
their use ages.
"""

import operator
import os
import time
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from jgpu import __version__
from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.executors.supervisor import ExecutorState
from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.quotas.requests import QuotaRequests
from jgpu.broker.control.registry import Registry
from jgpu.broker.control.reports.audit import Audit
from jgpu.broker.control.reports.drains import DrainProgress, drain_of
from jgpu.broker.control.reports.report import DeviceView, Viewer, build_report
from jgpu.broker.control.sessions import Sessions
from jgpu.wire import limits
from jgpu.wire.messages import ReportIs
from jgpu.wire.reports.report import BrokerReport, Report, StandingReport

__all__ = ["Reporter"]

#: for so long a user without a session stands where they stood
_HOLDS_S: Final = 60.0
#: users of whom that is remembered
_USERS: Final = 8192


class _Stands(NamedTuple):
    """Where a user stands, since when, and by what was said of all users."""

    row: StandingReport
    since: float
    said: tuple[Any, ...]


class Reporter:
    """One broker's reports, each as its viewer may see it."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        sessions: Sessions,
        desk: QuotaService,
        quotas: QuotaRequests,
        audit: Audit,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._sessions = sessions
        self._desk = desk
        self._quotas = quotas
        self._audit = audit
        self._started = time.time()
        #: by user
        self._stands: dict[str, _Stands] = {}
        #: from the monotonic clock to seconds since the epoch
        self._epoch = self._started - time.monotonic()

    def looked(self) -> None:
        """The desk has judged everybody who has a session."""
        for session in self._registry.sessions.values():
            self._stands.pop(session.user, None)

    def used(self, user: str) -> None:
        """What a user used was counted, to the end of a session or until now."""
        self._stands.pop(user, None)

    def forget(self) -> None:
        """Something was said of users: their names, their groups."""
        self._stands.clear()

    def _standing(self, user: str) -> StandingReport:
        scopes, now = self._desk.scopes, time.monotonic()
        said = (scopes.live, scopes.timed, scopes.hub)
        known = self._stands.get(user)
        # By what it is, not what is in it: where it ends, a setting goes from the old one, too.
        same = known is not None and all(map(operator.is_, known.said, said))
        if known is not None and same and now - known.since < _HOLDS_S:
            return known.row
        if len(self._stands) >= _USERS:
            self._stands.clear()
        row = self._quotas.standing(user)
        self._stands[user] = _Stands(row, now, said)
        return row

    async def asked(self, viewer: Viewer) -> Report:
        """What the executor says when it is asked, and everything else."""
        await self._sessions.shown_report()
        return self.known(viewer)

    def known(self, viewer: Viewer) -> Report:
        """The same by what the executor said last."""
        made = build_report(
            self._broker(),
            [self._device(self._sessions.last_report)],
            self._registry.sessions.values(),
            self._registry.usage,
            viewer,
            time.monotonic(),
            standing=self._standing,
            epoch=self._epoch,
        )
        if viewer.administrator:
            broker = replace(made.broker, refusals=dict(self._audit.refusals))
            made = replace(made, broker=broker, ledger=self._desk.ledger.report())
        return made

    def _broker(self) -> BrokerReport:
        settings, drain = self._settings, self._drain()
        return BrokerReport(
            version=__version__,
            protocol=limits.PROTOCOL,
            pid=os.getpid(),
            socket=str(settings.socket),
            private=settings.private,
            started=self._started,
            torch=self._sessions.supervisor.runtime.torch,
            seats=len(self._registry.seats),
            max_sessions=settings.max_sessions,
            drain=drain.state,
            drain_waits_for=drain.waits_for,
            drain_text=drain.text,
        )

    def _drain(self) -> DrainProgress:
        """How far a drain is, by what the executor said since it was told."""
        if not self._sessions.draining:
            return DrainProgress()
        ready = self._sessions.supervisor.state is ExecutorState.READY
        return drain_of(self._sessions.last_report, ready=ready)

    def _device(self, report: ReportIs | None) -> DeviceView:
        supervisor, settings = self._sessions.supervisor, self._settings
        silence = self._sessions.overseer.silence
        return DeviceView(
            kind=supervisor.device,
            state="silent" if silence else supervisor.state.value,
            note=silence or supervisor.note,
            working=self._sessions.overseer.working,
            facts=supervisor.facts,
            report=report,
            policy=settings.executor.policy,
            capacity=settings.executor.capacity,
            restarts=supervisor.restarts,
            pid=supervisor.pid,
            last_end=self._sessions.culprits.last_end,
        )
