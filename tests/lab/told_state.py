"""A Jupyter server extension that tells pages what a test tells it, by `jgpu.labserver`'s routes.

For states that a real broker comes to rarely or late; the real one is in `test_two_notebooks`.
`POST jgpu/told` with a state makes it the state, and answers with what the pages have asked for.
"""

import json

from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web, websocket

from jgpu.labserver.patches import patch

_UNKNOWN = {
    "at": 0,
    "problem": "",
    "known": False,
    "may_act": True,
    "shares": True,
    "drain": "",
    "kernels": {},
}


class Told:
    """The state, the pages that listen, and what pages asked for."""

    def __init__(self):
        self.state = _UNKNOWN
        self.pages = set()
        self.posted = []
        self.polled = 0

    def tell(self, state):
        """Pages get what is different, as from the real server."""
        change, self.state = patch(self.state, state), state
        for page in self.pages:
            page.write_message(json.dumps({"patch": change}))

    def answer(self):
        """What the test wants to know."""
        return {"posted": self.posted, "polled": self.polled, "pages": len(self.pages)}


class _Base(APIHandler):
    def initialize(self, told):
        """Tornado's way of handing over."""
        self.told = told


class State(_Base):
    """For pages that cannot have a WebSocket."""

    @web.authenticated
    def get(self):
        self.told.polled += 1
        self.finish(json.dumps(self.told.state))


class Act(_Base):
    """Release and evict."""

    @web.authenticated
    def post(self, verb):
        self.told.posted.append([verb, self.get_json_body()])
        self.finish(json.dumps({"text": f"Done: {verb}."}))


class Watch(WebSocketMixin, websocket.WebSocketHandler, JupyterHandler):
    """Whoever is let in gets the state."""

    def initialize(self, told):
        """As above."""
        self.told = told

    @ws_authenticated
    async def get(self, *args, **kwargs):
        await super().get(*args, **kwargs)

    def open(self):
        super().open()
        self.told.pages.add(self)
        self.write_message(json.dumps({"state": self.told.state}))

    def on_close(self):
        self.told.pages.discard(self)


class Tell(_Base):
    """For the test."""

    @web.authenticated
    def post(self):
        if state := self.get_json_body():
            self.told.tell(state)
        self.finish(json.dumps(self.told.answer()))


def _jupyter_server_extension_points():
    return [{"module": "told_state"}]


def _load_jupyter_server_extension(app):
    app.web_app.settings.setdefault("page_config_data", {}).setdefault("jgpuServer", True)
    base, told = app.web_app.settings["base_url"], {"told": Told()}
    routes = {
        "api/state": State,
        "api/(release|evict)": Act,
        "api/watch": Watch,
        "told": Tell,
    }
    app.web_app.add_handlers(
        ".*$",
        [(url_path_join(base, "jgpu", path), handler, told) for path, handler in routes.items()],
    )
