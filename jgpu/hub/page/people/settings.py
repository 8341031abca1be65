"""What a form or a class list says of scopes, and who may say it. Pure.

Values are texts as people write them; whether the broker takes them, the broker says.
"""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from jgpu.errors import BrokerRefused, ConfigError
from jgpu.hub.page.views import Members
from jgpu.hub.page.visitors import Visitor

__all__ = ["FIELDS", "ScopeSetting", "check_rights", "moment_of"]

#: fields of a quota, in the order in which they are shown
FIELDS: Final = (
    "weight", "memory", "resident", "device_seconds", "period", "sessions", "priority",
    "over_budget",
)  # fmt: skip
_FACTORS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([mhd])")
_FORMATS: Final = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class ScopeSetting:
    """What is to be said of one scope from now on."""

    #: default, group:NAME or user:NAME
    scope: str
    #: field -> text; "" takes out what was set
    values: Mapping[str, str]
    #: until when it counts, seconds since the epoch; 0: for good
    until: float = 0.0

    @property
    def parts(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        """Fields and texts, as the broker is told them, and until when: what is taken out is for
        good. Nothing but an empty part takes out everything.
        """
        said = tuple(item for item in self.values.items() if item[1])
        out = tuple(item for item in self.values.items() if not item[1])
        if not self.until or not self.values:
            return [(said + out, 0.0)]
        return [(items, end) for items, end in ((out, 0.0), (said, self.until)) if items]


def check_rights(visitor: Visitor, scopes: Iterable[str], members: Members) -> None:
    """Raise `BrokerRefused` for the first scope of which the visitor may say nothing."""
    for scope in scopes:
        kind, _, name = scope.partition(":")
        allowed = visitor.administers
        if kind == "user":
            allowed = allowed or visitor.steers(members.get(name, ()))
        elif kind == "group":
            allowed = allowed or name in visitor.tutors
        if not allowed:
            raise BrokerRefused(
                "You may not set what others may have."
                if not visitor.tutors
                else f"{scope} is not of your groups, so it is not yours to set."
            )


def moment_of(text: str, now: float) -> float:
    """When a setting ends: "45m", "2h", "3d", or a date and time of this host; "" for never.

    Raises `ConfigError` for anything else, and for what is over.
    """
    text = text.strip()
    if not text:
        return 0.0
    if match := _TIME.fullmatch(text):
        return now + float(match[1]) * _FACTORS[match[2]]
    for form in _FORMATS:
        try:
            moment = time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
        if moment <= now:
            raise ConfigError(f"until: {text} is over.")
        return moment
    raise ConfigError(f"until: {text!r} is no time; write it like 2h, 3d or 2027-01-31 18:00.")
