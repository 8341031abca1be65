"""The form of what is said of a scope: what it begins with. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jgpu.hub.page.people.settings import FIELDS
from jgpu.hub.page.words import moment, setting
from jgpu.wire.reports.report import QuotaReport, QuotasReport, ScopeReport

__all__ = ["Edit", "edit_of"]

_TITLES: Final = {"device_seconds": "device time", "over_budget": "beyond it"}
_CHOICES: Final = {
    "priority": ("interactive", "normal", "batch"),
    "over_budget": ("warn", "throttle", "deny"),
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    title: str
    #: what is set of the scope itself
    value: str
    #: what counts without that
    now: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """Whom it is about, and what is said of them."""

    scopes: tuple[str, ...]
    title: str
    hint: str
    fields: tuple[_Field, ...]


def edit_of(scopes: Iterable[str], quotas: QuotasReport) -> Edit:
    """The form for these scopes; several begin empty."""
    chosen = tuple(scopes)
    own: Mapping[str, Any] = {}
    notes, counts = [_hint(chosen)], None
    if len(chosen) == 1:
        own = said_live(quotas, chosen[0])
        notes += [each for row in quotas.scopes if (each := _ending(row, chosen[0]))]
        name = chosen[0].removeprefix("user:")
        counts = next((u.quota for u in quotas.users if f"user:{u.name}" == chosen[0]), None)
        title = name if chosen[0].startswith("user:") else _titled(chosen[0])
    else:
        title = f"{len(chosen)} people"
    return Edit(
        scopes=chosen,
        title=title,
        hint=" ".join(filter(None, notes)),
        fields=tuple(_field(name, own, counts) for name in FIELDS),
    )


def said_live(quotas: QuotasReport, scope: str) -> dict[str, Any]:
    """What was set of a scope while the broker runs, for good or for a time."""
    rows = [row for row in quotas.scopes if row.scope == scope and row.source == "live"]
    rows.sort(key=lambda row: row.until)  # what ends by itself stands above
    return {name: value for row in rows for name, value in row.settings.items()}


def _ending(row: ScopeReport, scope: str) -> str:
    """What was set for a time, and until when."""
    if row.scope != scope or not row.until:
        return ""
    said = ", ".join(f"{name} {setting(name, value)}" for name, value in row.settings.items())
    return f"Until {moment(row.until)}: {said}."


def _field(name: str, own: Mapping[str, Any], counts: QuotaReport | None) -> _Field:
    return _Field(
        name=name,
        title=_TITLES.get(name, name),
        value=setting(name, own[name]) if name in own else "",
        now=setting(name, getattr(counts, name)) if counts is not None else "",
        choices=_CHOICES.get(name, ()),
    )


def _titled(scope: str) -> str:
    return f"the group {scope.removeprefix('group:')}" if scope != "default" else "everybody"


def _hint(scopes: tuple[str, ...]) -> str:
    if len(scopes) > 1:
        names = [scope.removeprefix("user:") for scope in scopes]
        return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    if scopes[0].startswith("group:"):
        return "Counts for all who are in it, where nothing is said of them alone."
    return "Counts where neither a group nor the user has anything said." * (scopes[0] == "default")
