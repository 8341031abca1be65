"""`add_page`: the page of the shared GPU as a service of the hub, with its roles and scopes."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from traitlets.config.loader import LazyConfigValue

from jgpu.errors import ConfigError
from jgpu.hub.page.visitors import ADMIN, READ, SCOPES, TUTOR
from jgpu.wire.address import SYSTEM_SOCKET, admin_socket

__all__ = ["add_page"]

_Value = TypeVar("_Value")
_ADMIN_SOCKET: Final = admin_socket(SYSTEM_SOCKET)


def add_page(
    c: Any,
    *,
    administrators: Iterable[str] = (),
    tutors: Iterable[str] = (),
    readers: Iterable[str] = (),
    admin: str | Path = _ADMIN_SOCKET,
    url: str = "http://127.0.0.1:8017",
    name: str = "jgpu",
    api_token: str = "",
    user: str = "",
    config: str | Path = "",
) -> None:
    """Have the hub serve the page at /services/NAME/ to all of its users.

    `administrators`, `tutors`, `readers`: groups of the hub; the hub's `admin_users` administer as
    well. `admin`: the broker's administrators' socket. `url`: where the page listens for the hub's
    proxy. `user`: the account that the page runs as, where the hub may choose it. `config`: a file
    of the page's own settings (`c.HubPage...`), which that account must be able to read.
    `api_token`: only where the page is a unit of its own, which the hub does not start: its
    JUPYTERHUB_API_TOKEN.

    Raises `ConfigError` for a token that is too short.
    """
    if api_token and len(api_token) < 32:
        raise ConfigError("The page's api_token is too short: `openssl rand -hex 32` makes one.")
    service: dict[str, Any] = {
        "name": name,
        "url": url,
        "display": True,
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": list(SCOPES),
    }
    if api_token:
        service["api_token"] = api_token
    else:
        service["command"] = [
            *(sys.executable, "-m", "jgpu", "hub-page", "--admin-socket", str(admin))
        ]
        if config:
            service["command"] += ["--config", str(config)]
        if user:
            service["user"] = user
    hub = c.JupyterHub
    hub.services = [*_said(hub, "services", []), service]
    hub.custom_scopes = _said(hub, "custom_scopes", {}) | {
        scope: {"description": text} for scope, text in SCOPES.items()
    }
    none: list[dict[str, Any]] = []
    roles = list(_said(hub, "load_roles", none))
    _allow_everybody(roles, f"access:services!service={name}")
    nobody: set[str] = set()
    admins = sorted(_said(c.Authenticator, "admin_users", nobody))
    roles += [
        _role(f"{name}-administrators", ADMIN, administrators, admins),
        _role(f"{name}-tutors", TUTOR, tutors),
        _role(f"{name}-readers", READ, readers),
    ]
    hub.load_roles = roles


def _allow_everybody(roles: list[dict[str, Any]], scope: str) -> None:
    """Every user of the hub may use the page, besides what the site gave them."""
    for place, role in enumerate(roles):
        if role.get("name") == "user":
            roles[place] = role | {"scopes": [*role.get("scopes", ()), scope]}
            return
    roles.append({"name": "user", "scopes": ["self", scope]})


def _role(
    name: str, scope: str, groups: Iterable[str], users: Iterable[str] = ()
) -> dict[str, Any]:
    """A role; where nobody is named, those whom the hub's administrators gave it keep it."""
    role: dict[str, Any] = {"name": name, "description": SCOPES[scope], "scopes": [scope]}
    named = {"groups": list(groups), "users": list(users)}
    return role | {kind: names for kind, names in named.items() if names}


def _said(section: Any, name: str, default: _Value) -> _Value:
    """What a configuration says so far, however it says it."""
    said = section.get(name, default)
    found: _Value = said.get_value(default) if isinstance(said, LazyConfigValue) else said
    return found
