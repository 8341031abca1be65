"""Tells all pages of a server what changes; the broker is followed only while one listens.

Whoever has not read what they were told before is told nothing until they have, and then what is
different by then.

Invariant: of each page one message waits at most.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from jgpu.labserver.follower import Delays, Follower
from jgpu.labserver.pace import Pace
from jgpu.labserver.patches import patch
from jgpu.labserver.state import State, state_of
from jgpu.wire.address import USER

__all__ = ["Feed", "Page"]

#: a page that asks instead of listening is there for so long after it asked
_POLLED_S: Final = 15.0
#: the first to ask waits so long for the broker
_FIRST_S: Final = 1.0


class Page(Protocol):
    """Somebody who is told."""

    async def tell(self, text: str) -> None:
        """Return when it was taken; raises nothing where they have gone."""


class _Listener:
    """A page, and the task that tells it something."""

    def __init__(self, page: Page, of_page: State) -> None:
        self.page = page
        #: what holds for it alone
        self.of_page = of_page
        #: what it knows once it has read everything; None before the first
        self.told: State | None = None
        self.task: asyncio.Task[None] | None = None


class Feed:
    """The pages of one server; on its event loop."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, delays: Delays | None = None
    ) -> None:
        self.follower = Follower(self._changed, environ, delays or Delays())
        #: the name that the owner's kernels go by at a broker of their own
        self._claimed = environ.get(USER, "")
        self._listeners: dict[Page, _Listener] = {}
        self._pace = Pace()
        #: what pages know that have read everything
        self._shown: State = {}
        #: when to look what may be told, and when nobody polls any more
        self._looks: asyncio.TimerHandle | None = None
        self._leaves: asyncio.TimerHandle | None = None
        self._polled = float("-inf")
        #: what is known, and the message for all who know that
        self._made: tuple[State, str] = {}, ""
        self._answered = asyncio.Event()

    # -- who listens -------------------------------------------------------------------------

    def join(self, page: Page, **of_page: Any) -> None:
        """Tell a page the whole state with what holds for it alone, and from then on changes."""
        self.follower.start()
        listener = self._listeners[page] = _Listener(page, of_page)
        listener.task = asyncio.get_running_loop().create_task(self._welcome(listener))

    def leave(self, page: Page) -> None:
        """A page has gone; harmless when repeated."""
        listener = self._listeners.pop(page, None)
        if listener is not None:
            if listener.task is not None:
                listener.task.cancel()
            self._end_when_alone()

    async def asked(self) -> State:
        """The whole state, for somebody who asks again and again."""
        self.follower.start()
        self._polled = asyncio.get_running_loop().time()
        self._end_when_alone()
        await self._first()
        return self._newest() | {"at": _now()}

    async def close(self) -> None:
        """Tell nobody any more."""
        for page in list(self._listeners):
            self.leave(page)
        for timer in (self._looks, self._leaves):
            if timer is not None:
                timer.cancel()
        await self.follower.close()

    def _end_when_alone(self) -> None:
        """Follow no longer than somebody looks."""
        if self._leaves is not None:
            self._leaves.cancel()
            self._leaves = None
        if self._listeners:
            return
        loop = asyncio.get_running_loop()
        left = self._polled + _POLLED_S - loop.time()
        if left > 0.0:
            self._leaves = loop.call_later(left, self._end_when_alone)
        else:
            self.follower.stop()
            self._answered.clear()

    async def _first(self) -> None:
        """Wait a moment for what the broker says first."""
        if self.follower.shares:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_S):
                    await self._answered.wait()

    # -- what they are told ------------------------------------------------------------------

    def _newest(self) -> State:
        follower = self.follower
        report = follower.report
        said = {} if report is None else state_of(report, follower.moments, self._claimed)
        known = {"problem": follower.problem, "known": follower.known, "shares": follower.shares}
        return {"kernels": {}} | known | said

    def _changed(self) -> None:
        """Something may be different."""
        self._answered.set()
        if self._listeners:
            self._look_at(self._pace.next())

    def _look_at(self, moment: float) -> None:
        """Look then, or before."""
        if self._looks is not None:
            if self._looks.when() <= moment:
                return
            self._looks.cancel()
        self._looks = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        """Show what may be shown now, and look again when more may."""
        self._looks = None
        now = asyncio.get_running_loop().time()
        newest = self._newest()
        shown = self._pace.choose(self._shown, newest, now)
        if change := patch(self._shown, shown):
            text = _message("patch", change)
            self._pace.told(len(text), now)
            self._made, self._shown = (self._shown, text), shown
            for listener in self._listeners.values():
                self._bring_up(listener)
        if shown != newest:
            self._look_at(self._pace.next_growth())

    def _bring_up(self, listener: _Listener) -> None:
        """Tell a page what it does not know, unless it is still being told."""
        told = listener.told
        if listener.task is not None or told is None or told is self._shown:
            return
        known, text = self._made
        if told is not known:  # it was slow to read
            change = patch(told, self._shown)
            text = _message("patch", change) if change else ""
        listener.told = self._shown
        if text:
            listener.task = asyncio.get_running_loop().create_task(self._tell(listener, text))

    async def _welcome(self, listener: _Listener) -> None:
        await self._first()
        if all(other.told is None for other in self._listeners.values()):
            self._shown = self._newest()  # nobody was told what changed since somebody listened
        listener.told = self._shown
        await self._tell(listener, _message("state", self._shown | listener.of_page))

    async def _tell(self, listener: _Listener, text: str) -> None:
        await listener.page.tell(text)
        listener.task = None
        if listener.page in self._listeners:
            self._bring_up(listener)


def _message(kind: str, content: State) -> str:
    return msgspec.json.encode({kind: content | {"at": _now()}}).decode()


def _now() -> float:
    return round(time.time(), 3)
