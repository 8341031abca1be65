"""`/metrics` for Prometheus, behind a token or for programs of this host alone."""

import hmac
import ipaddress
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from tornado.web import HTTPError, RequestHandler

from jgpu.errors import JgpuError
from jgpu.hub.page.broker import BrokerLink
from jgpu.hub.page.metrics.collector import Collector
from jgpu.hub.page.metrics.tally import Tally
from jgpu.wire.limits import MAX_EVENTS
from jgpu.wire.messages import AskEvents
from jgpu.wire.reports.records import decode_events

__all__ = ["Metrics"]

#: what a proxy adds, so who is behind it is not this host
_FORWARDED: Final = ("X-Forwarded-For", "X-Real-Ip", "Forwarded", "Via")
#: questions about events for one answer
_ASKED: Final = 10


class Metrics(RequestHandler):
    """What a monitoring system reads."""

    async def get(self) -> None:
        """All metrics, in the form that is asked for."""
        self._check()
        link: BrokerLink = self.settings["link"]
        tally: Tally = self.settings["tally"]
        await _count_events(link, tally)
        registry = CollectorRegistry()
        registry.register(Collector(link, tally.counts, self.settings["metrics"]))
        encode, kind = choose_encoder(self.request.headers.get("Accept", ""))
        self.set_header("Content-Type", kind)
        self.finish(encode(registry))

    def _check(self) -> None:
        """Raise 403 for whom they are not for."""
        token = self.settings["metrics"].token
        if token:
            given = self.request.headers.get("Authorization", "").removeprefix("Bearer ")
            if hmac.compare_digest(given.encode(), token.encode()):
                return
        elif self._is_local():
            return
        raise HTTPError(403)

    def _is_local(self) -> bool:
        """Whether a program of this host asks, and not for somebody behind a proxy."""
        if any(name in self.request.headers for name in _FORWARDED):
            return False
        try:
            return ipaddress.ip_address(self.request.remote_ip or "").is_loopback
        except ValueError:  # a Unix socket
            return False


async def _count_events(link: BrokerLink, tally: Tally) -> None:
    """Count what happened since the last time; a broker without a record has none."""
    before = 0
    found: list[Any] = []
    try:
        for _ in range(_ASKED):
            rows = decode_events((await link.ask(AskEvents(before, MAX_EVENTS))).json).events
            found += rows
            newest = tally.newest
            if len(rows) < MAX_EVENTS or newest is None or rows[-1].id <= newest:
                break
            before = rows[-1].id
    except JgpuError:
        return
    tally.take(found)
