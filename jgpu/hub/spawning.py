"""What happens around a server's start and end: the broker learns whose it is, and forgets it.

Where that fails the server starts all the same, and its notebooks say why at their first use of
`cuda`.

Invariant: a server is never given another's socket, and nothing that it is given in its environment
counts for who it is.
"""

import asyncio
import contextlib
import json
import pwd
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jgpu.errors import BrokerRefused, ConfigError, FrameError, JgpuError
from jgpu.hub.greeting import greet, greeting
from jgpu.hub.isolation import Isolation
from jgpu.hub.mounting import Mount
from jgpu.hub.orphans import orphans, server_name
from jgpu.wire.address import (
    ADDRESS,
    NO_TICKET,
    PROBLEM,
    SERVER_FILES_NAME,
    SYSTEM_SOCKET,
    TICKET,
    Address,
)
from jgpu.wire.asking import ask
from jgpu.wire.limits import MAX_GROUPS, MAX_NAME
from jgpu.wire.messages import (
    AskQuotas,
    AskSockets,
    HubQuota,
    MakeSocket,
    NameUser,
    RemoveSocket,
    SocketIs,
    SocketsAre,
)
from jgpu.wire.reports.report import decode_quotas

__all__ = ["SERVER_FILES", "Hooks", "login_uid"]

#: leads the user's server to a file that routes its kernels, or says why it cannot
_CONFIG_PATH: Final = "JUPYTER_CONFIG_PATH"
#: what that variable names for servers that see this package's files
SERVER_FILES: Final = Path(__file__).parents[1] / "kernelprovider/resources/server"
#: of a group of the hub
_PROPERTY: Final = "jgpu"
_TIMEOUT_S: Final = 5.0
#: between two times that sockets are looked for whose servers are gone
_SWEEP_S: Final = 60.0


class Hooks:
    """`pre_spawn_hook` and `post_stop_hook` for one way of keeping users apart."""

    def __init__(
        self,
        isolation: Isolation,
        users: Path,
        admin: Path,
        uid_of: Callable[[Any], int],
        mount: Mount,
    ) -> None:
        self._isolation = isolation
        self._users = users
        self._admin = Address(admin, "hub")
        self._uid_of = uid_of
        self._mount = mount
        self._swept = float("-inf")

    async def before_start(self, spawner: Any) -> None:
        """Tell the broker whose server it is, and the server where the broker is."""
        said = ""
        environment = dict(spawner.environment)
        for name in (TICKET, PROBLEM):
            environment.pop(name, None)
        by_uid = self._isolation is Isolation.UID
        where = self._users if by_uid else SYSTEM_SOCKET
        environment[ADDRESS] = f"unix:{where}"
        files = str(SERVER_FILES if by_uid else SYSTEM_SOCKET.parent / SERVER_FILES_NAME)
        environment[_CONFIG_PATH] = _first(files, environment.get(_CONFIG_PATH, ""))
        try:
            await (self._name(spawner) if by_uid else self._give_socket(spawner))
            await self._tell_groups(spawner)
            said = await self._standing(spawner)
            if not by_uid:
                await self._sweep(spawner)
        except (JgpuError, OSError) as error:
            spawner.log.warning("%s has no shared GPU for now: %s", spawner._log_name, error)
            if not by_uid:  # its kernels have nowhere to ask
                environment[TICKET] = NO_TICKET
                environment[PROBLEM] = (
                    f"When your server was started, it got no part of the GPU: {error} Have the "
                    "administrator look at the broker, then stop and start your server."
                )
        spawner.environment = environment
        greet(spawner, said)

    async def after_stop(self, spawner: Any) -> None:
        """The server's socket goes with it; a uid's name stays, for what may still run."""
        if self._isolation is Isolation.UID:
            return
        try:
            await self._ask(RemoveSocket(_server(spawner)))
        except JgpuError as error:
            spawner.log.warning("The GPU socket of %s stays: %s", spawner._log_name, error)

    async def _tell_groups(self, spawner: Any) -> None:
        """What the hub says of the user's groups, in their property `jgpu`."""
        for group in spawner.user.groups:
            try:
                await self._ask(HubQuota(group.name, _settings(group)))
            except (BrokerRefused, ConfigError, FrameError) as error:
                spawner.log.warning("The property jgpu of group %s: %s", group.name, error)

    async def _name(self, spawner: Any) -> None:
        uid = await asyncio.to_thread(self._uid_of, spawner)
        if uid == 0:
            raise ConfigError(f"{spawner.user.name} would be root, whom nobody is named after.")
        await self._ask(NameUser(uid, spawner.user.name, _groups(spawner)))

    async def _give_socket(self, spawner: Any) -> None:
        """A socket of the server's own, in the place where a container's kernels look for one."""
        message = MakeSocket(_server(spawner), spawner.user.name, _groups(spawner))
        made = await self._ask(message)
        assert isinstance(made, SocketIs)
        self._mount(spawner, str(Path(made.path).parent), str(SYSTEM_SOCKET.parent))

    async def _sweep(self, spawner: Any) -> None:
        """Take away the sockets of servers after whose end nothing of the hub was called."""
        if time.monotonic() - self._swept < _SWEEP_S:
            return
        self._swept = time.monotonic()
        try:
            there = await self._ask(AskSockets())
            assert isinstance(there, SocketsAre)
            for name in orphans(there.servers, spawner.user.db):
                spawner.log.info("The server %s is gone; so is its GPU socket now.", name)
                await self._ask(RemoveSocket(name))
        except JgpuError as error:
            spawner.log.warning("GPU sockets of servers that are gone may stay: %s", error)

    async def _standing(self, spawner: Any) -> str:
        """What is left of the user's part, in a sentence."""
        reply = await self._ask(AskQuotas(spawner.user.name))
        users = decode_quotas(reply.json).users
        return greeting(users[0]) if users else ""

    async def _ask(self, message: Any) -> Any:
        return await asyncio.to_thread(ask, self._admin, message, _TIMEOUT_S)


