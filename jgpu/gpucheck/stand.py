"""What a case has: a place to say what it found, brokers, and programs to run.

A program is a file of `resources`. It runs with a seat, whose `cuda` is the shared device, or
directly: on the GPU itself, or, where the device is computed on the host, eagerly by the same
kernels. It prints its result, as JSON, in its last line.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.errors import WorkFailed
from jgpu.kernelprovider.environment import outer_environment
from jgpu.wire.reports.report import DeviceReport

__all__ = ["RESOURCES", "CaseBroker", "CaseProgram", "SkipCase", "Stand", "gpu_bytes", "together"]

RESOURCES: Final = Path(__file__).with_name("resources")
#: a broker's part of a GPU's memory, where up to four of them stand side by side
_PART: Final = 6
_MOST_BYTES: Final = 8 << 30
_ON_HOST_BYTES: Final = 1 << 30
_THREADS: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_MOST_TEXT: Final = 400


class SkipCase(Exception):
    """The case cannot say anything here; the text says why."""


class CaseProgram:
    """A program that runs."""

    def __init__(
        self, name: str, arguments: tuple[object, ...], environ: Mapping[str, str]
    ) -> None:
        self._name = name
        self._complained = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `result`
        self.process = subprocess.Popen(
            [sys.executable, str(RESOURCES / f"{name}.py"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complained,
            env=dict(environ),
            text=True,
        )

    def ask(self, line: str) -> Any:
        """Give it a line, and have its answer; `WorkFailed` where it ended instead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        if answer := self.process.stdout.readline():
            return json.loads(answer)
        raise WorkFailed(self._words())

    def result(self, timeout_s: float = 200.0) -> Any:
        """What it prints at its end; `WorkFailed` with its last words where it failed."""
        try:
            said, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise WorkFailed(f"{self._name} was not over after {timeout_s:g} s.") from None
        lines = said.strip().splitlines()
        if self.process.returncode or not lines:
            raise WorkFailed(self._words())
        self._complained.close()
        return json.loads(lines[-1])

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()

    def _words(self) -> str:
        status = self.process.wait()
        self._complained.seek(0)
        text = self._complained.read().decode(errors="replace").strip()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"{self._name} ended with {how}: {text[-_MOST_TEXT:]}"


class CaseBroker:
    """A broker of the case's own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def start(self, program: str, *arguments: object, user: str = "user1") -> CaseProgram:
        """Begin a program with a seat; its first argument is "shared"."""
        environ = self.bench.seat(program, user) | _THREADS
        return CaseProgram(program, ("shared", *arguments), environ)

    def seat(self, program: str, *arguments: object, user: str = "user1") -> Any:
        """What a program prints that has a seat."""
        return self.start(program, *arguments, user=user).result()

    def device(self) -> DeviceReport:
        """The device, as the status shows it."""
        return self.bench.status().devices[0]


class Stand:
    """Of one case, on one kind of device."""

    def __init__(self, device: str) -> None:
        self.kind = device
        self.on_host = device == "cuda-on-host"
        #: how a program runs that has no seat
        self.directly = "eager" if self.on_host else "native"
        #: what sizes of models and tensors are multiplied by
        self.scale = 1 if self.on_host else 4
        self.faults = 0

    # -- what it says ------------------------------------------------------------------------

    def check(self, name: str, holds: object, text: object = "") -> None:
        """Something must hold; `text` says what was instead."""
        self.faults += not holds
        _say(check=name, holds=bool(holds), text=str(text))

    def same(self, name: str, found: object, expected: object) -> None:
        """Two things must be equal."""
        self.check(name, found == expected, f"{found!r}, and not {expected!r}")

    def figure(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """A figure, and what is aimed at: on a GPU, for a host says nothing of its speed."""
        told: dict[str, Any] = {"value": float(f"{value:.6g}"), "unit": unit}
        goal = at_least if at_most is None else at_most
        if goal is not None and not self.on_host:
            told["goal"] = f"{'at least' if at_most is None else 'at most'} {goal:g}"
            told["met"] = value >= goal if at_most is None else value <= goal
        _say(figure=name, **told)

    def note(self, text: str) -> None:
        """What is worth knowing, whatever it is."""
        _say(note=text)

    # -- what it runs ------------------------------------------------------------------------

    def start(self, program: str, *arguments: object, **environ: str) -> CaseProgram:
        """Begin a program without a seat; its first argument is "native" or "eager"."""
        return CaseProgram(program, (self.directly, *arguments), _outside() | _THREADS | environ)

    def run(self, program: str, *arguments: object, **environ: str) -> Any:
        """What a program prints without a seat."""
        return self.start(program, *arguments, **environ).result()

    @contextlib.contextmanager
    def broker(
        self, *, lanes: int = 2, trace: bool = False, **settings: Any
    ) -> Iterator[CaseBroker]:
        """A broker that serves the device; `settings` are those of its configuration file."""
        settings = {"memory": self._memory(), "claims_gpu": False} | settings
        with Bench(
            device=self.kind, threads=1, lanes=lanes, settings=settings, trace=trace
        ) as bench:
            yield CaseBroker(bench)

    def _memory(self) -> int:
        if self.on_host:
            return _ON_HOST_BYTES
        return min(_MOST_BYTES, gpu_bytes() // _PART)


def together(programs: Sequence[CaseProgram], line: str) -> list[Any]:
    """Give all of them the same line at once, and have their answers."""
    with ThreadPoolExecutor(max(1, len(programs))) as threads:
        return list(threads.map(lambda each: each.ask(line), programs))


def gpu_bytes() -> int:
    """Memory of the GPU that the cases have."""
    import pynvml

    from jgpu.broker.control.executors.gpus import gpu_uuid

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(0))
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    finally:
        pynvml.nvmlShutdown()


def _outside() -> dict[str, str]:
    """The environment of a program that may see the GPU, and takes no seat."""
    environ = outer_environment(os.environ)
    return environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _say(**line: Any) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()
