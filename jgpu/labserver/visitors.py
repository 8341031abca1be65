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


def is_owner(user: Any, *, in_hub: bool, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an authenticated user is whom the server belongs to.

    `in_hub`: the hub says who they are.
    """
    model = getattr(user, "hub_user", None)
    if model is None and not in_hub:
        return True
    if model is not None and model.get("kind", "user") != "user":
        return False  # a service may have a user's name
    return bool(user.username) and user.username == environ.get(_OWNER, "")


async def may_act(handler: JupyterHandler) -> bool:
    """Whether who asks may change something, and the server's authorizer lets them."""
    user = handler.current_user
    # The hub's own parts are there in servers of the older kind, which do not extend the user.
    if not is_owner(user, in_hub="hub_auth" in handler.settings):
        return False
    allowed = handler.authorizer.is_authorized(handler, user, "write", RESOURCE)
    return bool(await ensure_async(allowed))
