"""What pages ask the server, and what they may have it do.

`GET` changes nothing, for a page of another origin can bring it about.
"""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jgpu.errors import BrokerUnreachable, JgpuError
from jgpu.labserver.feed import Feed
from jgpu.labserver.state import kernel_sessions
from jgpu.labserver.visitors import RESOURCE, may_act
from jgpu.wire.messages import Evict

__all__ = ["ROUTES", "Act", "Current", "Listen"]

_MOST_BYTES: Final = 4096


class _Asked(msgspec.Struct):
    """What an action is about."""

    kernel: str


class _Base(APIHandler):
    auth_resource = RESOURCE

    @property
    def feed(self) -> Feed:
        """Tells the pages of this server."""
        found: Feed = self.settings["jgpu_feed"]
        return found

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """A sentence, as Jupyter's own handlers give it; nothing goes to the log."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        said = ""
        if isinstance(error, web.HTTPError) and error.log_message:
            said = error.log_message % error.args  # tornado doubles percent signs
        self.set_header("Content-Type", "application/json")
        self.finish({"message": said or HTTPStatus(status_code).phrase, "reason": None})

    def log_exception(self, kind: Any, value: Any, trace: Any) -> None:
        """Jupyter logs the request; what was wrong with it is told whoever asked."""
        if not isinstance(value, web.HTTPError):
            super().log_exception(kind, value, trace)


class Current(_Base):
    """The whole state, for pages whose proxy lets no WebSocket through."""

    #: a page that asks again and again keeps no server from being culled
    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """The state now."""
        self.set_header("Cache-Control", "no-store")
        self.finish(await self.feed.asked() | {"may_act": await may_act(self)})


class Act(_Base):
    """Has memory of a kernel go to the host, from where it comes back by itself."""

    def initialize(self, *, resident: bool, done: str) -> None:
        """`resident`: its model as well; `done`: the sentence for whoever did it."""
        self._resident = resident
        self._done = done

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Do it for the kernel that the body names."""
        if not await may_act(self):
            raise web.HTTPError(
                HTTPStatus.FORBIDDEN, "You are a visitor here; only the server's owner may do this."
            )
        kernel = self._kernel()
        try:
            await self._evict(kernel)
        except BrokerUnreachable as error:
            raise web.HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        except JgpuError as error:
            raise web.HTTPError(HTTPStatus.CONFLICT, str(error)) from None
        self.finish({"text": self._done})

    async def _evict(self, kernel: str) -> None:
        follower = self.feed.follower
        found = kernel_sessions(await follower.status()).get(kernel)
        if found is None:
            raise web.HTTPError(
                HTTPStatus.NOT_FOUND,
                "This kernel has nothing on the GPU: it has not used it yet, or was shut down.",
            )
        await follower.ask(Evict(found.id, self._resident))

    def _kernel(self) -> str:
        body = self.request.body
        try:
            if len(body) <= _MOST_BYTES:
                return msgspec.json.decode(body, type=_Asked).kernel
        except msgspec.DecodeError:
            pass
        raise web.HTTPError(
            HTTPStatus.BAD_REQUEST, 'The request has to read {"kernel": "the kernel\'s id"}.'
        )


class Listen(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """The whole state first, then what changes; what a page says is passed over."""

    auth_resource = RESOURCE
    _may_act = False

    @property
    def ping_interval(self) -> int:
        """Milliseconds; 0 where tornado pings by the server's own setting."""
        if self.settings.get("websocket_ping_interval"):
            return 0
        interval: int = super().ping_interval
        return interval

    def get_compression_options(self) -> dict[str, Any]:
        """Messages are alike, so that they compress well."""
        return {}

    @ws_authenticated
    @authorized
    async def get(self, *args: str, **kwargs: str) -> None:
        """Become a WebSocket."""
        self._may_act = await may_act(self)
        await super().get(*args, **kwargs)

    def open(self, *args: str, **kwargs: str) -> None:
        """Listen from now on."""
        super().open(*args, **kwargs)
        feed: Feed = self.settings["jgpu_feed"]
        feed.join(self, may_act=self._may_act)

    async def tell(self, text: str) -> None:
        """Return when the page's machine has taken it, or the page has gone."""
        try:
            await self.write_message(text)
        except WebSocketClosedError:
            return

    def on_message(self, message: str | bytes) -> None:
        """Nothing is asked for here."""

    def on_close(self) -> None:
        """Listen no more."""
        feed: Feed = self.settings["jgpu_feed"]
        feed.leave(self)


ROUTES: Final = [
    (r"/jgpu/api/state", Current),
    (
        r"/jgpu/api/release",
        Act,
        {
            "resident": False,
            "done": "What is not its model goes to the host, and comes back by itself.",
        },
    ),
    (
        r"/jgpu/api/evict",
        Act,
        {
            "resident": True,
            "done": "All its memory goes to the host, and comes back by itself.",
        },
    ),
    (r"/jgpu/api/watch", Listen),
]
