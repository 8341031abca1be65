"""A client at the level of the wire, and an executor process for it to speak to.

`Executor` plays the control process, `Client` a kernel: it numbers works, reserves arena bytes,
reads replies. Both wait with deadlines, never by sleeping.
"""

import os
import signal
import socket
import sys
import time
from array import array
from collections import deque
from struct import pack, unpack

import msgspec
import processes

from jgpu.broker.flightpage import FlightPage
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.program import (
    Geometry,
    Op,
    Out,
    Param,
    Program,
    Slot,
    View,
    encode_program,
    program_hash,
)

DEADLINE_S = 30.0
#: importing torch where other tests leave little of the machine
START_S = 100.0
TOKEN = bytes(range(16))


class Stream:
    """Frames over a blocking socket, with a deadline."""

    def __init__(self, sock, union):
        self.socket = sock
        self.reader = FrameReader(union)
        self.writer = FrameWriter()
        self.inbox = deque()
        self.ended = False

    def send(self, message, descriptors=()):
        frame = self.writer.encode(message, self.reader.seen)
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
            sent = self.socket.sendmsg([frame], rights)
            self.socket.sendall(frame[sent:])
        else:
            self.socket.sendall(frame)

    def send_all(self, messages):
        self.socket.sendall(
            b"".join(self.writer.encode(message, self.reader.seen) for message in messages)
        )

    def fill(self, timeout_s=DEADLINE_S):
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(1 << 20)
        except (ConnectionError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                raise
            data = b""
        finally:
            self.socket.settimeout(None)
        if not data:
            self.ended = True
            raise EOFError
        self.inbox.extend(self.reader.feed(data))
        self.writer.check_acknowledged(self.reader.peer_seen)

    def receive(self, kind=object, timeout_s=DEADLINE_S):
        """The next message of a kind; others before it are returned by `seen`."""
        deadline = time.monotonic() + timeout_s
        while True:
            while self.inbox:
                message = self.inbox.popleft()
                if isinstance(message, kind):
                    return message
                self.passed(message)
            self.fill(max(0.001, deadline - time.monotonic()))

    def passed(self, message):
        """A message that nobody waited for."""


class Executor:
    """An executor process; a context manager."""

    def __init__(
        self, device="cpu", preexec=None, program=("-m", "jgpu.broker.executor"), **settings
    ):
        ours, theirs = socket.socketpair()
        text = msgspec.json.encode(ExecutorSettings(device=device, **settings)).decode()
        #: what the executor says it does
        self.page = FlightPage.create()
        given = [theirs.fileno(), self.page.descriptor]
        command = [sys.executable, *program, text, *map(str, given)]
        self.process = processes.start(command, pass_fds=given, preexec_fn=preexec)
        theirs.close()
        self.control = Stream(ours, m.ExecutorNotice)
        self.control.passed = self.notice
        self.notices = []
        self.clients = []
        self.sessions = 0
        try:
            self.ready = self.control.receive(m.ExecutorReady | m.ExecutorFailed, START_S)
        except BaseException:
            self.process.end(signal.SIGKILL)
            self.__exit__()
            raise

    def notice(self, message):
        self.notices.append(message)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.page.close()
        for client in self.clients:
            client.close()
        self.control.socket.close()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.end(signal.SIGKILL)

    def connect(self, user="user1", arena=1 << 20, **adopt):
        self.sessions += 1
        ours, theirs = socket.socketpair()
        client = Client(ours, Arena.create(arena), self.sessions)
        self.control.send(
            m.Adopt(self.sessions, user, "", arena, TOKEN, **adopt),
            [theirs.fileno(), client.arena.descriptor],
        )
        # The control process keeps a duplicate.
        client.duplicate = theirs
        self.clients.append(client)
        if not adopt.get("epoch"):
            client.ready = client.receive(m.Ready)
        return client

    def report(self):
        self.control.send(m.AskReport(1))
        return self.control.receive(m.ReportIs)

    def ended(self, session):
        """The SessionEnded of a session."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for notice in self.notices:
                if isinstance(notice, m.SessionEnded) and notice.session == session:
                    return notice
            self.notices.append(self.control.receive(m.SessionEnded))
        raise TimeoutError


class Client(Stream):
    """One session."""

    def __init__(self, sock, arena, session):
        super().__init__(sock, m.ExecutorMessage)
        self.arena = arena
        self.session = session
        self.work = 0
        self.request = 0
        self.buffers = 0
        self.failures = []
        self.learnt = []
        self.waits = []
        self.unknown = []
        self.defined = set()

    def passed(self, message):
        if isinstance(message, m.Failed):
            self.failures.append(message)
        elif isinstance(message, m.Learnt):
            self.learnt.append(message)
        elif isinstance(message, m.Waiting):
            self.waits.append(message)
        elif isinstance(message, m.DefinitionUnknown):
            self.unknown.append(message)
        elif isinstance(message, m.Ack):
            self.arena.ring.release(message.arena)
        elif isinstance(message, m.Refused):
            raise AssertionError(message.text)

    def next_work(self):
        self.work += 1
        return self.work

    def next_request(self):
        self.request += 1
        return self.request

    def new(self, count=1):
        first = self.buffers + 1
        self.buffers += count
        return first

    # -- conversations ---------------------------------------------------------------------

    def upload(self, data, piece=32 << 10):
        """A new buffer with these bytes, inline in pieces."""
        buffer = self.new()
        for offset in range(0, len(data), piece) or [0]:
            part = data[offset : offset + piece]
            self.send(m.Upload(self.next_work(), buffer, len(data), offset, data=part))
        return buffer

    def upload_arena(self, data, piece=256 << 10):
        """The same through the arena, waiting for room."""
        buffer = self.new()
        for offset in range(0, len(data), piece):
            part = data[offset : offset + piece]
            while (place := self.arena.ring.reserve(len(part))) is None:
                self.passed(self.receive(m.Ack))
            self.arena.upload(place[0], len(part))[:] = part
            self.send(
                m.Upload(
                    self.next_work(), buffer, len(data), offset, arena=place[0], count=len(part)
                )
            )
        return buffer

    def floats(self, *values):
        return self.upload(pack(f"{len(values)}f", *values))

    def ask(self, buffer, count, offset=0, arena=None):
        """Send a Download; returns its request."""
        request = self.next_request()
        self.send(m.Download(self.next_work(), request, buffer, offset, count, arena))
        return request

    def download(self, buffer, count, offset=0, arena=None):
        """The bytes, or the Failed."""
        request = self.ask(buffer, count, offset, arena)
        reply = self.reply(request)
        if isinstance(reply, m.Failed):
            return reply
        return bytes(self.arena.download(arena, count)) if arena is not None else reply.data

    def reply(self, request):
        """The answer to a request."""
        while True:
            message = self.receive(
                m.Downloaded | m.Synced | m.Probed | m.RngIs | m.MemoryIs | m.Failed
            )
            if message.request == request:
                return message
            self.passed(message)

    def read_floats(self, buffer, count):
        return unpack(f"{count}f", self.download(buffer, 4 * count))

    def define(self, program):
        data = encode_program(program)
        key = program_hash(data)
        if key not in self.defined:
            self.send(m.Define(data))
            self.defined.add(key)
        return key

    def run(self, program, inputs, params=(), live=None, **kwargs):
        """Run; returns the number of the first fresh buffer."""
        key = self.define(program)
        first = self.new(program.fresh)
        if live is None:
            live = ((1 << program.fresh) - 1).to_bytes((program.fresh + 7) // 8, "little")
        self.send(m.Run(self.next_work(), key, tuple(inputs), first, live, params=params, **kwargs))
        return first

    def sync(self):
        request = self.next_request()
        self.send(m.Sync(self.next_work(), request))
        return self.reply(request)

    def memory(self):
        request = self.next_request()
        self.send(m.Memory(request))
        return self.reply(request)

    def cancel(self, since=0):
        request = self.next_request()
        self.send(m.Cancel(request, since))
        return request

    def close(self):
        """End, as a process does."""
        self.socket.close()
        self.duplicate.close()
        if self.arena is not None:
            self.arena.close()
            self.arena = None


# -- programs ----------------------------------------------------------------------------------


def vector(length, dtype="float32"):
    return Geometry(dtype, (length,), (1,))


def program(inputs, ops, geometries, params=(), views=None):
    views = tuple(View(k) for k in range(len(geometries))) if views is None else views
    return Program(inputs, params, tuple(geometries), views, tuple(ops))


def add(length=4):
    """c = a + b"""
    return program(
        2, [Op("aten::add.Tensor", (Slot(0, 0), Slot(1, 0)), {}, (Out(2, 0),))], [vector(length)]
    )


def scale(length=4):
    """b = a * p0"""
    return program(
        1,
        [Op("aten::mul.Tensor", (Slot(0, 0), Param(0, "float")), {}, (Out(1, 0),))],
        [vector(length)],
        ("float",),
    )


def rows_sum(length=4):
    """c = a[p0 : p0 + length] + a[p1 : p1 + length]"""
    views = [View(0, 0), View(0, 1), View(0)]
    op = Op("aten::add.Tensor", (Slot(0, 0), Slot(0, 1)), {}, (Out(1, 0),))
    return program(1, [op], [vector(length)], ("int", "int"), views)


def add_in_place(length=4):
    """a += b, in place"""
    return program(
        2, [Op("aten::add_.Tensor", (Slot(0, 0), Slot(1, 0)), {}, (Out(-1, 0),))], [vector(length)]
    )


def chain(length=4, ops=8):
    """b = a + a; c = b + b; ..."""
    return program(
        1,
        [
            Op("aten::add.Tensor", (Slot(k, 0), Slot(k, 0)), {}, (Out(k + 1, 0),))
            for k in range(ops)
        ],
        [vector(length)],
    )


def matmul(size=512, ops=1):
    """b = a @ a; c = b @ b; ..."""
    square = Geometry("float32", (size, size), (size, 1))
    return program(
        1,
        [
            Op("aten::mm.default", (Slot(k, 0), Slot(k, 0)), {}, (Out(k + 1, 0),))
            for k in range(ops)
        ],
        [square],
    )


def bad_index(length=4):
    """b = a[i], with an index that only the device can judge"""
    return program(
        2,
        [
            Op(
                "aten::index_select.default",
                (Slot(0, 0), 0, Slot(1, 1)),
                {},
                (Out(2, 0),),
            )
        ],
        [vector(length), vector(length, "int64")],
    )


def alive(pid):
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
