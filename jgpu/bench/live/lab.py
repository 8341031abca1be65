"""Measure what JupyterLab's page costs: bytes to a page, the server's processor, and how soon.

Kernels are made of the wire alone, on a device that computes nothing: each begins and ends a cell
every second, and sends work all the while. The page is as a browser's, behind a relay that counts
what comes over the line. Then a real browser shows how soon its document says so (`labpage`).
"""

import argparse
import asyncio
import importlib.util
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.live import labpage
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import Figure, at_most, percentile, plain
from jgpu.bench.rig.wirekernel import WireKernel
from jgpu.wire.address import ADDRESS, Address

__all__ = ["add_options", "main"]

_KILOBYTES_PER_S: Final = 5.0
_PERCENT: Final = 1.0
_SECONDS: Final = 1.0
_ENDED_S: Final = 2.0
#: a kernel begins or ends a cell, or sends work, so often
_STEP_S: Final = 0.5
_WORK_S: Final = 0.1
_TOKEN: Final = "bench"
_START_S: Final = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=20.0, repeat=3, target_ms=1.0)
    parser.add_argument("--kernels", type=int, default=20, help="how many (default: 20)")
    parser.add_argument(
        "--waits",
        type=int,
        default=10,
        help="cells that wait before a browser; 0: no browser (default: 10)",
    )


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    found = []
    for _ in range(options.repeat):
        with Bench(device="null", threads=1, lanes=1) as bench, _server(bench.address) as server:
            torch = bench.status().broker.torch
            kernels = [
                WireKernel(bench.address, f"kernel-{number + 1}-of-a-class-at-work", torch)
                for number in range(options.kernels)
            ]
            found.append(asyncio.run(_measure(server, kernels, options.seconds)))
            for kernel in kernels:
                kernel.close()
    delays = [run.delays for run in found]
    figures = [
        at_most("to a page", [run.kilobytes_per_s for run in found], _KILOBYTES_PER_S, "KB/s"),
        plain("the same, before compression", [run.plain_kilobytes_per_s for run in found], "KB/s"),
        at_most("the server's part of a core", [run.percent for run in found], _PERCENT, "%"),
        at_most("a change to the page, slowest", [max(each) for each in delays], _SECONDS, "s"),
        plain("a change to the page, 95 of 100", [percentile(each, 95) for each in delays], "s"),
        plain("a change to the page, median", [statistics.median(each) for each in delays], "s"),
        plain("changes a second", [run.changes_per_s for run in found]),
        plain("at rest: to a page", [run.rest_kilobytes_per_s for run in found], "KB/s"),
        plain("at rest: the server's part of a core", [run.rest_percent for run in found], "%"),
    ]
    notes = []
    if not options.waits:
        notes.append("No browser was measured.")
    elif importlib.util.find_spec("playwright") and labpage.CHROMIUM.exists():
        figures += _in_a_browser(options.waits)
    else:
        notes.append(f"Without Playwright and {labpage.CHROMIUM} no browser was measured.")
    goals.show(f"a page with {options.kernels} kernels", figures, options, notes=notes)
    return 0


def _in_a_browser(waits: int) -> list[Figure]:
    with (
        Bench(device="cpu", threads=1, lanes=1) as bench,
        _server(bench.address, "jupyterlab") as server,
    ):
        url = f"http://127.0.0.1:{server.port}/"
        seat = bench.seat("busy", "user2")
        shown = labpage.measure(bench.address, seat, url, _TOKEN, waits)
    return [
        at_most("a waiting cell is marked, slowest", [max(shown.cell)], _SECONDS, "s"),
        plain("a waiting cell is marked", shown.cell, "s"),
        at_most("the status bar says waiting, slowest", [max(shown.status)], _SECONDS, "s"),
        plain("the status bar says waiting", shown.status, "s"),
        at_most("a kernel's row is gone, slowest", [max(shown.ended)], _ENDED_S, "s"),
        plain("a kernel's row is gone", shown.ended, "s"),
    ]


@dataclass
class _Run:
    """What one run found."""

    seconds: float = 0.0
    kilobytes_per_s: float = 0.0
    plain_kilobytes_per_s: float = 0.0
    percent: float = 0.0
    changes_per_s: float = 0.0
    rest_kilobytes_per_s: float = 0.0
    rest_percent: float = 0.0
    #: seconds from a cell's beginning or end to the page's message
    delays: list[float] = field(default_factory=list)


