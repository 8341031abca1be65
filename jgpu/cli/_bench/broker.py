"""A broker of its own for a measurement, and the environment of a seat there."""

import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from jgpu.cli._demo.broker import DemoBroker
from jgpu.kernelprovider.environment import furnish

__all__ = ["Bench", "host"]


class Bench:
    """A private broker on a free socket, from entry to exit."""

    def __init__(self, *, device: str, threads: int, lanes: int) -> None:
        self._options = ["--device", device, "--threads", str(threads), "--lanes", str(lanes)]
        self._directory = tempfile.TemporaryDirectory(prefix="jgpu-bench-")
        self._broker = DemoBroker(Path(self._directory.name), self._options)
        #: environment of a process with a seat
        self.environ = dict(os.environ)

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
        self._directory.cleanup()


def host() -> dict[str, Any]:
    """What figures were taken on."""
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
