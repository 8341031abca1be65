"""Keeps one executor alive: chooses its device, starts it, starts it again when it ended.

`auto` tries the GPU first, where one seems to be there, and serves from the CPU with a sentence
when that fails. What happens to sessions meanwhile is `server`'s affair, told by `Listener`.

Invariant: at most one executor process per supervisor at any time.
"""

import asyncio
import enum
import logging
import os
import time
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.executors.endings import End
from jgpu.broker.control.executors.gpus import (
    GpuClaim,
    claim_gpu,
    gpu_is_plugged_in,
    gpu_seems_present,
)
from jgpu.broker.control.executors.process import ExecutorProcess
from jgpu.broker.control.executors.restarts import Restarts
from jgpu.broker.control.runtimes import own_torch
from jgpu.broker.flightpage import FlightPage
from jgpu.errors import ConfigError
from jgpu.wire.messages import AskReport, DeviceFacts, ExecutorNotice, ExecutorReady, Runtime

__all__ = ["ExecutorKey", "ExecutorState", "Supervisor", "SupervisorEvents"]

_LOG = logging.getLogger("jgpu.broker")
#: For a process that has ended, or must.
_DEAD_PATIENCE_S: Final = 1.0


class ExecutorState(enum.Enum):
    """Where an executor is."""

    STARTING = "starting"
    READY = "ready"
    #: its process ended; the next one is about to be started
    RESTARTING = "restarting"
    #: starting again did not help; tried again after a pause
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ExecutorKey:
    """What an executor is for: sessions of another trust group or runtime need another one."""

    device: str
    index: int
    trust_group: str
    runtime: Runtime


class SupervisorEvents(Protocol):
    """Whom a supervisor tells; called on the event loop."""

    def executor_ready(self) -> None:
        """The device works; sessions may be adopted."""

    def executor_ended(self, end: End) -> bool:
        """The process ended; whether one user is to blame. One of the next two follows."""

    def executor_lost(self) -> None:
        """All that the process held is gone. A new one follows."""

    def executor_failed(self, sentence: str) -> None:
        """No executor for a while; sessions cannot be served."""

    def executor_said(self, notice: ExecutorNotice) -> None:
        """SessionEnded or ReportIs."""


