"""The server's one line to the broker: its report as it changes, while somebody looks.

It goes to the broker that kernels of this server would use, and only asks: no broker is started,
nor kept from ending because it is unused. It comes back by itself, in silence.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jgpu.errors import BrokerUnreachable, FrameError, JgpuError
from jgpu.labserver.state import Moments, is_own
from jgpu.wire.address import NO_TICKET, PROBLEM, TICKET, Address, find
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus, StatusIs
from jgpu.wire.reports.report import Report, decode
from jgpu.wire.reports.watching import follow

__all__ = ["Delays", "Follower"]

_LOG = logging.getLogger("jgpu.labserver")
_NO_SEAT: Final = "Kernels of this server get no part of the GPU."


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds."""

    #: for which an answer is waited
    timeout_s: float = 5.0
    #: after which a broker that does not answer is asked again
    again_s: float = 1.0
    #: after which a broker that tells of no changes is asked again
    older_s: float = 2.0
    #: after which a broker that says nothing is asked whether it still answers
    silence_s: float = 10.0


_DELAYS: Final = Delays()


class Follower:
    """What the broker says now; on the server's event loop."""

    def __init__(
        self,
        on_change: Callable[[], None],
        environ: Mapping[str, str] = os.environ,
        delays: Delays = _DELAYS,
    ) -> None:
        self._on_change = on_change
        self._environ = environ
        self._delays = delays
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[None] | None = None
        self._heard = 0.0
        self.moments = Moments()
        #: the last report; None before the first, and after a private broker ended unused
        self.report: Report | None = None
        #: why there is no newer one, a sentence; empty while there is
        self.problem = ""
        #: whether a broker has answered, or there is none that could
        self.known = False
        #: whether kernels of this server have a broker to go to
        self.shares = environ.get(TICKET) != NO_TICKET
        if not self.shares:
            self.problem = environ.get(PROBLEM, "") or _NO_SEAT

    def start(self) -> None:
        """Follow from now on; harmless when repeated."""
        if self._task is None and self.shares:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Follow no more: the connection is closed, and what it told is old."""
        if self._task is not None:
            self._task.cancel()
            self._ended, self._task = self._task, None
            self.report, self.known, self.problem = None, False, ""

    async def close(self) -> None:
        """The same, and wait for it."""
        self.stop()
        if self._ended is not None:
            await asyncio.wait([self._ended])

    async def ask(self, message: Any) -> Any:
        """One request to the broker and its reply; raises `JgpuError`."""
        return await asyncio.to_thread(ask, find(self._environ), message, self._delays.timeout_s)

    async def status(self) -> Report:
        """The report as it is at this moment; raises `JgpuError`."""
        reply = await self.ask(AskStatus())
        if not isinstance(reply, StatusIs):
            raise BrokerUnreachable(f"The broker answered {type(reply).__name__}.")
        return decode(reply.json)

    # -- what comes --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            pause_s = self._delays.again_s
            address = None
            try:
                address = find(self._environ)
                await self._listen(address)
            except FrameError:  # it is older, and tells of no changes
                pause_s = self._delays.older_s
                await self._ask_once()
            except (JgpuError, OSError) as error:
                self._lost(error, address)
            except Exception as error:  # a mistake of our own ends it for a moment, not for good
                if self.problem != str(error):
                    _LOG.exception("The broker's report could not be followed.")
                self._lost(error, address)
            await asyncio.sleep(pause_s)

    async def _ask_once(self) -> None:
        try:
            self._take(await self.status())
        except (JgpuError, OSError) as error:
            self._lost(error, None)

    async def _listen(self, address: Address) -> None:
        """Until it ends, or does not answer any more; raises why."""
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        tasks = {loop.create_task(self._hear(address)), loop.create_task(self._probe())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _hear(self, address: Address) -> None:
        async with contextlib.aclosing(follow(address, self._delays.timeout_s)) as reports:
            async for report in reports:
                self._heard = asyncio.get_running_loop().time()
                self._take(report)

    async def _probe(self) -> None:
        """A broker may be silent because nothing changes, or because it hangs."""
        loop, silence_s = asyncio.get_running_loop(), self._delays.silence_s
        while True:
            await asyncio.sleep(max(0.0, self._heard + silence_s - loop.time()))
            if loop.time() - self._heard >= silence_s:
                await self.status()
                self._heard = loop.time()

    def _take(self, report: Report) -> None:
        self.moments.take(report, time.time())
        self.report, self.problem, self.known = report, "", True
        self._on_change()

    def _lost(self, error: BaseException, address: Address | None) -> None:
        """It does not answer, and why; a private one may have ended because it was unused."""
        self.problem = str(error)
        ended = address is not None and address.may_be_private and not address.path.exists()
        if ended and not self._in_use:
            self.report, self.problem, self.known = None, "", True
        self._on_change()

    @property
    def _in_use(self) -> bool:
        """Whether the owner had a session when the broker was heard last."""
        report = self.report
        return report is not None and any(is_own(report, row) for row in report.sessions)
