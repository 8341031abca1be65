"""How a hub's spawner keeps its users apart, which decides how the broker can tell them apart.

A spawner that gives each user a uid needs nothing more than that uid's name. One that starts
containers, where all share a uid, needs a socket for each server, mounted into that server's
container alone. Where neither can be had, anybody could take anybody's name, and `ConfigError` says
so when the hub starts.

Spawners are known by the names of their classes, so that none of them has to be installed.
"""

import importlib
import inspect
from collections.abc import Callable
from enum import Enum
from importlib import metadata
from typing import Any, Final

from jgpu.errors import ConfigError
from jgpu.hub.mounting import Mount

__all__ = ["SYSTEMD", "Isolation", "class_of", "isolation_of", "names_of"]

SYSTEMD: Final = "systemdspawner.systemdspawner.SystemdSpawner"


class Isolation(Enum):
    """What tells two users' servers apart."""

    #: each user has a uid of their own on the broker's host
    UID = "uid"
    #: each server has a socket of its own, mounted where only it is
    SOCKET = "socket"


#: class -> what tells its servers apart; the most specific class of a spawner decides
_KNOWN: Final = {
    "dockerspawner.dockerspawner.DockerSpawner": Isolation.SOCKET,
    "sudospawner.spawner.SudoSpawner": Isolation.UID,
    SYSTEMD: Isolation.UID,
    "jupyterhub.spawner.LocalProcessSpawner": Isolation.UID,
}
_REFUSED: Final = {
    "jupyterhub.spawner.SimpleLocalProcessSpawner": (
        "SimpleLocalProcessSpawner runs everybody's server under the hub's own uid, so any user "
        "could take any other's name, files and tokens. Use a spawner that separates users; if "
        "yours is a subclass that does, give uid_of=..., a function from spawner to uid."
    ),
    "kubespawner.spawner.KubeSpawner": (
        "KubeSpawner's servers are on other machines than a host's broker, which cannot tell whose "
        "they are yet."
    ),
    "batchspawner.batchspawner.BatchSpawnerBase": (
        "Batch spawners' servers are on other machines than a host's broker. Run a broker in a job "
        "of its own on the GPU's machine, with uids that are the same on all."
    ),
}


def class_of(spawner: object) -> type:
    """The class that `c.JupyterHub.spawner_class` means: itself, its path, or its short name."""
    if inspect.isclass(spawner):
        return spawner
    name = str(spawner or "default")
    for point in metadata.entry_points(group="jupyterhub.spawners", name=name):
        name = point.value.replace(":", ".")
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(f"There is no spawner {spawner!r}: {error}.") from None
    if not inspect.isclass(found):
        raise ConfigError(f"{spawner!r} is no class of spawners.")
    return found


def names_of(spawner: type) -> list[str]:
    """Full names of a class and those that it is made of, the most specific first."""
    return [f"{each.__module__}.{each.__qualname__}" for each in spawner.__mro__]


def isolation_of(
    spawner: type,
    uid_of: Callable[[Any], int] | None = None,
    mount: Mount | None = None,
    *,
    dynamic: bool = False,
) -> Isolation:
    """What tells servers of this class apart; raises `ConfigError` where nothing does.

    `dynamic`: systemd chooses the uid when a server starts.
    """
    if uid_of is not None:
        return Isolation.UID
    if mount is not None:
        return Isolation.SOCKET
    for name in names_of(spawner):
        if name == SYSTEMD and dynamic:
            return Isolation.SOCKET
        if name in _REFUSED:
            raise ConfigError(_REFUSED[name])
        if name in _KNOWN:
            return _KNOWN[name]
    raise ConfigError(
        f"How {spawner.__qualname__} separates users is not known here. If each of them has a uid "
        "on this host, give uid_of=..., a function from spawner to uid; if they are in containers, "
        "mount=..., a function that mounts a directory."
    )
