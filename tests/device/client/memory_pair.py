"""A connection in memory: a client's end, and an executor's that does what the test says.

Messages go through real frames, so that what the wire would refuse is refused here; the arena is a
real one. Where the client would wait, `Peer.script` goes on; a wait with nothing in it fails.
"""

from collections import deque

from jgpu import errors
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameReader, FrameWriter

__all__ = ["CPU", "CUDA", "Peer", "Transport"]

_TOKEN = b"0123456789abcdef"
#: as a CUDA device's executor says it, which tells no values unasked
CUDA = m.Ready(m.DeviceFacts("cuda", "Memory", 1 << 40), 0)
#: one that does
CPU = m.Ready(m.DeviceFacts("cpu", "Memory", 1 << 40), 0)


class Peer:
    """The executor's end."""

    def __init__(self):
        #: steps, each taken when the client waits and nothing is there
        self.script = deque()
        #: bytes that the client's socket takes before it is full
        self.takes = 1 << 60
        #: why the connection is over
        self.over = None
        self._bytes = bytearray()
        self._writer = FrameWriter()
        self._reader = FrameReader(m.ClientMessage)
        self._to_client = bytearray()

    def sent(self):
        """Messages that came from the client since the last time."""
        data, self._bytes = self._bytes, bytearray()
        return list(self._reader.feed(data))

    def send(self, *messages):
        """Say something, to be taken in when the client looks."""
        for message in messages:
            self._to_client += self._writer.encode(message, self._reader.seen)

    def then(self, *steps):
        """What happens when the client waits: messages, or functions that are called."""
        self.script.extend(steps)

    def hang_up(self):
        """The connection ends, after what was said."""
        self.over = "The connection to the GPU broker ended."


class Transport:
    """The client's end."""

    def __init__(self, arena_bytes=1 << 20):
        self.peer = Peer()
        self.arena = Arena.create(arena_bytes)
        self.welcome = m.Welcome(7, "user1", _TOKEN)
        self.inbox = deque()
        self.sent = 0
        self.waited = 0.0
        self.is_closed = False
        self._writer = FrameWriter()
        self._reader = FrameReader(m.ExecutorMessage, token=_TOKEN, renumber=True)
        self._out = bytearray()

    def queue(self, message):
        assert not self.is_closed
        self._out += self._writer.encode(message, self._reader.seen)

    def send_now(self):
        if self.peer.over and not self.peer._to_client:
            raise errors.DeviceLost(self.peer.over)
        count = min(len(self._out), self.peer.takes)
        self.peer.takes -= count
        self.peer._bytes += self._out[:count]
        del self._out[:count]
        self.sent += count
        return not self._out

    def flush(self):
        if self._out and not self.send_now():
            self.peer.takes = 1 << 60  # a while later it reads again
            self.send_now()

    def receive(self, timeout_s=0.0):
        assert not self.is_closed
        peer = self.peer
        if timeout_s and not peer._to_client and not peer.over:
            assert peer.script, "the client waits, and nobody will answer"
            step = peer.script.popleft()
            step() if callable(step) else peer.send(step)
        data, peer._to_client = peer._to_client, bytearray()
        self.inbox.extend(self._reader.feed(data))
        if peer.over and not self.inbox:
            raise errors.DeviceLost(peer.over)

    def resync(self, epoch):
        self._out.clear()
        self.peer._bytes.clear()

    def begin_anew(self):
        self._writer = FrameWriter()
        self.peer._reader = FrameReader(m.ClientMessage)
        self.arena.ring.begin_anew()

    def close(self):
        assert not self.is_closed
        self.is_closed = True
        self.arena.close()
