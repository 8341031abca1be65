"""Those who watch: each is told what changes of the report that they may see.

Whoever has not read what they were told before is told nothing until they have, and then what is
different by then; whoever reads nothing for long is dropped. What only shows that time passes (how
old a session is, how long a lane has been at something) is no change: it comes with the row's next
one, and the moments that it counts from are in the row.

Invariant: of each watcher one message waits at most.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from jgpu.broker.control.listening.handshake import Visit
from jgpu.broker.control.listening.shares import Share
from jgpu.broker.control.reports.report import Viewer
from jgpu.errors import FrameError, QuotaExceeded
from jgpu.wire.framing import FrameWriter
from jgpu.wire.messages import StatusChanged, StatusIs
from jgpu.wire.reports.changes import changes
from jgpu.wire.reports.report import DeviceReport, Report, SessionReport

__all__ = ["Watchers"]

_LOG = logging.getLogger("jgpu.broker")
#: between two times that the same watcher is told something
_LEAST_S: Final = 0.1
#: for so long a watcher may leave unread what they were told
_PATIENCE_S: Final = 30.0
#: watchers in all, and of one identity
_SHARE: Final = Share(64, 16)

_Row = TypeVar("_Row", SessionReport, DeviceReport)


class _Watcher:
    """One connection; `told` is what its reader knows once it has read everything."""

    def __init__(self, visit: Visit, writer: FrameWriter, told: Report) -> None:
        self.visit = visit
        self.writer = writer
        self.told = told
        #: what the socket did not take yet
        self.unsent = b""
        #: when it was given the message that it has not taken
        self.since = 0.0

    def frame(self, message: msgspec.Struct) -> bytes:
        """The message as bytes."""
        return self.writer.encode(message, 1)


class Watchers:
    """All watchers of a broker; on its event loop. `run` is the task."""

    def __init__(
        self,
        viewer: Callable[[Visit], Viewer],
        report: Callable[[Viewer], Report],
        follow: Callable[[bool], None],
    ) -> None:
        """`report` says what is known now; `follow` is told whether anybody watches."""
        self._viewer = viewer
        self._report = report
        self._follow = follow
        #: by descriptor
        self._watchers: dict[int, _Watcher] = {}
        #: watchers that are being told the whole report
        self._coming = 0
        self._changed = asyncio.Event()

    @property
    def any(self) -> bool:
        """Whether anybody watches."""
        return bool(self._watchers) or self._coming > 0

    def changed(self) -> None:
        """Something may be different; costs nothing where nobody watches."""
        self._changed.set()

    # -- coming and going --------------------------------------------------------------------

    def check_room(self, visit: Visit) -> None:
        """Raise `QuotaExceeded` where this one may not watch as well."""
        own = sum(each.visit.identity == visit.identity for each in self._watchers.values())
        if own >= _SHARE.each or not _SHARE.is_left(own, len(self._watchers)):
            raise QuotaExceeded(
                f"{len(self._watchers)} connections watch the broker already, {own} of them of "
                f"{visit.identity}, who may have {_SHARE.each} of {_SHARE.total}. Close pages or "
                "`jgpu top` where nobody looks."
            )

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Around the admission of a watcher, for which the executor reports."""
        first = not self.any
        self._coming += 1
        if first:
            self._follow(True)
        try:
            yield
        finally:
            self._coming -= 1
            if not self.any:
                self._follow(False)

    async def admit(self, visit: Visit, report: Report) -> None:
        """Tell the whole report, and from then on what changes; the connection is ours then."""
        watcher = _Watcher(visit, FrameWriter(), report)
        frame = watcher.frame(StatusIs(msgspec.json.encode(report)))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(visit.connection, frame)
        self.check_room(visit)  # others came meanwhile
        visit.handed_over = True
        number = visit.connection.fileno()
        self._watchers[number] = watcher
        loop.add_reader(number, self._heard, number)
        self.changed()

    def drop(self, place: str) -> None:
        """The server with this socket has ended: nobody who came by it watches any more."""
        for number, watcher in list(self._watchers.items()):
            if watcher.visit.peer.place == place:
                self._end(number)

    def close(self) -> None:
        """End all."""
        for number in list(self._watchers):
            self._end(number)

    def _heard(self, number: int) -> None:
        """A watcher has gone, or says something, which it has not to."""
        self._end(number)

    def _end(self, number: int) -> None:
        watcher = self._watchers.pop(number)
        loop = asyncio.get_running_loop()
        loop.remove_reader(number)
        loop.remove_writer(number)
        watcher.visit.connection.close()
        if not self.any:
            self._follow(False)

    # -- telling -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._watchers:
                    try:
                        self._tell_all()
                    except Exception:
                        _LOG.exception("Watchers could not be told of a change.")
                    await asyncio.sleep(_LEAST_S)
        finally:
            self.close()

    def _tell_all(self) -> None:
        now = asyncio.get_running_loop().time()
        reports: dict[Viewer, Report] = {}
        #: by what was told before and who looks: those who know the same are told the same
        made: dict[tuple[int, Viewer], tuple[Report, bytes]] = {}
        for number, watcher in list(self._watchers.items()):
            if watcher.unsent:
                if now - watcher.since > _PATIENCE_S:
                    _LOG.info("%s watches and reads nothing; dropped.", watcher.visit.identity)
                    self._end(number)
                continue
            viewer = self._viewer(watcher.visit)
            if viewer not in reports:
                reports[viewer] = self._report(viewer)
            known = id(watcher.told), viewer
            if known not in made:
                made[known] = _difference(watcher.told, reports[viewer])
            watcher.told, data = made[known]
            if data:
                watcher.since = now
                self._send(number, data)

    def _send(self, number: int, data: bytes) -> None:
        watcher = self._watchers[number]
        try:
            watcher.unsent = watcher.frame(StatusChanged(data))
        except FrameError as error:
            _LOG.error("%s cannot be told of a change: %s", watcher.visit.identity, error)
            self._end(number)
            return
        self._write(number)

    def _write(self, number: int) -> None:
        watcher = self._watchers[number]
        loop = asyncio.get_running_loop()
        try:
            sent = watcher.visit.connection.send(watcher.unsent, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(number)
            return
        watcher.unsent = watcher.unsent[sent:]
        if watcher.unsent:
            loop.add_writer(number, self._write, number)
        elif loop.remove_writer(number):
            self.changed()  # what happened while it did not read


def _difference(told: Report, report: Report) -> tuple[Report, bytes]:
    """What is known after it was told, and the telling; empty where nothing changed."""
    report = _unaged(told, report)
    found = changes(told, report)
    return (report, msgspec.json.encode(found)) if found else (told, b"")


def _unaged(told: Report, report: Report) -> Report:
    """The report with those rows as they were told of which nothing but the age is different."""
    sessions = {row.id: row for row in told.sessions}
    devices = {row.name: row for row in told.devices}
    return replace(
        report,
        sessions=tuple(_row(sessions.get(row.id), row, _aged_session) for row in report.sessions),
        devices=tuple(_row(devices.get(row.name), row, _aged_device) for row in report.devices),
    )


def _row(before: _Row | None, row: _Row, aged: Callable[[_Row, _Row], _Row]) -> _Row:
    return before if before is not None and aged(before, row) == row else row


def _aged_session(before: SessionReport, row: SessionReport) -> SessionReport:
    return replace(before, age_seconds=row.age_seconds)


def _aged_device(before: DeviceReport, row: DeviceReport) -> DeviceReport:
    times = {lane.id: lane.running_seconds for lane in row.lanes}
    lanes = tuple(replace(lane, running_seconds=times.get(lane.id, 0.0)) for lane in before.lanes)
    return replace(before, lanes=lanes)
