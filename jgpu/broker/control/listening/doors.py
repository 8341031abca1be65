"""The sockets that a broker listens at, and what follows from having come by each.

A host's broker has two doors. The users' is for notebooks: whoever comes by it is their uid's user
and has to do with their own sessions alone, whatever the uid is, for root in a container is root
here as well. The administrators' door is for everything that concerns others; who may enter it is
decided by the socket's group, and by nothing that is said. A private broker has one door, its
owner's, who administers.

Invariant: no field of a message, and no uid at the users' door, makes anyone an administrator.
"""

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from jgpu.broker.control.listening.listener import Listener

__all__ = ["Door", "DoorKind", "open_doors"]


class DoorKind(enum.Enum):
    """Whom a door is for."""

    USERS = "users"
    ADMINISTRATORS = "administrators"
    #: of a broker that one person started for themselves
    OWNER = "owner"
    #: made for one server of a hub, and mounted where only that server is
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Door:
    """A listening socket and whom it is for."""

    listener: Listener
    kind: DoorKind
    #: the server that it was made for; empty: everybody's
    serves: str = ""
    #: whose that server is, and who all are that come by it
    user: str = ""

    def administers(self, uid: int) -> bool:
        """Whether a peer with this uid may see and steer what is others'."""
        if self.kind is DoorKind.OWNER:
            return uid in (0, os.getuid())
        return self.kind is DoorKind.ADMINISTRATORS

    def speaks_for_others(self, uid: int) -> bool:
        """Whether such a peer is believed when it says for which user it comes."""
        if self.kind is DoorKind.OWNER:
            return uid == os.getuid()
        return self.kind is DoorKind.ADMINISTRATORS


def open_doors(users: Path, group: str, admin: Path | None, admin_group: str) -> tuple[Door, ...]:
    """Listen at the users' socket and the administrators'; at `users` alone for a private broker.

    Raises `ConfigError` where a socket cannot be had; none is left open then.
    """
    if admin is None:
        return (Door(Listener(users, group), DoorKind.OWNER),)
    first = Listener(users, group)
    try:
        second = Listener(admin, admin_group)
    except BaseException:
        first.close()
        raise
    return Door(first, DoorKind.USERS), Door(second, DoorKind.ADMINISTRATORS)
