"""Answers `jgpu quota`: who may have and who used how much, and changes of it by administrators.

The rule that must not be broken: whoever is no administrator sees himself alone, and changes
nothing.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from msgspec import UNSET

from jgpu.broker.control.quotas.budgets import Standing, sentence
from jgpu.broker.control.quotas.desk import Desk
from jgpu.broker.control.quotas.groups import unix_group_exists, unix_user_exists
from jgpu.broker.control.quotas.scopes import Scope
from jgpu.broker.control.registry import Registry
from jgpu.broker.control.report import Viewer
from jgpu.errors import BrokerRefused, ConfigError
from jgpu.wire.messages import AskQuotas, SetQuota
from jgpu.wire.report import QuotaReport, QuotasReport, ScopeReport, StandingReport

__all__ = ["QuotaRequests"]

_LOG = logging.getLogger("jgpu.broker")


class QuotaRequests:
    """The two requests of `jgpu quota`; both raise errors whose sentence is for the asker."""

    def __init__(self, desk: Desk, registry: Registry) -> None:
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
        return self._report(sorted(names), viewer)

    async def change(self, request: SetQuota, viewer: Viewer) -> QuotasReport:
        """Set, or take out, what a scope says; the answer is what counts then."""
        if not viewer.administrator:
            raise BrokerRefused(f"You are {viewer.user}; only an administrator may set quotas.")
        scope = Scope.parse(request.scope)
        if not request.new and any(value for _, value in request.settings):
            await self._check_known(scope)
        await self._desk.look_up(viewer.user)
        await self._desk.set_live(scope, dict(request.settings))
        said = [f"{name}={value}" if value else f"no {name}" for name, value in request.settings]
        _LOG.info("%s set of %s: %s.", viewer.user, scope, ", ".join(said) or "nothing")
        names = {scope.name} if scope.kind == "user" else self._known()
        return self._report(sorted(names), viewer)

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

    def _report(self, names: Iterable[str], viewer: Viewer) -> QuotasReport:
        return QuotasReport(
            scopes=tuple(
                ScopeReport(scope=str(scope), source=source, settings=dict(spec.items()))
                for scope, source, spec in self._desk.scopes.listed()
                if viewer.administrator or scope == ("user", viewer.user)
            ),
            users=tuple(self.standing(name) for name in names),
            ledger=self._desk.ledger.report() if viewer.administrator else UNSET,
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


async def _exists(look_up: Any, name: str) -> bool:
    """Ask the host, off the event loop."""
    found: bool = await asyncio.to_thread(look_up, name)
    return found
