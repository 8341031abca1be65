"""Who is at the other end of a connection: the kernel's word, not the client's.

`SO_PEERCRED` gives pid and uid of the process that connected. A user is a login name; only the
broker's own uid may speak for others (`jgpu run --user`, tests, a hub's spawner). Limits count by
`Identity`, which `identity_of` alone decides: where several people share a uid, the listener that
they came by tells them apart.

The rule that must not be broken: no field of a message makes anyone an administrator.
"""

import os
import pwd
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["Identities", "Identity", "Peer", "clean_text", "identity_of", "login_name", "peer_of"]

_CREDENTIALS = struct.Struct("3i")
_MAX_USER = 64
#: login names remembered; user namespaces have more uids than a host has people
_NAMES: Final = 4096


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected; `pid` is 0 where its pid namespace is not ours."""

    pid: int
    uid: int


class Place(Protocol):
    """Where a connection was accepted."""

    #: whom it was made for, where that is one alone; else empty
    serves: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom limits count for: a uid, whoever a listener was made for, or who is spoken for."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def identity_of(peer: Peer, place: Place, spoken_for: str = "") -> Identity:
    """Whose limits a connection counts for.

    `spoken_for`: the user that the broker's own uid was believed to speak for.
    """
    if place.serves:
        return Identity("socket", place.serves)
    return Identity("user", spoken_for) if spoken_for else Identity("uid", str(peer.uid))


def peer_of(connection: socket.socket) -> Peer:
    """The peer's credentials at the time it connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return Peer(pid=max(pid, 0), uid=uid)


def login_name(uid: int) -> str:
    """The login name of a uid; may ask a directory server, so not on the event loop's thread."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return f"uid{uid}"


def clean_text(text: str, longest: int) -> str:
    """Client text made fit for a terminal: printable characters only, on one line, cut."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:longest])


class Identities:
    """Login names, remembered, and the two rules about whose word counts."""

    def __init__(
        self,
        own_uid: int | None = None,
        administrators: frozenset[str] = frozenset(),
        name_of: Callable[[int], str] = login_name,
    ) -> None:
        self.own_uid = os.getuid() if own_uid is None else own_uid
        self.administrators = administrators
        self._name_of = name_of
        #: uid -> login name, of those who connected last
        self._names: OrderedDict[int, str] = OrderedDict()

    def known(self, uid: int) -> bool:
        """Whether `name` answers without a look-up."""
        return uid in self._names

    def name(self, uid: int) -> str:
        """The login name of `uid`."""
        name = self._names.get(uid)
        if name is None:
            name = self._names[uid] = self._name_of(uid)
            if len(self._names) > _NAMES:
                self._names.popitem(last=False)
        self._names.move_to_end(uid)
        return name

    def spoken_for(self, peer: Peer, claimed: str) -> str:
        """The user that the broker's own uid speaks for; empty where it is not believed."""
        return clean_text(claimed.strip(), _MAX_USER) if peer.uid == self.own_uid else ""

    def user_of(self, peer: Peer, claimed: str) -> str:
        """The user a request counts for: `claimed` if the broker's own uid says so."""
        return self.spoken_for(peer, claimed) or self.name(peer.uid)

    def is_administrator(self, peer: Peer) -> bool:
        """Root, the broker's own uid, or a configured login name."""
        return peer.uid in (0, self.own_uid) or self.name(peer.uid) in self.administrators

    def may_stop(self, peer: Peer) -> bool:
        """Whether this peer may end the broker."""
        return peer.uid in (0, self.own_uid)
