"""Which address is answered by which handler, below the hub's prefix for this service."""

from collections import Counter
from typing import Any

from tornado.web import Application, StaticFileHandler

from jgpu.hub.page.base import Callback, PageAuth, cookie_secret
from jgpu.hub.page.broker import BrokerLink
from jgpu.hub.page.handlers import Missing, People
from jgpu.hub.page.live import Now, Stream
from jgpu.hub.page.rendering import STATIC, Renderer

__all__ = ["make_application"]


def make_application(auth: PageAuth, link: BrokerLink) -> Application:
    """The page below `auth.base_url`, as its visitors' browsers know it."""
    prefix = auth.base_url
    settings: dict[str, Any] = {
        "cookie_secret": cookie_secret(auth.api_token),
        "hub_auth": auth,
        "link": link,
        "streams": Counter(),
        "renderer": Renderer(prefix, auth.hub_prefix),
    }
    static = {"path": STATIC}
    return Application(
        [
            (prefix, Now),
            (f"{prefix}stream", Stream),
            (f"{prefix}people", People),
            (f"{prefix}oauth_callback", Callback),
            (f"{prefix}static/(.*)", StaticFileHandler, static),
            (f"{prefix}.*", Missing),
        ],
        **settings,
    )
