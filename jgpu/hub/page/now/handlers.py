"""The view "Now": once as a page, then as a stream of the parts that changed.

One `BrokerLink` serves all streams. What a visitor is sent is rendered from what they may see, and
only where it differs from what they were sent before.
"""

import asyncio
import json
import time
from http import HTTPStatus
from typing import Any, Final

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError

from jgpu.hub.page.base import Base
from jgpu.hub.page.now.values import PARTS, now_values
from jgpu.wire.reports.report import BrokerReport, Report

__all__ = ["ChangeStream", "Now"]

#: the first change is sent at once, those that come within so many seconds of it together
_TOGETHER_S: Final = 0.1
#: streams of one visitor
_MOST_STREAMS: Final = 8
_TEMPLATE: Final = "now_parts.html"


class Now(Base):
    """Who runs, who waits, whose memory is where."""

    async def get(self) -> None:
        """The view as it is now."""
        if not self.link.version:  # the page began just now
            await self.link.changed(0, 1.0)
        self.page("now.html", **_values(self))


class ChangeStream(Base):
    """Server-sent events: parts of the view, each whenever it changed."""

    _task: "asyncio.Task[None] | None" = None
    #: that the hub does not answer, a sentence; empty while it does
    _hub_problem = ""

    async def get(self) -> None:
        """Send what changes until the visitor leaves, or may not see it any more."""
        streams = self.settings["streams"]
        name = self.visitor.name
        if streams[name] >= _MOST_STREAMS:
            raise HTTPError(429, "This page is open too often. Close some of its windows.")
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        self._task = asyncio.current_task()
        streams[name] += 1
        try:
            await self._event("clock", json.dumps(time.time()))
            await self._follow()
        except (StreamClosedError, asyncio.CancelledError):
            return
        finally:
            streams[name] -= 1
            if not streams[name]:
                del streams[name]

    def on_connection_close(self) -> None:
        """The visitor has left."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        check_s = self.settings["check_s"]
        sent: dict[str, str] = {}
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            version = self.link.version
            await self._send(sent)
            await asyncio.sleep(_TOGETHER_S)
            if not await self.link.changed(version, check_s):
                self.write(": nothing new\n\n")
                await self.flush()
            if loop.time() - checked >= check_s:
                checked = loop.time()
                if not await self._may_stay():
                    return

    async def _send(self, sent: dict[str, str]) -> None:
        """What is different from what was sent."""
        problem = self.link.problem or self._hub_problem
        if problem != sent.get("problem", ""):
            sent["problem"] = problem
            await self._event("problem", json.dumps(problem))
        if self.link.report is None:
            return
        parts = self.renderer.parts(_TEMPLATE, PARTS, **_values(self))
        news = {name: text for name, text in parts.items() if sent.get(name) != text}
        if news:
            sent.update(news)
            await self._event("", "".join(_partial(name, text) for name, text in news.items()))

    async def _may_stay(self) -> bool:
        """Ask the hub again; one that does not answer takes no right away."""
        try:
            visitor = await self.identify()
        except HTTPError as error:
            if error.status_code == HTTPStatus.FORBIDDEN:
                return False
            self._hub_problem = str(error.log_message)
            return True
        self._hub_problem = ""
        if visitor is not None:
            self.visitor = visitor
        return visitor is not None

    async def _event(self, name: str, data: str) -> None:
        lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
        self.write(f"event: {name}\n{lines}\n" if name else f"{lines}\n")
        await self.flush()


def _values(handler: Base) -> dict[str, Any]:
    link = handler.link
    report = link.report or Report(broker=BrokerReport())
    values = now_values(handler.visitor, report, link.members, link.since)
    return values | {"known": link.report is not None, "xsrf": handler.xsrf_token.decode()}


def _partial(name: str, text: str) -> str:
    return f'<hx-partial hx-target="#{name}" hx-swap="outerMorph">{text}</hx-partial>'
