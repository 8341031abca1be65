"""What only the device can say: sizes that depend on data, what its kernels return, memory."""

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from jgpu.device import flags
from jgpu.device.client.asking import Asker
from jgpu.device.client.outbox import Outbox
from jgpu.device.geometry import InternedGeometry, from_wire
from jgpu.device.recording.infer import OpPlan, TensorRef
from jgpu.device.recording.learnt import LearntGeometry
from jgpu.device.tensor import BufferHandle, new_buffer
from jgpu.wire import messages as m
from jgpu.wire import program as wire

__all__ = ["DeviceQuestions"]


class DeviceQuestions:
    """Asks, and says it in the words of whoever records."""

    def __init__(self, outbox: Outbox, asker: Asker, learnt: LearntGeometry) -> None:
        self._outbox = outbox
        self._asker = asker
        self._learnt = learnt

    def run_alone(
        self, plan: OpPlan, buffers: list[BufferHandle], offsets: list[int], params: list[Any]
    ) -> list[tuple[BufferHandle, InternedGeometry | None]]:
        """Run one op whose output sizes only the data tells; waits for them."""
        outbox = self._outbox
        outbox.cut()
        count = len(plan.info.func._schema.returns)
        outs = tuple(new_buffer(0, outbox.buffers.graveyard) for _ in range(count))
        outbox.open()
        log = outbox.log
        log.entries.append((plan, buffers, offsets, outs, params, log.instruction()))
        learnt = self._asker.wait_for_report(
            lambda ask: outbox.cut(ends_iteration=True, report=ask)
        )
        made: list[tuple[BufferHandle, InternedGeometry | None]] = [
            (buffer, None) for buffer in outs
        ]
        for tensor in learnt.tensors:
            if tensor.geometry is not None:
                buffer = outs[tensor.index]
                geometry = from_wire(tensor.geometry)
                buffer.nbytes = max(geometry.nbytes, tensor.nbytes)
                outbox.buffers.held.add(buffer.id, buffer.nbytes)
                made[tensor.index] = (buffer, geometry)
        return made

    def probe(self, plan: OpPlan, params: Sequence[Any]) -> list[InternedGeometry | None] | None:
        """What the device's own kernel returns for these geometries; one round trip a new key.

        None where it is too large to be tried, and only the run can tell.
        """
        op = _probe_op(plan)
        geometries = tuple(geometry.wire for geometry in plan.geometries)
        numbers = tuple((p.real, p.imag) if type(p) is complex else p for p in params)
        self._learnt.asked += 1
        reply: m.Probed = self._asker.request(
            lambda request: m.Probe(request, op, geometries, numbers, flags.current())
        )
        if reply.error is not None:
            if reply.error[0] == m.TOO_LARGE and not _returns_list(plan):
                return None
            raise _error_of(*reply.error)
        return [None if out is None else from_wire(out) for out in reply.outputs]

    def choose(self, make: Callable[[int], m.ClientMessage]) -> tuple[int, ...]:
        """What the device would do by itself; `make` makes the question. One round trip."""
        reply: m.Chosen = self._asker.request(make)
        if reply.error is not None:
            raise _error_of(*reply.error)
        return reply.numbers

    def state_of_generator(self, index: int) -> bytes:
        """The state of a generator when all that was recorded so far is done."""
        self._outbox.cut()
        reply: m.RngIs = self._asker.request_rest(
            lambda work, request: m.GetRng(work, request, index)
        )
        return reply.state

    def memory(self, *, reset_peak: bool) -> m.MemoryIs:
        """Bytes free, total, used and peak."""
        reply: m.MemoryIs = self._asker.request(lambda request: m.Memory(request, reset_peak))
        return reply


def _probe_op(plan: OpPlan) -> wire.Op:
    def fill(value: Any) -> Any:
        if type(value) is TensorRef:
            return wire.Slot(value.index, value.index)
        return tuple(fill(item) for item in value) if type(value) is tuple else value

    args = tuple(fill(value) for value in plan.args)
    kwargs = {name: fill(value) for name, value in plan.kwargs.items()}
    return wire.Op(plan.info.name, args, kwargs, ())


def _returns_list(plan: OpPlan) -> bool:
    """Whether the number of tensors that are returned is open."""
    return any(str(ret.type) == "List[Tensor]" for ret in plan.info.func._schema.returns)


def _error_of(kind: str, text: str) -> BaseException:
    """The error that the device's kernel raised."""
    found = getattr(builtins, kind, RuntimeError)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        found = RuntimeError
    made: BaseException = found(text)
    return made
