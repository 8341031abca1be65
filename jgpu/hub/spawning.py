"""What happens around a server's start and end: the broker learns whose it is, and forgets it.

Invariant: a server is never given another's socket, and nothing that it is given in its environment
counts for who it is.
"""

import asyncio
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jgpu.errors import ConfigError, JgpuError
from jgpu.hub.isolation import Isolation
from jgpu.wire.address import ADDRESS, SYSTEM_SOCKET, Address, ask
from jgpu.wire.limits import MAX_GROUPS
from jgpu.wire.messages import MakeSocket, NameUser, RemoveSocket, SocketIs

__all__ = ["Hooks"]

#: has Jupyter's servers route kernels that name no provisioner of their own
_ROUTE: Final = "JUPYTER_DEFAULT_PROVISIONER_NAME"
_PROVISIONER: Final = "jgpu-provisioner"
_TIMEOUT_S: Final = 5.0


class Hooks:
    """`pre_spawn_hook` and `post_stop_hook` for one way of keeping users apart."""

    def __init__(
        self,
        isolation: Isolation,
        users: Path,
        admin: Path,
        uid_of: Callable[[Any], int] | None = None,
    ) -> None:
        self._isolation = isolation
        self._users = users
        self._admin = Address(admin, "environment")
        self._uid_of = uid_of or _uid_of_login

    async def before_start(self, spawner: Any) -> None:
        """Tell the broker whose server it is, and the server where the broker is."""
        environment = dict(spawner.environment)
        environment.setdefault(_ROUTE, _PROVISIONER)
        where = self._users if self._isolation is Isolation.UID else SYSTEM_SOCKET
        environment[ADDRESS] = f"unix:{where}"
        try:
            if self._isolation is Isolation.UID:
                await self._name(spawner)
            else:
                await self._mount(spawner)
        except (JgpuError, OSError) as error:
            spawner.log.warning("%s has no shared GPU for now: %s", spawner._log_name, error)
        spawner.environment = environment

    async def after_stop(self, spawner: Any) -> None:
        """The server's socket goes with it; a uid's name stays, for what may still run."""
        if self._isolation is Isolation.UID:
            return
        try:
            await self._ask(RemoveSocket(_server(spawner)))
        except JgpuError as error:
            spawner.log.warning("The GPU socket of %s stays: %s", spawner._log_name, error)

    async def _name(self, spawner: Any) -> None:
        uid = self._uid_of(spawner)
        if uid == 0:
            raise ConfigError(f"{spawner.user.name} would be root, whom nobody is named after.")
        await self._ask(NameUser(uid, spawner.user.name, _groups(spawner)))

    async def _mount(self, spawner: Any) -> None:
        """A socket of the server's own, in the place where a container's kernels look for one."""
        message = MakeSocket(_server(spawner), spawner.user.name, _groups(spawner))
        made = await self._ask(message)
        assert isinstance(made, SocketIs)
        folder, place = str(Path(made.path).parent), str(SYSTEM_SOCKET.parent)
        kept = {k: v for k, v in spawner.read_only_volumes.items() if v != place}
        spawner.read_only_volumes = kept | {folder: place}

    async def _ask(self, message: Any) -> Any:
        return await asyncio.to_thread(ask, self._admin, message, _TIMEOUT_S)


def _server(spawner: Any) -> str:
    """A server's name, unique in its hub."""
    return f"{spawner.user.name}/{spawner.name}"


def _groups(spawner: Any) -> tuple[str, ...]:
    return tuple(sorted(group.name for group in spawner.user.groups))[:MAX_GROUPS]


def _uid_of_login(spawner: Any) -> int:
    try:
        return pwd.getpwnam(spawner.user.name).pw_uid
    except KeyError:
        raise ConfigError(f"There is no user {spawner.user.name} on this host.") from None
