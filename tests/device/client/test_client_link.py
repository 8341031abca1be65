"""The link keeps its stream whole, though a signal's handler raises at any instruction of it."""

import socket
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))

from striking import Struck, not_striking, striking

from jgpu.device import interrupts
from jgpu.device.client import link as links
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameReader, FrameWriter

#: ids that make a frame of more than the socket takes at once
_MANY = tuple(range(4_000))


@pytest.fixture(params=["as it is", "in Python"])
def quiet(request, monkeypatch):
    """Either form of the blocks that put handlers off."""
    if request.param == "in Python":
        for module in (interrupts, links):
            monkeypatch.setattr(module, "quiet", interrupts.QuietInPython)
    return interrupts.quiet


class End:
    """The broker's end of a socket; it hears when it is asked to, and when the client waits."""

    def __init__(self, stream):
        self.stream = stream
        self.heard = []
        #: waits in which the client's socket was full
        self.waits = 0
        self._reader, self._writer = FrameReader(m.ClientMessage), FrameWriter()

    def hear(self):
        try:
            while data := self.stream.recv(1 << 20):
                self.heard += [each.buffers[0] for each in self._reader.feed(data)]
        except BlockingIOError:
            pass

    def all_heard(self):
        """What was heard since the last time."""
        self.hear()
        heard, self.heard = self.heard, []
        return heard

    def say(self, text, said):
        with not_striking():
            self.stream.sendall(self._writer.encode(m.Notice(text), self._reader.seen))
            said.append(text)

    def wait(self, poll, timeout, after, nap):
        self.waits += 1
        with not_striking():
            self.hear()
        return poll(0) or poll(timeout)


@pytest.fixture
def pair():
    """A link, and the other end of it."""
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the system's least, some kilobytes
    near.setblocking(False)
    far.setblocking(False)
    made = links.Link(near, Arena.create(1 << 16), m.Welcome(7, "user1", b"0123456789abcdef"))
    made._wakefulness = end = End(far)
    yield made, end
    made.close()
    far.close()


def test_a_handler_that_raises_at_any_instruction_tears_no_frame(pair, quiet):
    link, end = pair
    struck, at = 0, 0
    while True:
        at += 1
        queued, said = [], []
        end.say("first", said)
        with striking(at) as counted:
            try:
                for number in (2 * at, 2 * at + 1):
                    with quiet():
                        link.queue(m.Free((number, *_MANY)))
                        queued.append(number)
                    link.flush()
                end.say("second", said)
                link.receive(1.0)
            except Struck:
                struck += 1
        assert quiet.depth() == 0
        link.flush()
        link.receive()
        assert [each.text for each in link.inbox] == said
        assert end.all_heard() == queued
        link.inbox.clear()
        if counted[0] < at:
            break
    assert struck == at - 1 > 300
    assert end.waits > at
