"""A broker of its own for a measurement, and the environment of a seat there."""

import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jgpu.demo.broker import DemoBroker
from jgpu.kernelprovider.environment import furnish, outer_environment
from jgpu.wire.address import PRIORITY, USER, Address
from jgpu.wire.reports.asking import ask_report
from jgpu.wire.reports.report import Report

__all__ = ["Bench", "host"]

#: importing torch in dozens of processes at once takes minutes, and none of them is there before
_UNUSED_S: Final = 600


class Bench:
    """A private broker on a free socket, from entry to exit.

    `settings` are those of the broker's configuration file, by name; no other file is read. With
    `trace` the times of all works are kept, and `traced` holds them when the broker has ended.
    """

    def __init__(
        self,
        *,
        device: str,
        threads: int,
        lanes: int,
        settings: Mapping[str, Any] | None = None,
        trace: bool = False,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="jgpu-bench-")
        directory = Path(self._directory.name)
        self._trace = directory / "trace" if trace else None
        written = {**(settings or {}), **({"trace": str(self._trace)} if trace else {})}
        options = ["--device", device, "--threads", str(threads), "--lanes", str(lanes)]
        config = directory / "jgpu_config.py"
        config.write_text(
            "".join(f"c.JgpuBroker.{name} = {value!r}\n" for name, value in written.items())
        )
        self._broker = DemoBroker(
            directory, [*options, "--config", str(config)], unused_s=_UNUSED_S
        )
        #: environment of a process with a seat
        self.environ = dict(os.environ)
        #: what the trace says: (lane, session, ready, began, ended), in nanoseconds
        self.traced: list[tuple[int, ...]] = []

    def __enter__(self) -> "Bench":
        self._broker.__enter__()
        try:
            self._broker.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        furnish(self.environ, where=self._broker.address, ticket="bench", label="jgpu bench")
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.__exit__()
        if self._trace is not None and self._trace.exists():
            lines = self._trace.read_text(encoding="ascii").splitlines()
            self.traced = [tuple(map(int, line.split())) for line in lines]
        self._directory.cleanup()

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._broker.address

    def seat(self, name: str, user: str, priority: str = "") -> dict[str, str]:
        """The environment of a process of that user, known by its name in the status."""
        environ = outer_environment(self.environ)
        environ[USER] = user
        if priority:
            environ[PRIORITY] = priority
        furnish(environ, where=self.address, ticket="bench", label=name, kernel_id=name)
        return environ

    def status(self) -> Report:
        """What `jgpu status` shows."""
        return ask_report(self.address)

    def device_seconds(self) -> dict[str, float]:
        """Device time charged to each user so far."""
        return {row.name: row.device_seconds for row in self.status().users}


def host() -> dict[str, Any]:
    """What figures were taken on."""
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
