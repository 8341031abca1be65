"""The broker's process around its loop: logging, descriptors, signals, and what systemd is told."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from typing import Any

from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.server import Broker
from jgpu.broker.logs import Repetitions

__all__ = ["prepare_process", "serve"]


def prepare_process(log: Any, *, private: bool) -> None:
    """Our loggers speak through the application's handlers, within bounds; room for descriptors."""
    logger = logging.getLogger("jgpu.broker")
    logger.handlers, logger.propagate = list(log.handlers), False
    for handler in logger.handlers:
        handler.addFilter(Repetitions())
    logger.setLevel(log.level)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if private:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def serve(settings: BrokerSettings) -> int:
    broker = Broker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, broker.stop)
    _tell_systemd("READY=1")
    return await broker.run()


def _tell_systemd(state: str) -> None:
    """sd_notify(3), for Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
            unix.connect(address.replace("@", "\0", 1) if address[0] == "@" else address)
            unix.send(state.encode())
