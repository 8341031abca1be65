"""Who looks at the server's pages: its owner, who may act, or a visitor, who may only read.

What is done here is done as the account that the server runs as. On a hub, whoever was let into
somebody's server is there under their own name; without a hub there is nobody but the owner.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from jupyter_core.utils import ensure_async
from jupyter_server.base.handlers import JupyterHandler

__all__ = ["RESOURCE", "is_owner", "may_act"]

#: what the server's authorizer is asked about
RESOURCE: Final = "jgpu"
#: set by the hub: whose server it is
_OWNER: Final = "JUPYTERHUB_USER"


def is_owner(model: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an authenticated visitor is whom the server belongs to.

    `model`: what the hub says of them; None where there is no hub.
    """
    if model is None:
        return True
    # A service may have a user's name.
    name = model.get("name") if model.get("kind") == "user" else ""
    return bool(name) and name == environ.get(_OWNER, "")


def _model(handler: JupyterHandler) -> Mapping[str, Any] | None:
    model: Mapping[str, Any] | None = getattr(handler.current_user, "hub_user", None)
    hub = handler.settings.get("hub_auth")
    if model is None and hub is not None:  # a server of the older kind; it has asked the hub before
        model = hub.get_user(handler) or {}
    return model


async def may_act(handler: JupyterHandler) -> bool:
    """Whether who asks may change something, and the server's authorizer lets them."""
    if not is_owner(_model(handler)):
        return False
    allowed = handler.authorizer.is_authorized(handler, handler.current_user, "write", RESOURCE)
    return bool(await ensure_async(allowed))
