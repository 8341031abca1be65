"""An executor that computes nothing: it takes sessions over, answers Sync, reports, and misbehaves
when told to, by SCRIPT in its environment or by a cell's label from a client.

Run as the control process runs the real one: settings as JSON, then the descriptor.
"""

import array
import json
import os
import selectors
import signal
import socket
import sys
import time

from jgpu.wire.framing import FrameReader, FrameWriter, marker
from jgpu.wire.messages import (
    Adopt,
    AskReport,
    AskStop,
    CellStarted,
    ClientMessage,
    Detach,
    DeviceFacts,
    Drain,
    ExecutorFailed,
    ExecutorOrder,
    ExecutorReady,
    Follow,
    Notice,
    Quit,
    Ready,
    ReportIs,
    Resync,
    Runtime,
    SessionEnded,
    SetUser,
    Sync,
    Synced,
    Tell,
)
from jgpu.wire.reports.report import LaneReport, SessionReport


class Stream:
    def __init__(self, connection, union):
        self.socket = connection
        self.reader = FrameReader(union)
        self.writer = FrameWriter()
        self.descriptors = []

    def send(self, message):
        self.socket.sendall(self.writer.encode(message, self.reader.seen))

    def receive(self):
        data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(64))
        for _, _, raw in ancillary:
            numbers = array.array("i")
            numbers.frombytes(raw)
            self.descriptors.extend(numbers)
        return list(self.reader.feed(data)) if data else None


class Executor:
    def __init__(self, settings, descriptor):
        self.settings = settings
        self.control = Stream(socket.socket(fileno=descriptor), ExecutorOrder)
        self.facts = DeviceFacts(settings["device"], "scripted device", settings["capacity"] or 1)
        self.sessions = {}
        self.dies_at_report = False
        self.followed = False
        #: what whoever follows was told last
        self.told = None
        self.draining = False
        #: sessions that say that an iteration of theirs is under way
        self.under_way = set()
        #: device-seconds of sessions that said how many they use
        self.used = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.control.socket, selectors.EVENT_READ, None)

    def run(self):
        script = os.environ.get("SCRIPT", "")
        if script == "garbage":
            self.control.socket.sendall(b"this is no frame, however long it may be, is it? no.")
            time.sleep(60)
        if script == "fail" or (script == "fail-cuda" and self.facts.kind == "cuda"):
            self.control.send(ExecutorFailed("The self-test gave a wrong number."))
            sys.exit(1)
        if script == "die":
            sys.exit(7)
        if script.startswith("slow:"):
            wait_for(script.removeprefix("slow:"))
        schema = os.environ.get("SCRIPT_SCHEMA", "")
        runtime = Runtime("3", os.environ.get("SCRIPT_TORCH", ""), schema)
        self.control.send(ExecutorReady(self.facts, os.getpid(), runtime))
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    self.control_says()
                elif key.data in self.sessions:
                    self.client_says(key.data)
            report = self.report(0)
            if self.followed and report != self.told:
                self.told = report
                self.control.send(report)

    def control_says(self):
        messages = self.control.receive()
        if messages is None:
            sys.exit(0)
        for message in messages:
            match message:
                case Adopt():
                    self.adopt(message)
                case SetUser():
                    self.note(message)
                case Tell():
                    self.sessions[message.session].send(Notice(message.text))
                case Detach():
                    self.end(message.session, message.text)
                case AskReport():
                    if self.dies_at_report:
                        sys.exit(7)
                    self.note_asked()
                    self.control.send(self.report(message.request))
                case Drain():
                    self.draining = message.on
                case Follow():
                    self.followed = message.on
                case AskStop():
                    if os.environ.get("SCRIPT") != "stubborn":
                        sys.exit(0)

    def adopt(self, order):
        connection, arena = self.control.descriptors[:2]
        del self.control.descriptors[:2]
        assert os.fstat(arena).st_size == order.arena
        os.close(arena)
        self.note(order)
        stream = Stream(socket.socket(fileno=connection), ClientMessage)
        stream.socket.setblocking(True)
        self.sessions[order.session] = stream
        self.selector.register(stream.socket, selectors.EVENT_READ, order.session)
        try:
            if order.epoch:
                stream.socket.sendall(marker(order.token, order.epoch))
                stream.send(Resync(order.epoch, lost=True, text="The executor ended."))
            else:
                stream.send(Ready(self.facts, 0))
        except OSError:
            self.end(order.session, "end of stream")

    def client_says(self, number):
        stream = self.sessions[number]
        try:
            messages = stream.receive()
        except OSError:
            messages = None
        if messages is None:
            self.end(number, "end of stream")
            return
        for message in messages:
            match message:
                case Sync():
                    stream.send(Synced(message.request))
                case CellStarted(label="crash"):
                    os.kill(os.getpid(), signal.SIGKILL)
                case CellStarted(label="is under way"):
                    self.under_way.add(number)
                case CellStarted(label="is over"):
                    self.under_way.discard(number)
                case CellStarted(label="die at the next report"):
                    self.dies_at_report = True
                case CellStarted(label=label) if label.startswith("uses "):
                    used = self.used.get(number, 0.0)
                    self.used[number] = used + float(label.removeprefix("uses "))
                case Quit():
                    self.end(number, "")
                    return

    def end(self, number, text):
        stream = self.sessions.pop(number, None)
        if stream is not None:
            self.selector.unregister(stream.socket)
            stream.socket.close()
            self.control.send(SessionEnded(number, self.used.pop(number, 1.5), text))

    def note(self, order):
        """Append what was ordered to a file, for the test."""
        if path := os.environ.get("SCRIPT_ORDERS"):
            with open(path, "a") as stream:
                stream.write(repr(order) + "\n")

    def note_asked(self):
        """Append how many sessions a report is asked of to a file, for the test."""
        if path := os.environ.get("SCRIPT_REPORTS"):
            with open(path, "a") as stream:
                stream.write(f"{len(self.sessions)}\n")

    def report(self, request):
        rows = tuple(
            SessionReport(
                id=number,
                state="running",
                lane=0,
                resident_bytes=100,
                ephemeral_bytes=20,
                spilled_bytes=3,
                device_seconds=self.used.get(number, 0.5),
                iterations=7,
                waits_for=("user1",),
                cell="cell",
            )
            for number in self.sessions
        )
        first = min(self.sessions, default=None)
        lane = LaneReport(id=0, capacity_bytes=1000, sessions=tuple(self.sessions), running=first)
        under_way = tuple(sorted(self.under_way))
        return ReportIs(
            request, (lane,), rows, 123, "fair", 2, draining=self.draining, under_way=under_way
        )


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


if __name__ == "__main__":
    Executor(json.loads(sys.argv[1]), int(sys.argv[2])).run()
