"""Answers `jgpu quota`: who may have and who used how much, and changes of it by administrators.

Invariant: whoever is no administrator sees themselves alone, and changes nothing.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from msgspec import UNSET

from jgpu.broker.control.quotas.budgets import Standing, sentence
from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.quotas.excess import excess
from jgpu.broker.control.quotas.groups import unix_group_exists, unix_user_exists
from jgpu.broker.control.quotas.scopes import Scope
from jgpu.broker.control.registry import Registry
from jgpu.broker.control.reports.report import Viewer
from jgpu.errors import BrokerRefused, ConfigError
from jgpu.wire.messages import AskQuotas, SetQuota
from jgpu.wire.reports.report import QuotaReport, QuotasReport, ScopeReport, StandingReport

__all__ = ["QuotaRequests", "change_text"]

_LOG = logging.getLogger("jgpu.broker")
_MOST_NOTES: Final = 16
#: A setting ends within ten years, or it is meant for good.
_LONGEST_S: Final = 10 * 366 * 86400.0


def change_text(request: SetQuota) -> str:
    """Return what is set, and until when, as it goes on record."""
    said = ", ".join(
        f"{name}={value}" if value else f"no {name}" for name, value in request.settings
    )
    until = f", until {moment(request.until)}" if request.until else ""
    return f"{said or 'nothing any more'}{until}"


class QuotaRequests:
    """The two requests of `jgpu quota`; both raise errors whose sentence is for the asker."""

    def __init__(self, desk: QuotaService, registry: Registry) -> None:
        self._desk = desk
        self._registry = registry

    async def list(self, request: AskQuotas, viewer: Viewer) -> QuotasReport:
        """What the asker may see, of one user or of all."""
        name = request.user.strip()
        await self._desk.look_up(viewer.user)
        if not viewer.administrator:
            if name and name != viewer.user:
                raise BrokerRefused(
                    f"You are {viewer.user}; only an administrator sees others' quotas and usage."
                )
            name = viewer.user
        elif name and name not in self._known() and not await _exists(unix_user_exists, name):
            raise ConfigError(f"There is no user {name!r} on this host, and none was ever here.")
        names = {name} if name else self._known()
        for each in names:
            await self._desk.look_up(each)
        unknown = await self._unknown_groups() if viewer.administrator else ()
        return self._report(sorted(names), viewer, unknown)

    async def change(self, request: SetQuota, viewer: Viewer) -> QuotasReport:
        """Set, or take out, what a scope says, or only try; the answer is what counts then."""
        if not viewer.administrator:
            raise BrokerRefused(f"You are {viewer.user}; only an administrator may set quotas.")
        scope = Scope.parse(request.scope)
        if not request.new and any(value for _, value in request.settings):
            await self._check_known(scope)
        await self._desk.look_up(viewer.user)
        self._check_moment(request)
        if request.trial:
            self._desk.live.try_change(scope, dict(request.settings), request.until)
            return self._report([], viewer, ())
        await self._desk.set_live(scope, dict(request.settings), request.until)
        _LOG.info("%s set of %s: %s.", viewer.user, scope, change_text(request))
        names = {scope.name} if scope.kind == "user" else self._known()
        over = self.excess(scope, [name for name, _ in request.settings])
        return self._report(sorted(names), viewer, over)

    def excess(self, scope: Scope, fields: Iterable[str]) -> tuple[str, ...]:
        """What users whom a scope concerns have beyond what they may have now, in sentences."""
        desk, fields = self._desk, set(fields)
        said = [
            text
            for user in sorted({session.user for session in self._registry.sessions.values()})
            if self._concerns(scope, user)
            for text in excess(user, desk.quota(user), desk.in_use(user), fields)
        ]
        more = len(said) - _MOST_NOTES
        return (*said[:_MOST_NOTES], *([f"And {more} more are like this."] if more > 0 else []))

    def _concerns(self, scope: Scope, user: str) -> bool:
        if scope.kind == "group":
            return scope.name in self._desk.groups.of(user)
        return scope.kind == "default" or scope.name == user

    async def _unknown_groups(self) -> tuple[str, ...]:
        """What is set of groups that there are none of."""
        groups = sorted(self._desk.scopes.groups - self._desk.groups.configured)
        unknown = [name for name in groups if not await _exists(unix_group_exists, name)]
        return tuple(
            f"There is no group {name!r} on this host, in the configuration or at a hub; what is "
            "set of it counts for nobody until there is one."
            for name in unknown
        )

    def _check_moment(self, request: SetQuota) -> None:
        """A setting that ends has to begin."""
        until, now = request.until, self._desk.now
        if not until:
            return
        if not now < until <= now + _LONGEST_S:
            raise ConfigError(
                f"A setting cannot end at {moment(until)}; that is past, or too far away: it is "
                f"{moment(now)}."
            )
        if not request.settings or not all(value for _, value in request.settings):
            raise ConfigError("What is taken out is taken out for good, until no moment.")

    async def _check_known(self, scope: Scope) -> None:
        """A name that was mistyped should not look like a success."""
        desk, name = self._desk, scope.name
        if scope.kind == "user":
            known = name in self._known() or await _exists(unix_user_exists, name)
        elif scope.kind == "group":
            known = name in desk.groups.configured | desk.scopes.groups
            known = known or await _exists(unix_group_exists, name)
        else:
            known = True
        if not known:
            raise ConfigError(
                f"There is no {scope.kind} {name!r} on this host or in the configuration; if there "
                "will be, say so with --new."
            )

    def _known(self) -> set[str]:
        """Everybody who was here or of whom something is said."""
        here = {session.user for session in self._registry.sessions.values()}
        said = self._desk.scopes.users | self._desk.groups.registered
        return here | said | set(self._registry.usage) | self._desk.usage.users

    def _report(self, names: Iterable[str], viewer: Viewer, notes: Iterable[str]) -> QuotasReport:
        return QuotasReport(
            scopes=tuple(
                ScopeReport(
                    scope=str(said.scope),
                    source=said.source,
                    settings=dict(said.spec.items()),
                    until=said.until,
                )
                for said in self._desk.scopes.listed()
                if viewer.administrator or said.scope == ("user", viewer.user)
            ),
            users=tuple(self.standing(name) for name in names),
            ledger=self._desk.ledger.report() if viewer.administrator else UNSET,
            notes=tuple(notes),
        )

    def standing(self, name: str) -> StandingReport:
        """A user's quota and what was used of it, as `jgpu status` shows it, too."""
        desk, now = self._desk, self._desk.now
        quota, verdict = desk.quota(name), desk.verdict(name)
        beyond = verdict.standing is not Standing.WITHIN
        return StandingReport(
            name=name,
            groups=tuple(sorted(desk.groups.of(name))),
            sessions=sum(s.user == name and s.live for s in self._registry.sessions.values()),
            weight=quota.weight,
            quota=QuotaReport(**asdict(quota)),
            used_in_period=verdict.used_s,
            state=verdict.standing.value,
            free_at=verdict.free_at if beyond else None,
            text=sentence(name, verdict, now) if beyond else "",
        )


def moment(when: float) -> str:
    """A moment as the host's clock shows it."""
    if not math.isfinite(when) or abs(when) > 1e11:
        return f"{when:g} s after 1970"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


async def _exists(look_up: Any, name: str) -> bool:
    """Ask the host, off the event loop."""
    found: bool = await asyncio.to_thread(look_up, name)
    return found