@dataclass
class _JupyterServer:
    """A Jupyter server's process."""

    port: int
    process: "subprocess.Popen[bytes]"

    def processor_s(self) -> float:
        """What it has had of the processor."""
        import psutil

        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def _server(address: Address, *extensions: str) -> Iterator[_JupyterServer]:
    with socket.socket() as probe, tempfile.TemporaryDirectory(prefix="jgpu-bench-") as directory:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        environ = os.environ | {
            ADDRESS: str(address),
            "JUPYTER_CONFIG_DIR": directory,
            "JUPYTER_DATA_DIR": directory,
            "JUPYTER_DEFAULT_PROVISIONER_NAME": "jgpu-provisioner",
            "JUPYTER_NO_CONFIG": "1",
            "JUPYTER_RUNTIME_DIR": directory,
            "JUPYTER_TOKEN": _TOKEN,
        }
        options = [f"--ServerApp.port={port}", f"--ServerApp.root_dir={directory}"]
        wanted = dict.fromkeys(("jgpu.labserver", *extensions), True)
        options += [f"--ServerApp.jpserver_extensions={wanted}"]
        options += ["--LabApp.expose_app_in_browser=True"] if extensions else []
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
        process = subprocess.Popen([*command, *options], env=environ, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield _JupyterServer(port, process)
        finally:
            process.terminate()
            process.wait(_START_S)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


class _Relay:
    """Passes a page's bytes on, and counts those that come from the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        #: of what passes
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.nbytes = 0
        self.port = 0

    async def __aenter__(self) -> "_Relay":
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        await asyncio.gather(_pass(reader, back), self._count(there, writer))

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.nbytes += len(data)
            writer.write(data)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


class _Page:
    """A page that reads, and knows when each kernel was in which cell."""

    def __init__(self) -> None:
        self.nbytes = 0
        #: what a kernel did last and was not seen yet: its cell, and when
        self.expected: dict[str, tuple[str, float]] = {}
        self.delays: list[float] = []

    async def read(self, connection: Any) -> None:
        """Until cancelled."""
        import msgspec

        while isinstance(text := await connection.read_message(), str):
            self.nbytes += len(text)
            message = msgspec.json.decode(text)
            rows = (message.get("patch") or message["state"]).get("kernels", {})
            for name, row in rows.items():
                expected = self.expected.get(name)
                if expected and row and row.get("cell") == expected[0]:
                    del self.expected[name]
                    self.delays.append(time.monotonic() - expected[1])


async def _measure(server: _JupyterServer, kernels: list[WireKernel], seconds: float) -> _Run:
    from tornado.httpclient import HTTPRequest
    from tornado.websocket import websocket_connect

    run, page = _Run(), _Page()
    async with _Relay(server.port) as relay:
        request = HTTPRequest(
            f"ws://127.0.0.1:{relay.port}/jgpu/api/watch",
            headers={"Authorization": f"token {_TOKEN}"},
        )
        connection = await websocket_connect(request, compression_options={})
        reading = asyncio.create_task(page.read(connection))
        await _work(kernels, page, 2.0)  # the first states come whole
        page.delays.clear()
        began = time.monotonic(), server.processor_s(), relay.nbytes, page.nbytes
        changes = await _work(kernels, page, seconds)
        run.seconds = time.monotonic() - began[0]
        run.percent = 100 * (server.processor_s() - began[1]) / run.seconds
        run.kilobytes_per_s = (relay.nbytes - began[2]) / run.seconds / 1000
        run.plain_kilobytes_per_s = (page.nbytes - began[3]) / run.seconds / 1000
        run.changes_per_s = changes / run.seconds
        await asyncio.sleep(3.0)  # what grew is told, and then nothing changes
        run.delays = page.delays + [time.monotonic() - when for _, when in page.expected.values()]
        began = time.monotonic(), server.processor_s(), relay.nbytes, page.nbytes
        await asyncio.sleep(min(seconds, 5.0))
        passed = time.monotonic() - began[0]
        run.rest_percent = 100 * (server.processor_s() - began[1]) / passed
        run.rest_kilobytes_per_s = (relay.nbytes - began[2]) / passed / 1000
        connection.close()
        reading.cancel()
    return run


async def _work(kernels: list[WireKernel], page: _Page, seconds: float) -> int:
    """Have all kernels at work, each at another time; how often a cell began or ended."""
    loop = asyncio.get_running_loop()
    end, changes = loop.time() + seconds, 0
    turns = [loop.time() + _STEP_S * number / len(kernels) for number in range(len(kernels))]
    while (now := loop.time()) < end:
        for number, kernel in enumerate(kernels):
            if now >= turns[number]:
                turns[number] += _STEP_S
                page.expected[kernel.name] = kernel.turn(), time.monotonic()
                changes += 1
            kernel.work()
        await asyncio.sleep(_WORK_S)
    return changes
