"""The page's one line to the broker: its report as it changes, for all visitors at once.

Does not decide who may see what (`views`), nor who may do what (`actions`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jgpu.errors import BrokerUnreachable, FrameError, JgpuError
from jgpu.hub.page.views import members_of
from jgpu.wire.address import Address
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskQuotas, AskStatus, QuotasAre
from jgpu.wire.reports.report import QuotasReport, Report, SessionReport, decode, decode_quotas
from jgpu.wire.reports.watching import follow

__all__ = ["BrokerLink"]

_LOG = logging.getLogger("jgpu.hub.page")
_TIMEOUT_S: Final = 5.0
#: after so long a broker that does not answer is asked again
_AGAIN_S: Final = 1.0
#: answers about quotas are good for so long
_FRESH_S: Final = 1.0


class BrokerLink:
    """What the broker says now; on the page's event loop."""

    def __init__(self, socket: Path) -> None:
        self._address = Address(socket, "hub")
        self._changed = asyncio.Event()
        #: the last report; None before the first
        self.report: Report | None = None
        #: why there is no newer one, a sentence; empty while there is
        self.problem = "The broker was not asked yet."
        #: grows with every change of the two
        self.version = 0
        #: session -> (its state, since when)
        self._since: dict[int, tuple[str, float]] = {}
        self._quotas: QuotasReport | None = None
        self._quotas_at = float("-inf")
        self._asking = asyncio.Lock()

    # -- what is there -------------------------------------------------------------------------

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """user -> groups, of all whom the broker told of."""
        return members_of(self._quotas, self.report)

    @property
    def since(self) -> Mapping[int, float]:
        """session -> when it was first seen in the state that it is in, seconds since the epoch."""
        return {number: moment for number, (_, moment) in self._since.items()}

    async def changed(self, version: int, timeout_s: float) -> bool:
        """Wait for another version than this one; false if there is none in time."""
        if self.version == version:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return True

    async def quotas(self) -> QuotasReport:
        """Everybody's quotas and usage, not older than a second; raises `JgpuError`."""
        async with self._asking:
            if self._quotas is None or time.monotonic() - self._quotas_at >= _FRESH_S:
                reply = await self.ask(AskQuotas())
                if not isinstance(reply, QuotasAre):
                    raise BrokerUnreachable(f"The broker answered {type(reply).__name__}.")
                self._quotas, self._quotas_at = decode_quotas(reply.json), time.monotonic()
            return self._quotas

    def forget_quotas(self) -> None:
        """Something of them was changed."""
        self._quotas_at = float("-inf")

    async def ask(self, message: Any) -> Any:
        """One request to the broker and its reply; raises `JgpuError`."""
        return await asyncio.to_thread(ask, self._address, message, _TIMEOUT_S)

    # -- what comes ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the broker until cancelled."""
        while True:
            try:
                async with contextlib.aclosing(follow(self._address, _TIMEOUT_S)) as reports:
                    async for report in reports:
                        self.take(report)
            except FrameError:  # it is older, and tells of no changes
                await self._ask_once()
            except JgpuError as error:
                self.lost(str(error))
            await asyncio.sleep(_AGAIN_S)

    async def _ask_once(self) -> None:
        try:
            reply = await self.ask(AskStatus())
            self.take(decode(reply.json))
        except JgpuError as error:
            self.lost(str(error))

    def take(self, report: Report) -> None:
        """A newer report."""
        if self.problem and self.version:
            _LOG.info("The broker answers.")
        now = time.time()
        self._since = {each.id: self._since_when(each, now) for each in report.sessions}
        if report != self.report or self.problem:
            self.report, self.problem = report, ""
            self._tell()

    def lost(self, problem: str) -> None:
        """The broker does not answer, and why."""
        if problem != self.problem:
            _LOG.warning("%s", problem)
            self.problem = problem
            self._tell()

    def _since_when(self, session: SessionReport, now: float) -> tuple[str, float]:
        before = self._since.get(session.id)
        return before if before and before[0] == session.state else (session.state, now)

    def _tell(self) -> None:
        self.version += 1
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()
