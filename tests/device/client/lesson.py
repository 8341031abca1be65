"""A session over a connection in memory, and ops to record in it."""

import torch
from memory_pair import CUDA, Transport

from jgpu.device.client.session import ClientSession
from jgpu.device.geometry import from_wire
from jgpu.device.recording.infer import OpPlan, TensorRef
from jgpu.device.recording.ops import info_of
from jgpu.device.tensor import BufferHandle
from jgpu.wire import program as wire

__all__ = ["ADD", "EMPTY", "NEG", "NEG_", "NONZERO", "Client"]

FOUR = from_wire(wire.Geometry("float32", (4,), (1,)))


def plan_of(op, tensors, outs=(FOUR,)):
    """What an op does that takes so many tensors of four floats, and numbers after them."""
    arguments = tuple(TensorRef(k) for k in range(tensors))
    plan = OpPlan(info_of(op), arguments, {}, (FOUR,) * tensors)
    if outs is not None:
        plan.settle(list(outs))
    return plan


NEG = plan_of(torch.ops.aten.neg.default, 1)
NEG_ = plan_of(torch.ops.aten.neg_.default, 1, outs=(0,))
ADD = plan_of(torch.ops.aten.maximum.default, 2)
EMPTY = plan_of(torch.ops.aten.empty.memory_format, 0)
NONZERO = plan_of(torch.ops.aten.nonzero.default, 1, outs=None)


class Generators:
    """The session's generators, as far as the outbox knows of them."""

    def __init__(self):
        self.forgotten = 0

    def forget_states(self):
        self.forgotten += 1


class Client:
    """A session whose broker is the test."""

    def __init__(self, ready=CUDA, most_ahead=1 << 30):
        """`most_ahead`: ops that may be sent while the test does not say that any is done."""
        self.ready = ready
        #: connections so far
        self.links = []
        self.session = ClientSession(self._connect, Generators())
        self.session.outbox.ahead.most_ops = most_ahead

    def _connect(self):
        link = Transport()
        self.links.append(link)
        if self.ready is not None:
            link.peer.send(self.ready)
        return link

    @property
    def peer(self):
        """The executor's end of the last connection."""
        return self.links[-1].peer

    def sent(self):
        """What was sent since the last time."""
        return self.peer.sent()

    def record(self, plan, *buffers):
        """One op; the buffer that it makes."""
        session = self.session
        made = BufferHandle(16, session.buffers.graveyard)
        session.append(plan, list(buffers), [0] * len(buffers), (made,), [])
        return made

    def upload(self, data=bytes(16)):
        """A buffer with bytes in it, which were sent."""
        made = self.session.upload(data, len(data))
        self.session.poll()
        return made

    def validate(self):
        """Assert what always holds."""
        session = self.session
        for part in (session.connection, session.buffers, session.requests):
            part.validate()
