"""An executor process from its first to its last moment.

`python -m jgpu.broker.executor SETTINGS_JSON FD PAGE`: settings as `ExecutorSettings` in JSON, FD
the end of a socket pair whose other end the control process has, PAGE the descriptor of the flight
page, which the control process reads.

Invariant: it says `ExecutorReady` only when the device has just worked, and it never outlives the
control process.
"""

import ctypes
import gc
import logging
import os
import re
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Final

import msgspec
import torch

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices import make_device
from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.orders import Orders
from jgpu.broker.executor.programs import KINDS
from jgpu.broker.executor.pump import Pump
from jgpu.broker.executor.selftest import self_test
from jgpu.broker.flightpage import FlightPage
from jgpu.broker.gputroubles import explained, trouble_of
from jgpu.broker.logs import Repetitions
from jgpu.broker.settings import DEVICE_FAULT, ExecutorSettings
from jgpu.errors import JgpuError, VersionMismatch
from jgpu.untried import fitness_of
from jgpu.wire import messages
from jgpu.wire.runtime import runtime_of

__all__ = ["main"]

_log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
#: nanoseconds by which the kernel may let the pump sleep longer than it asks for; by default 50,000
_SLACK_NS: Final = 1_000
#: what CUDA calls the faults of a kernel
_FAULT: Final = re.compile(
    r"device-side assert|illegal memory access|illegal instruction|misaligned address|"
    r"invalid program counter|hardware stack error|unspecified launch failure"
)
#: exit status of an executor that cannot go on
_BROKEN: Final = 3


def main(arguments: list[str]) -> int:
    """Serve until the control process has had enough; returns the exit status."""
    settings = msgspec.json.decode(arguments[0], type=ExecutorSettings)
    sock = socket.socket(fileno=int(arguments[1]))
    page = FlightPage.adopt(int(arguments[2]))
    page.watch_faults()
    _die_with_parent()
    handler = logging.StreamHandler()
    handler.addFilter(Repetitions())
    logging.basicConfig(
        level=settings.log_level, format="%(name)s: %(message)s", handlers=[handler]
    )
    torch.set_grad_enabled(False)
    connection: Connection[messages.ExecutorOrder] = Connection(sock, messages.ExecutorOrder)
    try:
        device = _tested_device(settings, page)
        pump = Pump(device, settings, page=page)
    except (JgpuError, RuntimeError, MemoryError, OSError, AssertionError) as error:
        # Of torch's own assertions, too: that is how a build for the CPU says what it is.
        _log.exception("the device cannot be used")
        _say_why(connection, settings, error)
        return 1
    _import_meta_kernels()
    _quicken()
    Orders(pump, connection)
    connection.send(messages.ExecutorReady(device.facts, os.getpid(), runtime_of(torch)))
    try:
        pump.run()
    except Exception as error:
        # The device is gone, or we are wrong: whatever was on it is lost.
        _log.exception("the executor ends")
        _note_end(settings)
        if _runs_ahead(settings) and trouble_of(str(error)) is not None:
            _say_why(connection, settings, error)
        os._exit(DEVICE_FAULT if is_device_fault(error) else _BROKEN)
    sys.stdout.flush()
    sys.stderr.flush()
    # Lanes may be in the midst of long ops, whose results nobody will ask for.
    os._exit(0)


def is_device_fault(error: BaseException) -> bool:
    """Whether a kernel broke the device for good: it asserted, or touched what is not its own."""
    return isinstance(error, RuntimeError) and _FAULT.search(str(error)) is not None


def _say_why(
    connection: Connection[messages.ExecutorOrder], settings: ExecutorSettings, error: Exception
) -> None:
    """Tell the control process, which tells everybody, and wait until it is sent."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.insert(0, cause)
        cause = cause.__cause__ or cause.__context__
    on_gpu = _runs_ahead(settings) and not isinstance(error, JgpuError)
    text = explained(chain) if on_gpu else str(error)
    connection.socket.setblocking(True)
    connection.send(messages.ExecutorFailed(text[:4096] or type(error).__name__))


def _runs_ahead(settings: ExecutorSettings) -> bool:
    kind = KINDS.get(settings.device)
    return kind is not None and kind.runs_ahead


def _tested_device(settings: ExecutorSettings, page: FlightPage) -> Device:
    fitness = fitness_of(torch.__version__)
    if fitness.problem:
        raise VersionMismatch(fitness.problem)
    if fitness.warning:
        _log.warning("%s", fitness.warning)
    device = make_device(settings, page)
    lanes = settings.lanes if device.launches_ahead else 1
    self_test(device, lanes, computes=KINDS[settings.device].computes)
    return device


def _note_end(settings: ExecutorSettings) -> None:
    """Leave a file behind that says what happened, for whoever looks into it."""
    if settings.spool:
        note = (
            Path(settings.spool) / f"executor-{settings.device}{settings.index}-{os.getpid()}.txt"
        )
        note.write_text(traceback.format_exc())


def _import_meta_kernels() -> None:
    """Torch imports much at its first meta call, and two threads that do so at once both fail."""
    made = torch.empty(2, 2, device="meta")
    torch.ops.aten.addmm.default(made[0], made, made)


def _quicken() -> None:
    """Keep the interpreter's own pauses out of the pump's way."""
    # What was imported stays: a full collection would look through it all, for a tenth of a second.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.001)
    # Of this thread alone. Where it is not allowed the pump looks a little later at what is over.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_SLACK_NS), 0, 0, 0)


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
