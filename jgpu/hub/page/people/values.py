"""What the view "People" shows: who may have what, and what they used of it. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jgpu.hub.page.now.values import memory_of
from jgpu.hub.page.views import Members, quotas_for
from jgpu.hub.page.visitors import Visitor
from jgpu.wire.reports.report import QuotasReport, Report, ScopeReport, StandingReport

__all__ = ["COLUMNS", "Option", "people_values", "said_of_users"]

_PARTS: Final = re.compile(r"[0-9]+|[^0-9]+")


@dataclass(frozen=True, slots=True)
class Option:
    """Which rows are shown, and in which order."""

    text: str = ""
    group: str = ""
    sort: str = "name"
    descending: bool = False

    def query(self, **other: Any) -> dict[str, str]:
        """The same as arguments of an address, with other values for some."""
        found = {
            "q": self.text, "group": self.group, "sort": self.sort,
            "desc": "1" if self.descending else "",
        } | other  # fmt: skip
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class _PersonRow:
    """A row: what counts for a user, and what they have now."""

    standing: StandingReport
    #: bytes on the device
    kept: int
    #: part of the budget that is used; None without a budget
    used_part: float | None
    may_steer: bool
    #: what is said of this user alone: field -> value
    own: Mapping[str, Any]


def _natural(name: str) -> list[tuple[int, str]]:
    """user2 before user10."""
    return [
        (int(part), "") if part[0] in "0123456789" else (-1, part) for part in _PARTS.findall(name)
    ]


@dataclass(frozen=True, slots=True)
class _ScopeRow:
    """Everybody or a group, and what is said of them, if anything is."""

    scope: str
    source: str
    said: ScopeReport | None
    may_set: bool


#: column -> what it is sorted by
_KEYS: Final[dict[str, Callable[[_PersonRow], Any]]] = {
    "name": lambda person: _natural(person.standing.name),
    "groups": lambda person: person.standing.groups,
    "weight": lambda person: person.standing.weight,
    "kept": lambda person: person.kept,
    "memory": lambda person: person.standing.quota.memory or float("inf"),
    "used": lambda person: person.standing.used_in_period,
    "budget": lambda person: -1.0 if person.used_part is None else person.used_part,
    "sessions": lambda person: person.standing.sessions,
    "priority": lambda person: person.standing.quota.priority,
    "state": lambda person: person.standing.state,
}
#: columns, their titles, and whether they hold numbers
COLUMNS: Final = (
    ("name", "User", False),
    ("groups", "Groups", False),
    ("weight", "Weight", True),
    ("kept", "Memory", True),
    ("memory", "of", True),
    ("used", "Device time", True),
    ("budget", "of budget", True),
    ("sessions", "Sessions", True),
    ("priority", "Class", False),
    ("state", "Standing", False),
)


def people_values(
    visitor: Visitor, quotas: QuotasReport, report: Report | None, members: Members, choice: Option
) -> dict[str, Any]:
    """What the templates of the view need, of what the visitor may see."""
    shown = quotas_for(visitor, quotas, members)
    kept: dict[str, int] = {}
    for session in report.sessions if report else ():
        kept[session.user] = kept.get(session.user, 0) + memory_of(session).on_device
    said = said_of_users(shown.scopes)
    people = [
        _person(visitor, each, kept.get(each.name, 0), said.get(each.name, {}))
        for each in shown.users
    ]
    found = [person for person in people if _matches(person.standing, choice)]
    found.sort(key=_KEYS["name"])
    found.sort(key=_KEYS.get(choice.sort, _KEYS["name"]), reverse=choice.descending)
    groups = sorted({group for person in people for group in person.standing.groups})
    return {
        "people": found,
        "number_of_all": len(people),
        "groups": groups if visitor.reads else [g for g in groups if g in visitor.tutors],
        "scopes": _scopes(visitor, shown.scopes, groups),
        "may_steer": visitor.administers or bool(visitor.tutors),
        "choice": choice,
        "columns": COLUMNS,
    }


def _person(
    visitor: Visitor, standing: StandingReport, kept: int, own: Mapping[str, Any]
) -> _PersonRow:
    budget = standing.quota.device_seconds
    return _PersonRow(
        standing=standing,
        kept=kept,
        used_part=standing.used_in_period / budget if budget else None,
        may_steer=visitor.steers(standing.groups),
        own=own,
    )


def said_of_users(scopes: Iterable[ScopeReport]) -> dict[str, dict[str, Any]]:
    """user -> what was set of them alone while the broker runs, for good or for a time."""
    said: dict[str, dict[str, Any]] = {}
    for scope in sorted(scopes, key=lambda row: row.until):  # what ends by itself stands above
        if scope.source == "live" and scope.scope.startswith("user:"):
            said.setdefault(scope.scope.removeprefix("user:"), {}).update(scope.settings)
    return said


def _scopes(
    visitor: Visitor, scopes: Iterable[ScopeReport], groups: Iterable[str]
) -> list[_ScopeRow]:
    """What is said of everybody and of groups, and those of which something may be said."""
    rows = [
        _ScopeRow(row.scope, row.source, row, _may_set(visitor, row.scope))
        for row in scopes
        if not row.scope.startswith("user:")
    ]
    said = {row.scope for row in rows if row.may_set and row.source == "live"}
    others = ["default"] * visitor.administers + [f"group:{name}" for name in groups]
    rows += [
        _ScopeRow(name, "", None, True)
        for name in others
        if name not in said and _may_set(visitor, name)
    ]
    return sorted(rows, key=lambda row: (row.scope != "default", row.scope, row.source))


def _may_set(visitor: Visitor, scope: str) -> bool:
    kind, _, name = scope.partition(":")
    return visitor.administers or (kind == "group" and name in visitor.tutors)


def _matches(standing: StandingReport, choice: Option) -> bool:
    if choice.group and choice.group not in standing.groups:
        return False
    text = choice.text.casefold()
    return any(text in word.casefold() for word in (standing.name, *standing.groups))
