"""Random bytes and random well-formed messages at the control socket.

The broker lives on, forgets every connection, and a neighbour's session never notices.
"""

import os
import socket
from pathlib import Path

import msgspec
import pytest
from control_client import RunningBroker, until
from hypothesis import HealthCheck, given, settings, strategies

from jgpu.wire import limits
from jgpu.wire.framing import HEADER, MAGIC, FrameWriter
from jgpu.wire.messages import (
    Adopt,
    AskReport,
    AskStatus,
    CellStarted,
    Hello,
    LeaveSeat,
    Quit,
    Ready,
    Resynced,
    Runtime,
    Sync,
    Synced,
    TakeSeat,
    Welcome,
)

MANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TEXT = strategies.text(max_size=300)
NUMBER = strategies.integers(-(1 << 63), (1 << 64) - 1)
RUNTIME = strategies.builds(Runtime, TEXT, TEXT, TEXT)
MESSAGE = strategies.one_of(
    strategies.builds(
        Hello,
        protocol=NUMBER | strategies.just(limits.PROTOCOL),
        runtime=RUNTIME | strategies.just(Runtime("3", "2.13.0", "")),
        pid=NUMBER,
        ticket=TEXT,
        user=TEXT,
        label=TEXT,
        kernel_id=TEXT,
        arena=NUMBER,
    ),
    strategies.builds(TakeSeat, NUMBER | strategies.just(limits.PROTOCOL), TEXT, TEXT, TEXT),
    strategies.builds(LeaveSeat, TEXT, strategies.booleans()),
    strategies.builds(AskStatus),
    # what other conversations know is unknown here
    strategies.builds(Adopt, NUMBER, TEXT, TEXT, NUMBER, strategies.binary()),
    strategies.builds(AskReport, NUMBER),
    strategies.builds(CellStarted, TEXT),
    strategies.builds(Quit),
    strategies.builds(Resynced, NUMBER),
)


class Neighbour:
    """A broker with one session that must never notice anything."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.client = broker.client()
        assert isinstance(self.client.hello(), Welcome)
        assert isinstance(self.client.receive(), Ready)
        self.requests = 0
        self.open = self.count()

    def count(self):
        """Open descriptors of the broker."""
        return len(list(Path(f"/proc/{self.broker.process.pid}/fd").iterdir()))

    def notices_nothing(self):
        self.requests += 1
        self.client.send(Sync(1, self.requests))
        assert self.client.receive() == Synced(self.requests)
        assert self.broker.process.poll() is None

    def attack(self, data, descriptors=()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attacker:
            attacker.settimeout(10)
            attacker.connect(str(self.broker.address.path))
            try:
                if descriptors:
                    socket.send_fds(attacker, [data], descriptors)
                else:
                    attacker.sendall(data)
                attacker.shutdown(socket.SHUT_WR)
                while attacker.recv(65536):
                    pass
            except OSError:
                pass


@pytest.fixture
def neighbour(start_broker):
    broker = start_broker(config=["c.JgpuBroker.handshake_timeout = 3.0"]).ready()
    return Neighbour(broker)


@MANY
@given(data=strategies.binary(max_size=2000), framed=strategies.booleans())
def test_random_bytes(neighbour, data, framed):
    if framed:
        data = HEADER.pack(MAGIC, len(data), 1, 0, 0) + data
    neighbour.attack(data)
    neighbour.notices_nothing()


@MANY
@given(message=MESSAGE, descriptors=strategies.integers(0, 6))
def test_random_messages_with_random_descriptors(neighbour, message, descriptors):
    try:
        data = FrameWriter().encode(message, 0)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):
        return
    with open(os.devnull, "rb") as null:
        neighbour.attack(data, [null.fileno()] * descriptors)
    neighbour.notices_nothing()


@MANY
@given(
    length=strategies.integers(0, (1 << 32) - 1),
    sequence=strategies.integers(0, (1 << 64) - 1),
    checksum=strategies.integers(0, (1 << 32) - 1),
    payload=strategies.binary(max_size=100),
)
def test_random_headers(neighbour, length, sequence, checksum, payload):
    neighbour.attack(HEADER.pack(MAGIC, length, sequence, 0, checksum) + payload)
    neighbour.notices_nothing()


@MANY
@given(cut=strategies.integers(0, 200))
def test_a_hello_cut_anywhere(neighbour, cut):
    hello = Hello(limits.PROTOCOL, Runtime("3", "2.13.0", ""), 1, label="x" * 50)
    neighbour.attack(FrameWriter().encode(hello, 0)[:cut])
    neighbour.notices_nothing()


def test_no_descriptor_is_left_behind(neighbour):
    hello = Hello(limits.PROTOCOL, Runtime("3", "2.13.0", ""), 1)
    with open(os.devnull, "rb") as null:
        for descriptors in (0, 1, 2, 4, 5, 9):
            neighbour.attack(FrameWriter().encode(hello, 0), [null.fileno()] * descriptors)
            neighbour.attack(b"garbage" * 10, [null.fileno()] * descriptors)
    until(lambda: neighbour.count() <= neighbour.open, "all descriptors closed")
    neighbour.notices_nothing()


def test_deeply_nested_and_huge_payloads_are_frames_errors(neighbour):
    from zlib import crc32

    for payload in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        header = HEADER.pack(MAGIC, len(payload), 1, 0, crc32(payload))
        neighbour.attack(header + payload)
        neighbour.notices_nothing()
