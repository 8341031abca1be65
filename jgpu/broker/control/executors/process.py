"""One executor process: started with a clean environment, spoken to over its socket pair.

`first` waits for its word that the device works, `over` for its end. What it says in between goes
to `on_notice`.

Invariant: when `stop` has returned, the process is gone.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Final

import msgspec

from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.executors.endings import End, read_end
from jgpu.broker.control.executors.environment import executor_environment
from jgpu.broker.control.executors.gpus import visible_as
from jgpu.broker.control.executors.watch import ProcessWatch
from jgpu.broker.control.listening.channel import ExecutorChannel
from jgpu.broker.flightpage import FlightPage
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire.messages import AskStop, ExecutorFailed, ExecutorNotice, ExecutorReady

__all__ = ["ExecutorProcess"]

_LOG = logging.getLogger("jgpu.broker")
#: How long a process may live after it closed its end of the channel.
_LINGER_S: Final = 1.0


class ExecutorProcess:
    """A started executor; made on the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        executor: ExecutorSettings,
        on_notice: Callable[[ExecutorNotice], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._lingering: asyncio.TimerHandle | None = None
        self._on_notice = on_notice
        #: ExecutorReady, or a sentence that says why there is none
        self.first: asyncio.Future[ExecutorReady | str] = loop.create_future()
        #: a sentence that says how the process ended
        self.over: asyncio.Future[str] = loop.create_future()
        #: how it ended and who did it, once it is gone
        self.end: End | None = None
        #: the same, where it was decided here
        self._verdict: End | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        #: what the executor does, and did when it ended
        self.page = FlightPage.create()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [
                        *settings.executor_command,
                        msgspec.json.encode(executor).decode(),
                        str(theirs.fileno()),
                        str(self.page.descriptor),
                    ],
                    pass_fds=(theirs.fileno(), self.page.descriptor),
                    stdin=subprocess.DEVNULL,
                    env=executor_environment(
                        os.environ,
                        executor.device,
                        settings.executor_environment,
                        visible_as(executor.index) if executor.device == "cuda" else "",
                    ),
                    # Ctrl-C in the broker's terminal is the broker's affair.
                    process_group=0,
                )
            except BaseException:
                ours.close()
                self.page.close()
                raise
        self.channel = ExecutorChannel(ours, self._notice, self._channel_closed)
        self._watch = ProcessWatch.of_child(self._process.pid, self._exited)

    def end_as(self, end: End) -> None:
        """Kill the process; this is how and why it ended."""
        self._verdict = self._verdict or end
        self._kill()

    @property
    def pid(self) -> int:
        """The executor's process id."""
        return self._process.pid

    async def stop(self, patience_s: float) -> None:
        """End the process: a word, then SIGTERM, then SIGKILL, each with a third of the time."""
        self.channel.send(AskStop())
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None and self._process.poll() is None:
                self._process.send_signal(number)
            if await self._gone_within(patience_s / 3):
                break
        else:
            _LOG.error("The executor (pid %d) cannot be killed; its driver hangs.", self.pid)
        self._watch.stop()
        self.channel.close()
        if self._lingering is not None:
            self._lingering.cancel()
        self._settle("The executor was stopped.")

    async def _gone_within(self, time_s: float) -> bool:
        try:
            async with asyncio.timeout(time_s):
                await asyncio.shield(self._gone)
        except TimeoutError:
            return False
        return True

    def _notice(self, notice: ExecutorNotice) -> None:
        if isinstance(notice, ExecutorReady):
            if not self.first.done():
                self.first.set_result(notice)
        elif isinstance(notice, ExecutorFailed):
            if not self.first.done():
                self.first.set_result(notice.text)
            self._settle(notice.text)
        else:
            self._on_notice(notice)

    def _channel_closed(self, reason: str) -> None:
        if reason:
            self._settle(f"The executor broke the protocol: {reason}")
            self._kill()
        else:
            # It is ending, and its exit status will tell more; but it must not linger.
            self._lingering = asyncio.get_running_loop().call_later(_LINGER_S, self._kill)

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def _exited(self) -> None:
        status = self._process.wait()
        self.channel.drain()
        self.channel.close()
        self.end = self._verdict or read_end(self.pid, status, self.page, self.page.fault())
        self.page.close()
        if not self._gone.done():
            self._gone.set_result(None)
        self._settle(self.end.sentence)

    def _settle(self, sentence: str) -> None:
        for future in (self.first, self.over):
            if not future.done():
                future.set_result(sentence)
