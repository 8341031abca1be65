"""A broker for one demonstration: a process on a socket of its own, gone with it.

The user's own broker and the system's are left alone. Should the demonstration be killed, the
broker ends by itself, a minute later unless another time is given.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jgpu.errors import BrokerUnreachable
from jgpu.kernelprovider.environment import outer_environment
from jgpu.wire.address import Address
from jgpu.wire.reports.asking import ask_report
from jgpu.wire.reports.report import Report

__all__ = ["DemoBroker"]

_READY_S: Final = 180.0
_END_S: Final = 20.0
_POLL_S: Final = 0.1


class DemoBroker:
    """A broker process below `directory`, started on entry and ended on exit."""

    def __init__(self, directory: Path, options: Sequence[str] = (), *, unused_s: int = 60) -> None:
        """It ends by itself when it was unused for `unused_s` seconds."""
        self.address = Address(directory / "broker.sock", "environment")
        self._log = directory / "broker.log"
        self._options = ["--socket", os.fspath(self.address.path), "--spool", f"{directory}/spool"]
        self._options += ["--idle", str(unused_s), *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The control process; its children are the executors."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "DemoBroker":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jgpu", "broker", "--private", *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=outer_environment(os.environ),
                start_new_session=True,  # a terminal's Ctrl-C is for the demonstration
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_ready(self) -> Report:
        """Its status once the device works; `BrokerUnreachable` with its last words otherwise."""
        assert self._process is not None
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(BrokerUnreachable):
                status = ask_report(self.address)
                if all(device.state == "ready" for device in status.devices):
                    return status
                if any(device.state == "failed" for device in status.devices):
                    break
            time.sleep(_POLL_S)
        raise BrokerUnreachable(f"The demonstration's broker does not serve: {self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing."
