"""What a hub says: names of uids, what groups may have, a socket for each server that shares a uid.

Where a hub's users have uids of their own, it tells the broker which name and groups belong to
which. Where they share one (containers), each server gets a socket in a directory of its own, and
only that directory is mounted into its container; whoever comes by it is that server's user. The
directories lie in one that nobody else may enter, so on the host no socket leads to another's name.
Beside the socket lies what the server's Jupyter reads to route its kernels there.

All of it is on record, for a broker that starts again: the directories are mounted, and must be the
same ones. What is on record and has no directory any more is forgotten.

Invariant: a socket that was made for one server never counts as another's.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from jgpu.broker.control.listening.doorkeeper import Doorkeeper
from jgpu.broker.control.listening.doors import Door, DoorKind
from jgpu.broker.control.listening.identity import Identities
from jgpu.broker.control.listening.listener import Listener
from jgpu.broker.control.quotas.groups import Groups
from jgpu.broker.control.wholefiles import write_whole
from jgpu.errors import BrokerRefused, ConfigError
from jgpu.wire.address import SERVER_FILES_NAME, make_directory
from jgpu.wire.limits import MAX_NAME

__all__ = ["Servers"]

_LOG = logging.getLogger("jgpu.broker")
_SOCKET_NAME: Final = "broker.sock"
#: servers with a socket, and uids with a name
_MOST: Final = 4096


class _Server(msgspec.Struct, frozen=True):
    name: str
    user: str
    groups: tuple[str, ...]


class _Person(msgspec.Struct, frozen=True):
    uid: int
    user: str
    groups: tuple[str, ...]


class _Quota(msgspec.Struct, frozen=True):
    group: str
    settings: dict[str, str]


class _Record(msgspec.Struct):
    """The file's content."""

    servers: list[_Server] = []
    people: list[_Person] = []
    quotas: list[_Quota] = []


