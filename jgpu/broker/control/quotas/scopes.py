"""Which quota counts for a user: scopes default, group and user, the more specific field by field.

Within a scope what was set live until a moment stands above what was set for good, that above what
a hub says of the group, and that above the configuration. A user in several groups has the
most generous of what they say, field by field, for a group is there to give; only the budget is
not mixed: device-seconds and period come from the one group that allows most per time.

Invariant: what counts does not depend on the order of anything.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from jgpu.broker.control.quotas.spec import (
    BUILT_IN,
    OVER_BUDGET,
    PRIORITIES,
    Quota,
    QuotaSpec,
    complete,
)
from jgpu.errors import ConfigError

__all__ = ["KINDS", "QuotaSettings", "Said", "Scope", "Scopes", "most_generous"]

KINDS: Final = ("default", "group", "user")
_NOTHING: Final = QuotaSpec()
S = TypeVar("S")


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


class Said(NamedTuple):
    """What one source says of one scope."""

    scope: Scope
    #: "configuration", "hub" or "live"
    source: str
    spec: QuotaSpec
    #: the moment at which it ends, in seconds since the epoch; 0 where it does not
    until: float = 0.0


class Scopes:
    """The specs of all scopes, from all sources."""

    def __init__(self, settings: QuotaSettings) -> None:
        self._settings = settings
        #: said by a hub of its groups; none of them empty
        self.hub: dict[Scope, QuotaSpec] = {}
        #: set by `jgpu quota set` for good; none of them empty
        self.live: dict[Scope, QuotaSpec] = {}
        #: set until a moment: by scope and moment; no field of a scope twice, none of them empty
        self.timed: dict[Scope, dict[float, QuotaSpec]] = {}

    def set_live(self, scope: Scope, values: Mapping[str, Any], until: float = 0.0) -> None:
        """Set fields, for good or until a moment; where the value is None they are left open.

        What is set for good, or left open, ends what was set until a moment. Raises `ConfigError`.
        """
        lasting = dict(self.live.get(scope, _NOTHING).items())
        ends = {end: dict(spec.items()) for end, spec in self.timed.get(scope, {}).items()}
        for name, value in values.items():
            for found in ends.values():
                found.pop(name, None)
            if until and value is not None:
                ends.setdefault(until, {})[name] = value
            else:
                lasting[name] = value
        live = QuotaSpec(**lasting)
        timed = {end: QuotaSpec(**found) for end, found in ends.items() if found}
        self.live = _with(self.live, scope, live, empty=_NOTHING)
        self.timed = _with(self.timed, scope, timed, empty={})

    def set_hub(self, scope: Scope, spec: QuotaSpec) -> None:
        """Replace what a hub says of a scope."""
        self.hub = _with(self.hub, scope, spec, empty=_NOTHING)

    def said_live(self, scope: Scope) -> list[Said]:
        """What was set of a scope, for good and until moments."""
        live = {0.0: self.live[scope]} if scope in self.live else {}
        ends = live | self.timed.get(scope, {})
        return [Said(scope, "live", spec, end) for end, spec in ends.items()]

    def load(self, scope: Scope, name: str, value: Any, until: float) -> None:
        """Take in a field that was set before the broker began; raises `ConfigError`."""
        ends = self.timed.get(scope, {})
        spec = ends.get(until, _NOTHING) if until else self.live.get(scope, _NOTHING)
        spec = QuotaSpec(**(dict(spec.items()) | {name: value}))
        if until:
            self.timed[scope] = ends | {until: spec}
        else:
            self.live[scope] = spec

    def end_timed(self, now: float) -> list[Said]:
        """Take out what was set until a moment that is over; what that was."""
        over = [
            Said(scope, "live", spec, end)
            for scope, ends in self.timed.items()
            for end, spec in ends.items()
            if end <= now
        ]
        for row in over:
            del self.timed[row.scope][row.until]
        self.timed = {scope: ends for scope, ends in self.timed.items() if ends}
        return over

    @property
    def next_end(self) -> float:
        """When the next of what was set until a moment ends."""
        return min((end for ends in self.timed.values() for end in ends), default=math.inf)

    def spec(self, scope: Scope) -> QuotaSpec:
        """What a scope says, from the strongest source that says anything, field by field."""
        configured = self._settings.specs.get(scope, _NOTHING)
        said = self.live.get(scope, _NOTHING).over(self.hub.get(scope, _NOTHING).over(configured))
        for spec in self.timed.get(scope, {}).values():
            said = spec.over(said)
        return said

    def listed(self) -> list[Said]:
        """What each source says of each scope, where it says anything."""
        configured = {scope: spec for scope, spec in self._settings.specs.items() if spec.items()}
        rows = [Said(scope, "configuration", spec) for scope, spec in configured.items()]
        rows += [Said(scope, "hub", spec) for scope, spec in self.hub.items()]
        for scope in {*self.live, *self.timed}:
            rows += self.said_live(scope)
        return sorted(
            rows,
            key=lambda row: (KINDS.index(row.scope.kind), row.scope.name, row.source, row.until),
        )

    @property
    def groups(self) -> set[str]:
        """Names of groups of which anything is said."""
        return {row.scope.name for row in self.listed() if row.scope.kind == "group"}

    @property
    def users(self) -> set[str]:
        """Names of users of whom anything is said."""
        named = {row.scope.name for row in self.listed() if row.scope.kind == "user"}
        return named.union(*self._settings.members.values())

    @property
    def longest_period(self) -> float:
        """The longest period that anybody can have, in seconds."""
        specs = [*(row.spec for row in self.listed()), BUILT_IN]
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


def _with(specs: dict[Scope, S], scope: Scope, said: S, *, empty: S) -> dict[Scope, S]:
    """The same but for what one scope says; nothing of a scope that says nothing."""
    others = {each: spec for each, spec in specs.items() if each != scope}
    return others if said == empty else others | {scope: said}


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
