"""Who a visitor is to this page: what the hub's answer about them allows.

Pure. Scopes of the hub decide, and nothing else: not being the hub's administrator, not a name.

Invariant: a scope with a filter (`!group=...`) never reaches further than that filter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["ADMIN", "READ", "SCOPES", "TUTOR", "Visitor", "visitor_of"]

#: sees everybody
READ: Final = "custom:jgpu:read"
#: sees and steers everything
ADMIN: Final = "custom:jgpu:admin"
#: sees and steers those with whom they share a group
TUTOR: Final = "custom:jgpu:tutor"
#: what a hub's configuration declares, with what its users read
SCOPES: Final = {
    READ: "See who uses the shared GPU, and how much of it.",
    ADMIN: "See who uses the shared GPU, and steer it: quotas, policy, memory, drain.",
    TUTOR: "See who of one's own groups uses the shared GPU; set their quotas, free their memory.",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """One person, or a program with their token."""

    name: str
    #: sees names and notebooks of everybody
    reads: bool = False
    #: may change everything
    administers: bool = False
    #: may see and change those who are in one of these groups
    tutors: frozenset[str] = frozenset()

    def sees(self, user: str, groups: Iterable[str]) -> bool:
        """Whether they may know what a user, who is in these groups, does."""
        return self.reads or self._is(user) or not self.tutors.isdisjoint(groups)

    def steers(self, groups: Iterable[str]) -> bool:
        """Whether they may set what a user, who is in these groups, may have."""
        return self.administers or not self.tutors.isdisjoint(groups)

    def frees(self, user: str, groups: Iterable[str]) -> bool:
        """Whether they may have a user's memory make way for others'."""
        return self._is(user) or self.steers(groups)

    def _is(self, user: str) -> bool:
        return bool(user) and user == self.name

    @property
    def sees_others(self) -> bool:
        """Whether there may be more to see than their own part."""
        return self.reads or bool(self.tutors)

    @property
    def role(self) -> str:
        """A word for it; empty for most."""
        if self.administers:
            return "administrator"
        if self.tutors:
            return "tutor"
        return "reader" if self.reads else ""


def visitor_of(model: Mapping[str, Any]) -> Visitor:
    """The visitor of whom the hub answered this.

    A tutor reaches the groups that the hub says they are in, of these the ones that their scope
    names where it names any.
    """
    scopes = frozenset(map(str, model.get("scopes") or ()))
    name = str(model.get("name") or "")
    if model.get("kind", "user") != "user":
        name = ""  # a service's name may be that of a user
    groups = frozenset(map(str, model.get("groups") or ()))
    if TUTOR not in scopes:
        named = {s.removeprefix(f"{TUTOR}!group=") for s in scopes if s.startswith(f"{TUTOR}!")}
        groups &= named
    return Visitor(
        name=name,
        reads=READ in scopes or ADMIN in scopes,
        administers=ADMIN in scopes,
        tutors=groups,
    )
