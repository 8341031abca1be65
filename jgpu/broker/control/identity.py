"""Who is at the other end of a connection: the kernel's word, not the client's.

`SO_PEERCRED` gives pid and uid of the process that connected. A user is a login name; only the
broker's own uid may speak for others (`jgpu run --user`, tests, a hub's spawner).

The rule that must not be broken: no field of a message makes anyone an administrator.
"""

import os
import pwd
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Identities", "Peer", "clean_text", "login_name", "peer_of"]

_CREDENTIALS = struct.Struct("3i")
_MAX_USER = 64


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected; `pid` is 0 where its pid namespace is not ours."""

    pid: int
    uid: int


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
        #: uid -> login name, of everybody who ever connected
        self._names: dict[int, str] = {}

    def known(self, uid: int) -> bool:
        """Whether `name` answers without a look-up."""
        return uid in self._names

    def name(self, uid: int) -> str:
        """The login name of `uid`."""
        if uid not in self._names:
            self._names[uid] = self._name_of(uid)
        return self._names[uid]

    def user_of(self, peer: Peer, claimed: str) -> str:
        """The user a request counts for: `claimed` if the broker's own uid says so."""
        claimed = clean_text(claimed.strip(), _MAX_USER)
        return claimed if claimed and peer.uid == self.own_uid else self.name(peer.uid)

    def is_administrator(self, peer: Peer) -> bool:
        """Root, the broker's own uid, or a configured login name."""
        return peer.uid in (0, self.own_uid) or self.name(peer.uid) in self.administrators

    def may_stop(self, peer: Peer) -> bool:
        """Whether this peer may end the broker."""
        return peer.uid in (0, self.own_uid)
