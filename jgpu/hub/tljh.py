"""The plugin for The Littlest JupyterHub: its users share the GPU.

TLJH makes a user's account when their server first starts, after hubs' own hooks. The broker has to
know the uid by then, so the plugin has the account made a moment earlier, by TLJH's own functions,
and lets it use the broker's socket by its group.
"""

import logging
import pwd
import subprocess
from typing import Any, Final

from tljh.hooks import hookimpl
from tljh.normalize import generate_system_username
from tljh.user import ensure_user, ensure_user_group

from jgpu.errors import ConfigError
from jgpu.hub.configuration import configure
from jgpu.hub.service import add_page

__all__ = ["tljh_custom_jupyterhub_config", "tljh_extra_user_pip_packages"]

_LOG = logging.getLogger("jgpu.hub")
#: the account and the group of the unit that `jgpu broker --systemd-unit` prints
_GROUP: Final = "jgpu"


@hookimpl
def tljh_extra_user_pip_packages() -> list[str]:
    """What notebooks need beside PyTorch, in the environment that all users have."""
    return ["jgpu"]


@hookimpl
def tljh_custom_jupyterhub_config(c: Any) -> None:
    """Have the hub's users share the GPU; a hub that cannot says why, and starts without."""
    try:
        configure(c, uid_of=_account)
        add_page(c, user=_GROUP)
    except ConfigError as error:
        _LOG.error("The GPU is not shared: %s", error)


def _account(spawner: Any) -> int:
    """The uid of a user's account, made if need be."""
    name = generate_system_username("jupyter-" + spawner.user.name)
    try:
        ensure_user(name)
        ensure_user_group(name, _GROUP)
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(
            f"There is no group {_GROUP} on this host, whose members the broker lets in. The file "
            "that `jgpu broker --systemd-unit` prints begins with how to make it."
        ) from None
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"The account {name} could not be made: {error}.") from None
