"""A client of an earlier version, as a recording of what it sent: made, and played to a broker.

`python tests/e2e/recorded_client.py FILE` records what the jgpu that is imported sends while it
trains; run it with the last commit of a version before the version changes, and keep the file with
that version's golden frames.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
from pathlib import Path

import msgspec

from jgpu.wire.framing import HEADER, FrameWriter

__all__ = ["Played", "play"]

#: Trains, and prints the weights; small enough that all bytes travel in frames.
LESSON = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4).cuda()
for step in range(3):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    loss.item()
weights = model.weight.detach().cpu().tolist()
"""
_DEADLINE_S = 30.0


class Played:
    """What a broker and its executor answered: messages as arrays, each with its name first."""

    def __init__(self, stream):
        self.messages = []
        self._stream = stream
        self._data = b""

    def read(self):
        """The next message, as it came."""
        while len(self._data) < HEADER.size or len(self._data) < self._end:
            some = self._stream.recv(1 << 16)
            assert some, f"the broker hung up after {self.messages[-3:]}"
            self._data += some
        payload, self._data = self._data[HEADER.size : self._end], self._data[self._end :]
        self.messages.append(msgspec.msgpack.decode(payload))
        return self.messages[-1]

    @property
    def _end(self):
        return HEADER.size + HEADER.unpack_from(self._data)[1]

    def named(self, *names):
        """Those of these names."""
        return [each for each in self.messages if each[0] in names]


def play(path, recorded, runtime):
    """Send a recording to the broker at `path`, and read until all was answered.

    The recorded client stands for one whose torch is of this `runtime`.
    """
    with contextlib.ExitStack() as open_:
        stream = open_.enter_context(socket.socket(socket.AF_UNIX))
        stream.settimeout(_DEADLINE_S)
        stream.connect(str(path))
        frames = FrameWriter()
        hello, *sent = [bytes.fromhex(each) for each in recorded["sent"]]
        fields = msgspec.msgpack.decode(hello)
        fields[2], fields[3] = msgspec.to_builtins(runtime), os.getpid()
        opening = frames.encode(msgspec.Raw(msgspec.msgpack.encode(fields)), 0)
        arena = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
        open_.callback(os.close, arena)
        os.ftruncate(arena, fields[-1])
        fcntl.fcntl(arena, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        socket.send_fds(stream, [opening], [arena])
        played = Played(stream)
        if played.read()[0] == "Welcome":
            frames = FrameWriter()  # whose peer is an executor from here on
            for payload in sent:
                stream.sendall(frames.encode(msgspec.Raw(payload), 0))
            while len(played.named("Downloaded")) < len(recorded["downloaded"]):
                played.read()
                assert not played.named("Refused", "Failed", "Resync"), played.messages[-1]
        return played


def record(file):
    """Train on a broker of one's own, and write what was sent."""
    import torch  # noqa: F401 - first, or it would load half of jgpu.device itself

    from jgpu.device.client import link

    sent, received = [], []
    encode, opened = FrameWriter.encode, link.Link.receive

    def kept(writer, message, seen):
        sent.append(msgspec.msgpack.encode(message).hex())
        return encode(writer, message, seen)

    def watched(self, timeout_s=0.0):
        before = len(self.inbox)
        opened(self, timeout_s)
        received.extend(list(self.inbox)[before:])

    FrameWriter.encode, link.Link.receive = kept, watched
    space = {}
    exec(LESSON, space)
    downloaded = [each.data.hex() for each in received if type(each).__name__ == "Downloaded"]
    hello = msgspec.msgpack.decode(bytes.fromhex(sent[0]))
    hello[3:] = [1, "", "", "lesson", "kernel", *hello[8:]]  # nothing of whoever recorded it
    sent[0] = msgspec.msgpack.encode(hello).hex()
    made = {"sent": sent, "downloaded": downloaded, "weights": space["weights"]}
    Path(file).write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1])