class Supervisor:
    """One executor and its restarts. `run` is the task; `send` reaches the process of the day."""

    def __init__(self, settings: BrokerSettings, events: SupervisorEvents) -> None:
        self._settings = settings
        self._events = events
        self._restarts = Restarts(settings.crash_limit, settings.crash_window_s)
        self._process: ExecutorProcess | None = None
        self._claim: GpuClaim | None = None
        self.state = ExecutorState.STARTING
        #: why this device and not another, or why there is none; for the status
        self.note = ""
        #: "cuda", "cpu" or "null"; for `auto` what is being tried
        self.device = settings.device
        self.facts: DeviceFacts | None = None
        #: what clients' runtimes must fit; the schema is known once an executor was ready
        self.runtime = Runtime(python="", torch=own_torch(), schema="")
        if settings.device == "auto":
            self.device = "cuda" if gpu_seems_present() else "cpu"
            if self.device == "cpu" and "CUDA_VISIBLE_DEVICES" not in os.environ:
                self._say_undriven(plugged_in=gpu_is_plugged_in())
        elif settings.device == "null":
            self.runtime = Runtime(python="", torch="", schema="")

    def _say_undriven(self, *, plugged_in: bool) -> None:
        """`auto` never takes the CPU beside a GPU without a word."""
        if plugged_in:
            self.note = (
                "There is a GPU, but no NVIDIA driver answers, so the CPU serves instead: install "
                "the driver (in a container: start it with the NVIDIA runtime); `jgpu doctor` says "
                "what is missing."
            )
            _LOG.warning("%s", self.note)

    @property
    def key(self) -> ExecutorKey:
        """What this executor is for."""
        return ExecutorKey(self.device, self._settings.executor.index, "", self.runtime)

    @property
    def pid(self) -> int | None:
        """Process id of the executor, if one runs."""
        return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        """How often an executor ended without being told to."""
        return self._restarts.count

    @property
    def is_stuck(self) -> bool:
        """The executor does not read what it is sent."""
        return self._process is not None and self._process.channel.is_stuck

    @property
    def page(self) -> FlightPage | None:
        """The flight page of the executor, if one runs."""
        return self._process.page if self._process else None

    def end(self, end: End) -> None:
        """End the executor that runs, for this reason; another follows."""
        if self._process is not None:
            self._process.end_as(end)

    def ask(self) -> None:
        """Ask the executor something, so that it gives a sign of life; not where it is stuck."""
        if self._process is not None and not self._process.channel.waits:
            self.send(AskReport(0))

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """To the executor, if one is there; raises `OSError` out of descriptors."""
        if self._process is not None:
            self._process.channel.send(message, descriptors)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                end = await self._serve_once()
                if self._falls_back(end.sentence):
                    continue
                await self._pause(end)
        finally:
            self.state = ExecutorState.STOPPED
            if self._process is not None:
                process, self._process = self._process, None
                await asyncio.shield(process.stop(self._settings.stop_timeout_s))
            self._release_claim()

    async def _serve_once(self) -> End:
        """From start to end of one process; how it ended."""
        try:
            if self.device == "cuda" and self._settings.claims_gpu and self._claim is None:
                self._claim = claim_gpu(self._settings.executor.index)
            executor = msgspec.structs.replace(self._settings.executor, device=self.device)
            self._process = ExecutorProcess(self._settings, executor, self._events.executor_said)
        except (OSError, ConfigError) as error:
            text = f"No executor could be started: {error}"
            return End("could not be started", text)
        # Cancelled while it serves, `run` stops the process with the patience it deserves.
        sentence = await self._until_over(self._process)
        process, self._process = self._process, None
        await process.stop(_DEAD_PATIENCE_S)
        return replace(process.end or End("did not end", sentence), sentence=sentence)

    async def _until_over(self, process: ExecutorProcess) -> str:
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                first = await asyncio.shield(process.first)
        except TimeoutError:
            return f"The executor was not ready after {self._settings.start_timeout_s:g} seconds."
        if isinstance(first, str):
            return first
        self._ready(first)
        return await asyncio.shield(process.over)

    def _ready(self, ready: ExecutorReady) -> None:
        self.facts = ready.device
        if ready.runtime is not None and self.device != "null":
            self.runtime = ready.runtime
        self.state = ExecutorState.READY
        _LOG.info("Serving %s (%s).", ready.device.name, ready.device.kind)
        self._events.executor_ready()

    def _falls_back(self, sentence: str) -> bool:
        """`auto` whose GPU never worked goes on with the CPU."""
        never_ready = self.facts is None
        if not (self._settings.device == "auto" and self.device == "cuda" and never_ready):
            return False
        self.note = f"The GPU cannot be used, so the CPU serves instead: {sentence}"
        _LOG.warning("%s", self.note)
        self.device = "cpu"
        self._release_claim()
        return True

    async def _pause(self, end: End) -> None:
        """Tell of the end and wait until the next start is due."""
        sentence, never_ready = end.sentence, self.facts is None
        blamed = self._events.executor_ended(end)
        delay_s = self._restarts.ended(time.monotonic(), blamed=blamed)
        if delay_s is not None and not never_ready:
            self.state, self.note = ExecutorState.RESTARTING, sentence
            _LOG.error("%s It is started again in %.3g s.", sentence, delay_s)
            self._events.executor_lost()
            await asyncio.sleep(delay_s)
            return
        pause_s = self._settings.cool_down_s
        self.state, self.note = ExecutorState.FAILED, sentence
        _LOG.error("%s The next attempt is in %.3g s.", sentence, pause_s)
        self._events.executor_failed(sentence)
        await asyncio.sleep(pause_s)

    def _release_claim(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None
