"""Who is at the other end of a connection: the kernel's word, not the client's.

`SO_PEERCRED` gives pid and uid of the process that connected. A user is a login name; some doors
(`doors`) believe who comes by them when they speak for others (`jgpu run
--user`, tests, a hub's spawner). Limits count by `Identity`, which `identity_of` alone decides:
where several people share a uid, the door that they came by tells them apart.
"""

import pwd
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jgpu.broker.control.listening.doors import Door

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
    #: the one server that the socket it came by was made for; empty: everybody's
    place: str = ""

    @property
    def origin(self) -> tuple[int, str]:
        """What all processes of one user on one server have in common, and no other has."""
        return self.uid, self.place


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom limits count for: a uid, whoever a listener was made for, or who is spoken for."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def identity_of(peer: Peer, door: "Door", spoken_for: str = "") -> Identity:
    """Whose limits a connection counts for; `spoken_for`: the user whom it was believed to be."""
    if door.serves:
        return Identity("socket", door.serves)
    return Identity("user", spoken_for) if spoken_for else Identity("uid", str(peer.uid))


def peer_of(connection: socket.socket, place: str = "") -> Peer:
    """The peer's credentials at the time it connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return Peer(max(pid, 0), uid, place)


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
    """Login names, remembered, and whose word counts for another's."""

    def __init__(self, name_of: Callable[[int], str] = login_name) -> None:
        self._name_of = name_of
        #: uid -> the name that a hub gave it
        self._registered: dict[int, str] = {}
        #: uid -> login name, of those who connected last
        self._names: OrderedDict[int, str] = OrderedDict()

    def register(self, uid: int, name: str) -> None:
        """Whose uid it is, as a hub says; empty: as the host says."""
        if name:
            self._registered[uid] = name
        else:
            self._registered.pop(uid, None)

    def known(self, uid: int) -> bool:
        """Whether `name` answers without a look-up."""
        return uid in self._registered or uid in self._names

    def name(self, uid: int) -> str:
        """The name of a uid: its hub's, else the host's login name."""
        if uid in self._registered:
            return self._registered[uid]
        name = self._names.get(uid)
        if name is None:
            name = self._names[uid] = self._name_of(uid)
            if len(self._names) > _NAMES:
                self._names.popitem(last=False)
        self._names.move_to_end(uid)
        return name

    def spoken_for(self, peer: Peer, door: "Door", claimed: str) -> str:
        """The user that this peer speaks for; empty where it is not believed."""
        believed = door.speaks_for_others(peer.uid)
        return clean_text(claimed.strip(), _MAX_USER) if believed else ""

    def user_of(self, peer: Peer, door: "Door", claimed: str = "") -> str:
        """The user a request counts for: the door's, the one it speaks for, or its uid's."""
        return door.user or self.spoken_for(peer, door, claimed) or self.name(peer.uid)
