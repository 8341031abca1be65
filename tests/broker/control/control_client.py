"""A client made of `jgpu.wire` alone, and a handle on a real broker process.

As a program (`control_client.py SOCKET TICKET MODE`) it opens a session, says "ready" and stays;
MODE "fork" forks a child that holds the socket, too, and says its number, "early" does not wait for
the device.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from jgpu.wire import limits
from jgpu.wire.address import Address
from jgpu.wire.arena import Arena
from jgpu.wire.asking import ask
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import (
    AskStatus,
    ControlReply,
    ExecutorMessage,
    Hello,
    Runtime,
    TakeSeat,
)

ARENA = 1 << 20
DEADLINE_S = 15.0


def until(condition, what="the condition"):
    """Poll until `condition()` is true and return its value; fail after a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.005)
    return value


class Client:
    """One connection: Hello and what follows, over a fresh arena."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(address.path))
        self.token = b""
        self.reader = None
        self.writer = FrameWriter()

    def hello(self, *, descriptors=1, **fields):
        fields = {
            "protocol": limits.PROTOCOL,
            "runtime": Runtime("3.11", "2.13.0", ""),
            "pid": os.getpid(),
            "arena": ARENA,
        } | fields
        arena = Arena.create(ARENA)
        frame = FrameWriter().encode(Hello(**fields), 0)
        socket.send_fds(self.socket, [frame], [arena.descriptor] * descriptors)
        arena.close()
        return self.control_reply()

    def control_reply(self):
        reader = FrameReader(ControlReply)
        while data := self.socket.recv(1):  # what follows is the executor's
            for reply in reader.feed(data):
                self.token = getattr(reply, "token", b"")
                self.reader = FrameReader(ExecutorMessage, token=self.token, renumber=True)
                return reply
        return None

    def send(self, message):
        self.socket.sendall(self.writer.encode(message, self.reader.seen))

    def receive(self):
        """The next message, or None at the end of the stream."""
        while True:
            try:
                data = self.socket.recv(1)
            except ConnectionResetError:
                return None
            if not data:
                return None
            for message in self.reader.feed(data):
                return message

    def close(self):
        self.socket.close()


@dataclass
class RunningBroker:
    address: Address
    process: subprocess.Popen
    log: Path
    clients: list = field(default_factory=list)

    @property
    def users(self):
        """Where notebooks come; `address` is the administrators'."""
        users = self.address.path.with_name("broker.sock")
        return Address(users, "environment")

    def ask(self, message, where=None):
        return ask(where or self.address, message, DEADLINE_S)

    def client(self, where=None):
        client = Client(where or self.address)
        self.clients.append(client)
        return client

    def take_seat(self, **fields):
        seat = TakeSeat(limits.PROTOCOL, **({"kernel_id": "kernel"} | fields))
        return self.ask(seat).ticket

    def status(self):
        return json.loads(self.ask(AskStatus()).json)

    def ready(self):
        until(lambda: self.status()["devices"][0]["state"] == "ready", "a ready executor")
        return self

    def stop(self):
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.process.end(signal.SIGKILL)


def main(path, ticket, mode):
    client = Client(Address(Path(path), "environment"))
    client.hello(ticket=ticket)
    if mode != "early":
        client.receive()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if mode == "fork" and (child := os.fork()):
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