def login_uid(spawner: Any) -> int:
    """The uid of the account that a server runs as."""
    name = spawner.user.name
    if hasattr(spawner, "username_template"):  # systemd's
        name = spawner._expand_user_vars(spawner.username_template)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(f"There is no user {name} on this host.") from None


def _server(spawner: Any) -> str:
    return server_name(spawner.user.name, spawner.name)


def _groups(spawner: Any) -> tuple[str, ...]:
    """The user's groups in order of name; of too many, those with a property `jgpu` come first."""
    groups = sorted(spawner.user.groups, key=lambda each: (not _has_quota(each), each.name))
    names = [group.name for group in groups]
    if len(names) > MAX_GROUPS:
        spawner.log.warning(
            "%s is in %d groups, and the GPU broker takes %d of a user. Groups with a property "
            "jgpu are sent first; these are left out, with quotas that the broker has for them: %s",
            spawner._log_name, len(names), MAX_GROUPS, ", ".join(names[MAX_GROUPS:]),
        )  # fmt: skip
    return tuple(sorted(names[:MAX_GROUPS]))


def _has_quota(group: Any) -> bool:
    return bool((getattr(group, "properties", None) or {}).get(_PROPERTY))


def _settings(group: Any) -> tuple[tuple[str, str], ...]:
    """A group's quota as text; raises `ConfigError` for what is none.

    A value that was typed into the hub's own page for groups is a text, whatever it says.
    """
    said = (getattr(group, "properties", None) or {}).get(_PROPERTY, {})
    if isinstance(said, str):
        with contextlib.suppress(ValueError):
            said = json.loads(said or "{}")
    if not isinstance(said, Mapping):
        raise ConfigError(f'{said!r} is no quota, as {{"weight": 2, "memory": "8G"}} would be.')
    return tuple((str(field)[:MAX_NAME], str(value)[:MAX_NAME]) for field, value in said.items())


def _first(path: str, others: str) -> str:
    """A list of directories, colons between them, that begins with this one."""
    return ":".join([path, *(each for each in others.split(":") if each not in ("", path))])
