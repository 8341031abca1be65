"""`jgpu hub-page`: the administrator's side of the page, traitlets in, a server out.

What a hub gives a service in its environment is where the page is, and how it asks the hub; as a
unit of its own it is given the same by `EnvironmentFile=`.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets, bind_unix_socket
from traitlets import Bool, Float, Int, TraitError, Unicode
from traitlets.config import Application

from jgpu import __version__
from jgpu.errors import ConfigError
from jgpu.hub.page.base import PageAuth
from jgpu.hub.page.broker import BrokerLink
from jgpu.hub.page.metrics.collector import MetricsSettings
from jgpu.hub.page.routes import make_application
from jgpu.wire.address import SYSTEM_SOCKET, admin_socket

__all__ = ["HubPage", "launch"]

_NAME: Final = "jgpu"
_URL: Final = "http://127.0.0.1:8017"
#: of one request; it is held in memory before anybody is asked who sends it
_MOST_BYTES: Final = 16 << 20
#: for how long streams may go on once the page is to end, seconds
_LEAVE_S: Final = 1.0


class HubPage(Application):
    """Settings of one page."""

    name = "jgpu hub-page"
    version = __version__
    description = Unicode(
        """Show a hub's users the shared GPU, and let its administrators steer it.

        Started by the hub as a service (jgpu.hub.add_page), or as a unit of its own with the
        hub's JUPYTERHUB_API_TOKEN, JUPYTERHUB_API_URL and JUPYTERHUB_SERVICE_PREFIX in its
        environment.
        """
    )
    aliases: Any = {  # noqa: RUF012 - traitlets' way
        "admin-socket": "HubPage.admin_socket",
        "config": "HubPage.config_file",
        "url": "HubPage.url",
        "log-level": "Application.log_level",
    }
    config_file = Unicode("", help="A file of settings (c.HubPage.... = ...).").tag(config=True)
    admin_socket = Unicode(
        str(admin_socket(SYSTEM_SOCKET)),
        help="""Path of the broker's administrators' socket. The page's account must be allowed to
        use it, by the group that the broker's administrator chose (JgpuBroker.admin_group).""",
    ).tag(config=True)
    url = Unicode(
        os.environ.get("JUPYTERHUB_SERVICE_URL", "") or _URL,
        help="""Where the page listens for the hub's proxy: http://ADDRESS:PORT, or
        unix+http://%2Frun%2Fjgpu-page.sock for a Unix socket. Keep it out of reach of others.""",
    ).tag(config=True)

    check_seconds = Float(
        15.0,
        min=0.1,
        help="""Seconds after which an open page asks the hub again whether its visitor may still
        see it. Everything else is asked for with each request.""",
    ).tag(config=True)
    metrics_token = Unicode(
        os.environ.get("JGPU_METRICS_TOKEN", ""),
        help="""The token (Authorization: Bearer ...) that /metrics asks for; also from the
        environment, JGPU_METRICS_TOKEN. Empty: /metrics is for programs of this host alone, which
        ask the page itself and not the hub's proxy.""",
    ).tag(config=True)
    metrics_groups = Int(
        20, min=0, help="How many groups /metrics tells apart; the rest is one."
    ).tag(config=True)
    metrics_users = Bool(
        False,
        help="""Whether /metrics has figures of each user, by name: whoever reads them sees who
        works when, and each user is a label more.""",
    ).tag(config=True)

    def initialize(self, argv: Sequence[str] | None = None) -> None:
        """Read the command line and the file that it names."""
        self.parse_command_line(list(argv or ()))
        if self.config_file:
            given = self.cli_config
            self._read_file(Path(self.config_file).absolute())
            self.update_config(given)

    def _read_file(self, file: Path) -> None:
        """Take what it says; raises `ConfigError` for one that is not there or says nonsense."""
        if not file.is_file() or file.suffix not in (".py", ".json"):
            raise ConfigError(f"There is no file {file} that ends in .py or .json.")
        self.raise_config_file_errors = True
        try:
            self.load_config_file(file.name, path=[str(file.parent)])
        except TraitError:
            raise
        except Exception as error:  # it is Python
            raise ConfigError(f"{file} cannot be read: {type(error).__name__}: {error}") from None

    async def serve(self) -> None:
        """Until a signal ends it."""
        auth = self._auth()
        link = BrokerLink(Path(self.admin_socket))
        pages = make_application(auth, link, self._metrics(), self.check_seconds)
        server = HTTPServer(pages, xheaders=True, max_body_size=_MOST_BYTES)
        server.add_sockets(_listen(self.url))
        self.log.info("The page of the broker at %s listens at %s.", self.admin_socket, self.url)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        following = loop.create_task(link.run())
        await ended.wait()
        server.stop()
        following.cancel()
        await asyncio.wait(
            [following, loop.create_task(server.close_all_connections())], timeout=_LEAVE_S
        )

    def _metrics(self) -> MetricsSettings:
        return MetricsSettings(self.metrics_token, self.metrics_groups, self.metrics_users)

    def _auth(self) -> PageAuth:
        """How the hub is asked; raises `ConfigError` where it said too little."""
        environ = os.environ
        environ.setdefault("JUPYTERHUB_SERVICE_PREFIX", f"/services/{_NAME}/")
        environ.setdefault("JUPYTERHUB_CLIENT_ID", f"service-{_NAME}")
        environ.setdefault(
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES",
            f'["access:services", "access:services!service={_NAME}"]',
        )
        if not environ.get("JUPYTERHUB_API_TOKEN"):
            raise ConfigError(
                "There is no JUPYTERHUB_API_TOKEN in the environment. The hub sets it where it "
                "starts the page; a unit of its own gets the service's api_token."
            )
        return PageAuth(parent=self)


def _listen(url: str) -> list[socket.socket]:
    parts = urlsplit(url)
    if parts.scheme == "unix+http":
        return [bind_unix_socket(parts.netloc.replace("%2F", "/").replace("%2f", "/"), 0o660)]
    if parts.scheme != "http" or not parts.port:
        raise ConfigError(f"url is {url!r}; it has to read http://ADDRESS:PORT.")
    return bind_sockets(parts.port, parts.hostname or "127.0.0.1")


def launch(arguments: Sequence[str]) -> int:
    """`jgpu hub-page`; returns when the page has ended."""
    page = HubPage()
    try:
        page.initialize(arguments)
    except TraitError as error:
        raise ConfigError(str(error)) from None
    for name in ("jgpu.hub.page", "tornado"):
        logging.getLogger(name).handlers = list(page.log.handlers)
        logging.getLogger(name).setLevel(page.log.level)
    asyncio.run(page.serve())
    return 0