class Servers:
    """What was said, and the doors that follow from it."""

    def __init__(
        self,
        directory: Path,
        record: Path,
        keeper: Doorkeeper,
        identities: Identities,
        groups: Groups,
        set_quota: Callable[[str, Mapping[str, str]], None],
        gone: Callable[[str], None],
    ) -> None:
        """`set_quota` is told what groups may have, and raises `ConfigError`; `gone` each server
        whose socket goes, so that nothing of it stays.
        """
        self._directory = directory
        self._file = record
        self._keeper = keeper
        self._identities = identities
        self._groups = groups
        self._set_quota = set_quota
        self._gone = gone
        #: server -> its user and groups, and its door
        self._servers: dict[str, tuple[_Server, Door]] = {}
        self._people: dict[int, _Person] = {}
        #: group -> what its users may have
        self._quotas: dict[str, _Quota] = {}

    def reopen(self) -> None:
        """Go on where the broker before this one ended."""
        record = self._read()
        for person in record.people[:_MOST]:
            self._people[person.uid] = person
            self._identities.register(person.uid, person.user)
            self._groups.register(person.user, person.groups)
        for quota in record.quotas[:_MOST]:
            try:
                self._set_quota(quota.group, quota.settings)
            except ConfigError as error:
                _LOG.error("What a hub said of group:%s is left out: %s", quota.group, error)
            else:
                self._quotas[quota.group] = quota
        for server in record.servers[:_MOST]:
            if not self._place(server.name).parent.is_dir():
                continue
            try:
                self._open(server)
            except ConfigError as error:
                _LOG.error("The socket of %s cannot be had again. %s", server.name, error)

    @property
    def names(self) -> tuple[str, ...]:
        """Servers that have a socket."""
        return tuple(self._servers)

    async def make(self, name: str, user: str, groups: Iterable[str]) -> Path:
        """The socket of one server, made if need be; its directory is what is mounted.

        Raises `BrokerRefused` or `ConfigError`.
        """
        if not name or not user:
            raise BrokerRefused("A server's socket needs the server's name and its user's.")
        server = _Server(name, user, tuple(sorted(groups)))
        if name in self._servers:
            known, door = self._servers[name]
            if known.user == user:
                self._groups.register(user, server.groups)
                self._servers[name] = server, door
                self._write()
                return door.listener.path
            await self.remove(name)
        if len(self._servers) >= _MOST:
            raise BrokerRefused(
                f"{len(self._servers)} servers have a socket already; remove those that have ended."
            )
        door = self._open(server)
        self._write()
        return door.listener.path

    async def remove(self, name: str) -> str:
        """Take a server's socket away, with its directory; whose it was, empty if there is none."""
        found = self._servers.pop(name, None)
        if found is None:
            return ""
        server, door = found
        await self._keeper.close(door)
        self._gone(name)
        folder = door.listener.path.parent
        try:
            shutil.rmtree(folder)
        except OSError as error:
            _LOG.warning("The directory %s stays: %s.", folder, error.strerror)
        self._write()
        return server.user

    def name(self, uid: int, user: str, groups: Iterable[str]) -> None:
        """Whose uid it is from now on; without `user` it is the host's business again.

        Of too many the one is forgotten that was named longest ago: hubs have new users each year,
        and name each when a server of theirs starts.
        """
        self._people.pop(uid, None)
        if user:
            person = _Person(uid, user, tuple(sorted(groups)))
            self._people[uid] = person
            self._groups.register(user, person.groups)
        self._identities.register(uid, user)
        if len(self._people) > _MOST:
            oldest = next(iter(self._people))
            del self._people[oldest]
            self._identities.register(oldest, "")
        self._write()

    def quota(self, group: str, settings: Mapping[str, str]) -> bool:
        """What users of a group may have, in place of what was said before; whether it is new.

        Raises `ConfigError`, or `BrokerRefused` where it is of too many groups.
        """
        said = _Quota(group, dict(settings))
        if self._quotas.get(group, _Quota(group, {})) == said:
            return False
        if len(f"group:{group}") > MAX_NAME:  # no report could tell of it
            raise BrokerRefused(f"A group's name of {len(group)} letters is too long for a quota.")
        if settings and group not in self._quotas and len(self._quotas) >= _MOST:
            raise BrokerRefused(f"A hub has said of {len(self._quotas)} groups what they may have.")
        self._set_quota(group, settings)
        self._quotas.pop(group, None)
        if settings:
            self._quotas[group] = said
        self._write()
        return True

    # -- sockets -----------------------------------------------------------------------------

    def _open(self, server: _Server) -> Door:
        make_directory(self._directory)
        listener = Listener(self._place(server.name), for_all=True)
        _furnish(listener.path.parent / SERVER_FILES_NAME)
        door = Door(listener, DoorKind.SERVER, serves=server.name, user=server.user)
        self._groups.register(server.user, server.groups)
        self._servers[server.name] = server, door
        self._keeper.open(door)
        return door

    def _place(self, name: str) -> Path:
        """Of fixed length and of harmless letters, whatever the server's name is."""
        digest = hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
        return self._directory / digest / _SOCKET_NAME

    # -- the record --------------------------------------------------------------------------

    def _read(self) -> _Record:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Record)
        except FileNotFoundError:
            return _Record()
        except (OSError, msgspec.DecodeError) as error:
            _LOG.error(
                "%s cannot be read (%s); what a hub said of its users is forgotten until it says "
                "it again.",
                self._file,
                error,
            )
            return _Record()

    def _write(self) -> None:
        record = _Record(
            [server for server, _ in self._servers.values()],
            [*self._people.values()],
            [*self._quotas.values()],
        )
        try:
            write_whole(self._file, msgspec.json.encode(record))
        except OSError as error:
            _LOG.error("%s cannot be written: %s.", self._file, error.strerror)


def _furnish(folder: Path) -> None:
    """Put there what a Jupyter server reads; without it, only its image routes its kernels."""
    # Data of a package that is not imported: its files are for other interpreters.
    source = resources.files("jgpu") / "kernelprovider/resources/server"
    try:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        for file in source.iterdir():
            if file.name.endswith(".py"):
                written = folder / file.name
                written.write_bytes(file.read_bytes())
                written.chmod(0o644)
    except OSError as error:
        _LOG.warning("%s cannot be written: %s.", folder, error.strerror)
