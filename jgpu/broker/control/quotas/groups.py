"""Which groups a user is in: those of the configuration, and the host's where they are a Unix user.

The host may have to ask a directory server, so look-ups are made off the event loop and remembered
for a while; on the loop there is only what is remembered.
"""

import contextlib
import grp
import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from typing import Final

__all__ = ["Groups", "unix_group_exists", "unix_groups", "unix_user_exists"]

#: For how long a look-up counts, in seconds.
_FRESH_S: Final = 300.0
#: users whose groups are remembered
_REMEMBERED: Final = 4096


def unix_groups(user: str) -> frozenset[str]:
    """Names of the host's groups that a login name is in; none for a name the host does not know.

    May take as long as the host's directory server does.
    """
    try:
        primary = pwd.getpwnam(user).pw_gid
    except (KeyError, OSError, ValueError):
        return frozenset()
    try:
        numbers = os.getgrouplist(user, primary)
    except OSError:
        return frozenset()
    names = set()
    for number in numbers:
        with contextlib.suppress(KeyError, OSError):  # a number without a name
            names.add(grp.getgrgid(number).gr_name)
    return frozenset(names)


def unix_user_exists(user: str) -> bool:
    """Whether the host knows a login name; blocks as `unix_groups` does."""
    try:
        pwd.getpwnam(user)
    except (KeyError, OSError, ValueError):
        return False
    return True


def unix_group_exists(name: str) -> bool:
    """Whether the host knows a group; blocks as `unix_groups` does."""
    try:
        grp.getgrnam(name)
    except (KeyError, OSError, ValueError):
        return False
    return True


class Groups:
    """Configured members, and what the host said of each user."""

    def __init__(
        self,
        members: Mapping[str, frozenset[str]],
        look_up: Callable[[str], frozenset[str]] = unix_groups,
    ) -> None:
        self._members = members
        self._look_up = look_up
        #: user -> groups that a hub told
        self._registered: dict[str, frozenset[str]] = {}
        #: user -> (when looked up, the host's groups)
        self._found: dict[str, tuple[float, frozenset[str]]] = {}

    def register(self, user: str, groups: Iterable[str]) -> None:
        """A hub's groups of one of its users, besides what others say."""
        self._registered.pop(user, None)
        self._registered[user] = frozenset(groups)
        if len(self._registered) > _REMEMBERED:
            self._registered.pop(next(iter(self._registered)))

    @property
    def configured(self) -> set[str]:
        """Names of the groups that the configuration or a hub makes."""
        return set(self._members).union(*self._registered.values())

    @property
    def registered(self) -> set[str]:
        """Users of whom a hub told."""
        return set(self._registered)

    def is_fresh(self, user: str, now: float) -> bool:
        """Whether `of` tells what the host said not long ago."""
        found = self._found.get(user)
        return found is not None and now - found[0] < _FRESH_S

    def refresh(self, user: str, now: float) -> None:
        """Ask the host; blocks, and may be called on any thread."""
        found = self._look_up(user)
        self._found.pop(user, None)
        self._found[user] = (now, found)
        if len(self._found) > _REMEMBERED:
            self._found.pop(next(iter(self._found)), None)

    def of(self, user: str) -> frozenset[str]:
        """All groups of a user, as far as known."""
        _, unix = self._found.get(user, (0.0, frozenset[str]()))
        told = self._registered.get(user, frozenset[str]())
        return unix | told | {name for name, members in self._members.items() if user in members}
