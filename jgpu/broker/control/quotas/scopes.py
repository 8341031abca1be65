"""Which quota counts for a user: scopes default, group and user, the more specific field by field.

Within a scope what was set live stands above the configuration. A user in several groups has the
most generous of what they say, field by field, for a group is there to give; only the budget is
not mixed: device-seconds and period come from the one group that allows most per time.

The rule that must not be broken: what counts does not depend on the order of anything.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from jgpu.broker.control.quotas.spec import (
    BUILT_IN,
    OVER_BUDGET,
    PRIORITIES,
    Quota,
    QuotaSpec,
    complete,
)
from jgpu.errors import ConfigError

__all__ = ["KINDS", "QuotaSettings", "Scope", "Scopes", "most_generous"]

KINDS: Final = ("default", "group", "user")
_NOTHING: Final = QuotaSpec()


class Scope(NamedTuple):
    """Whom a spec is about; the default has no name."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @classmethod
    def parse(cls, text: str) -> "Scope":
        """Read "default", "group:NAME" or "user:NAME"; raises `ConfigError`."""
        kind, _, name = text.partition(":")
        scope = cls(kind.strip(), name.strip())
        if scope.kind not in KINDS or (scope.kind == "default") != (not scope.name):
            raise ConfigError(f"{text!r} is no scope; write default, group:NAME or user:NAME.")
        return scope


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """What the configuration says of quotas and groups."""

    specs: Mapping[Scope, QuotaSpec] = field(default_factory=dict)
    #: members of the groups that the configuration makes, by the group's name
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Scopes:
    """The specs of all scopes, configured and live."""

    def __init__(self, settings: QuotaSettings) -> None:
        self._settings = settings
        #: set by `jgpu quota set`; none of them empty
        self.live: dict[Scope, QuotaSpec] = {}

    def set_live(self, scope: Scope, values: Mapping[str, Any]) -> None:
        """Set fields, or leave them open where the value is None; raises `ConfigError`."""
        spec = self.live.get(scope, _NOTHING)
        found = dict(spec.items()) | dict(values)
        spec = QuotaSpec(**found)
        if spec == _NOTHING:
            self.live.pop(scope, None)
        else:
            self.live[scope] = spec

    def spec(self, scope: Scope) -> QuotaSpec:
        """What a scope says, live above configured."""
        configured = self._settings.specs.get(scope, _NOTHING)
        return self.live.get(scope, _NOTHING).over(configured)

    def listed(self) -> list[tuple[Scope, str, QuotaSpec]]:
        """All scopes that say something, with "live" or "configuration"."""
        rows = [(scope, "live", spec) for scope, spec in self.live.items()]
        rows += [
            (scope, "configuration", spec)
            for scope, spec in self._settings.specs.items()
            if spec != _NOTHING
        ]
        return sorted(rows, key=lambda row: (KINDS.index(row[0].kind), row[0].name, row[1]))

    @property
    def groups(self) -> set[str]:
        """Names of groups of which anything is said."""
        scopes = {*self.live, *self._settings.specs}
        return {scope.name for scope in scopes if scope.kind == "group"}

    @property
    def users(self) -> set[str]:
        """Names of users of whom anything is said."""
        scopes = {*self.live, *self._settings.specs}
        named = {scope.name for scope in scopes if scope.kind == "user"}
        return named.union(*self._settings.members.values())

    @property
    def longest_period(self) -> float:
        """The longest period that anybody can have, in seconds."""
        specs = [*self.live.values(), *self._settings.specs.values(), BUILT_IN]
        return max(spec.period for spec in specs if spec.period is not None)

    def said(self, user: str, groups: Iterable[str]) -> QuotaSpec:
        """What anybody said of a user who is in these groups."""
        default = self.spec(Scope("default"))
        period_s = default.period or BUILT_IN.period
        assert period_s is not None
        grouped = most_generous([self.spec(Scope("group", name)) for name in groups], period_s)
        return self.spec(Scope("user", user)).over(grouped).over(default)

    def quota(self, user: str, groups: Iterable[str]) -> Quota:
        """What counts for a user who is in these groups."""
        return complete(self.said(user, groups).over(BUILT_IN))


def most_generous(specs: Iterable[QuotaSpec], period_s: float) -> QuotaSpec:
    """The best of several groups; `period_s` counts for those that name none."""
    specs = list(specs)
    found: dict[str, Any] = {
        "weight": _best([s.weight for s in specs], lambda weight: weight),
        "memory": _best([s.memory for s in specs], _as_limit),
        "resident": _best([s.resident for s in specs], _as_limit),
        "sessions": _best([s.sessions for s in specs], _as_limit),
        "priority": _best([s.priority for s in specs], lambda p: -PRIORITIES.index(p)),
        "over_budget": _best([s.over_budget for s in specs], lambda o: -OVER_BUDGET.index(o)),
    }
    budgets = [_budget(spec, period_s) for spec in specs if spec.device_seconds is not None]
    if budgets:
        _, found["device_seconds"], found["period"] = max(budgets)
    else:
        # Without a budget of their own: the shorter the period, the more of the default's.
        found["period"] = _best([s.period for s in specs], lambda period: -period)
    return QuotaSpec.of_parts(found)


def _budget(spec: QuotaSpec, period_s: float) -> tuple[float, float, float]:
    """Device-seconds per second, device-seconds, period."""
    period, used = spec.period or period_s, spec.device_seconds or 0.0
    return _as_limit(used) / period, used, period


def _as_limit(value: float) -> float:
    """A limit as a number to compare: none is the most."""
    return value or math.inf


def _best(values: Iterable[Any], key: Any) -> Any:
    return max((value for value in values if value is not None), key=key, default=None)
