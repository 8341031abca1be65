"""`configure`: what a hub's configuration says of the shared GPU, in one call.

It sets `pre_spawn_hook` and `post_stop_hook` of the hub's spawner, and calls those that were set
before it. A broker that does not answer keeps no server from starting: the user's first cell that
wants the GPU says what is wrong.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jgpu.hub import mounting
from jgpu.hub.greeting import with_greeting
from jgpu.hub.isolation import SYSTEMD, class_of, isolation_of, names_of
from jgpu.hub.mounting import Mount
from jgpu.hub.spawning import Hooks, login_uid
from jgpu.wire.address import SYSTEM_SOCKET, admin_socket

__all__ = ["configure"]

_Hook = Callable[[Any], Awaitable[None] | None]


def configure(
    c: Any,
    *,
    uid_of: Callable[[Any], int] | None = None,
    mount: Mount | None = None,
    socket: str | Path = SYSTEM_SOCKET,
    admin: str | Path = "",
) -> None:
    """Have the hub's users share the GPU of this host's broker, under their own names.

    `c`: the hub's configuration, with its spawner already chosen. `uid_of`: the uid on this host
    that a spawner's server runs as, where it is not the one of the user's login name. `socket`: the
    broker's, for users. `admin`: its administrators' socket, which the hub must be allowed to use;
    normally beside the other. `mount`: for a spawner of containers that is not known here, a
    function (spawner, directory of the host, place in the container) that mounts it there.

    A systemd spawner's servers get no devices, unless the configuration says otherwise: a student
    who reaches the GPU itself shares nothing.

    Raises `ConfigError` where the spawner does not keep users apart.
    """
    chosen = c.JupyterHub.get("spawner_class")
    spawner = class_of(chosen)
    users = Path(socket)
    sections = [each.__name__ for each in spawner.__mro__]
    dynamic = _said(c, sections, "dynamic_users", False)
    hooks = Hooks(
        isolation_of(spawner, uid_of, mount, dynamic=bool(dynamic)),
        users,
        Path(admin) if admin else admin_socket(users),
        uid_of or login_uid,
        mount or mounting.mount,
    )
    if SYSTEMD in names_of(spawner) and _said(c, sections, "isolate_devices", None) is None:
        c.SystemdSpawner.isolate_devices = True
    c.JupyterHub.spawner_class = with_greeting(spawner)
    _chain(c, sections, "pre_spawn_hook", hooks.before_start)
    _chain(c, sections, "post_stop_hook", hooks.after_stop)


def _chain(c: Any, sections: list[str], name: str, ours: _Hook) -> None:
    """Set a hook where what was configured before would have hidden it, and call that one first."""
    section = _section(c, sections, name) or "Spawner"
    before = c[section].get(name) if section in c else None

    async def hook(spawner: Any) -> None:
        if before is not None and (waits := before(spawner)) is not None:
            await waits
        if (waits := ours(spawner)) is not None:
            await waits

    c[section][name] = hook


def _section(c: Any, sections: list[str], name: str) -> str:
    """The most specific class of a spawner of which this setting was said; empty for none."""
    return next((each for each in sections if each in c and name in c[each]), "")


def _said(c: Any, sections: list[str], name: str, default: Any) -> Any:
    """What a configuration says of a spawner."""
    section = _section(c, sections, name)
    return c[section][name] if section else default
