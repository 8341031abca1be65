"""Dispatch messages of the executor and the broker to the parts of the session.

Called one message at a time, with interrupts put off: what raises here ends the wait that took the
message in, and nothing else.
"""

from typing import TYPE_CHECKING, Any

from jgpu import errors
from jgpu.device.client.asking import show_sentence
from jgpu.device.client.connection import BrokerConnection
from jgpu.device.client.notebook.waits import Waits
from jgpu.device.client.outbox import Outbox
from jgpu.device.client.requests import Requests
from jgpu.device.errors import asked_for, from_failure, on_its_line
from jgpu.device.recording.learnt import LearntGeometry
from jgpu.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Arrivals"]


class Arrivals:
    """Hands each message to whom it concerns."""

    def __init__(
        self,
        connection: BrokerConnection,
        outbox: Outbox,
        requests: Requests,
        waits: Waits,
        learnt: LearntGeometry,
    ) -> None:
        self._connection = connection
        self._outbox = outbox
        self._requests = requests
        self._waits = waits
        self._learnt = learnt
        #: the notebook's largest tensors, in words
        self.explain_memory: Callable[[], str] = lambda: ""
        self.handlers: dict[type, Callable[[Any], None]] = {
            m.Ack: self._acknowledged,
            m.Learnt: self._reported,
            m.Failed: self._failed,
            m.Downloaded: self._answered,
            m.Synced: self._answered,
            m.Value: self._value,
            m.Probed: self._answered,
            m.Chosen: self._answered,
            m.RngIs: self._answered,
            m.MemoryIs: self._answered,
            m.DefinitionUnknown: self._definition_unknown,
            m.Ready: connection.take_ready,
            m.Waiting: self._waiting,
            m.WorksDone: self._progressed,
            m.Notice: self._notice,
            m.Resync: self._resync,
            m.Refused: self._refused,
        }

    def _acknowledged(self, message: m.Ack) -> None:
        link = self._connection.link
        if link is not None:
            link.arena.ring.release(message.arena)

    def _answered(self, message: Any) -> None:
        self._requests.answer(message.request, message)

    def _value(self, message: m.Value) -> None:
        self._outbox.buffers.reads.arrive(message.buffer, message.data)

    def _reported(self, message: m.Learnt) -> None:
        if self._requests.awaits_report(message.work):
            self._requests.report(message.work, message)
            return
        compiled = self._outbox.recorder.by_hash.get(message.program)
        if compiled is not None:
            self._learnt.take(compiled.plans, message.tensors)

    def _failed(self, message: m.Failed) -> None:
        place = self._outbox.place_of(message.work, message.op)
        error = from_failure(message, place, self.explain_memory)
        self._outbox.buffers.poison(message.buffers, error)
        if message.request is not None:
            self._requests.answer(message.request, error)
        elif self._requests.awaits_report(message.work):
            raise on_its_line(error)
        elif not isinstance(error, errors.WorkCancelled):  # who interrupts knows of it
            self._requests.fail(error)

    def _definition_unknown(self, message: m.DefinitionUnknown) -> None:
        self._outbox.define_again(message.program)

    def _waiting(self, message: m.Waiting) -> None:
        """Show a notice in the cell if the wait lasts."""
        self._waits.begun(message.waits_for)

    def _progressed(self, message: m.WorksDone) -> None:
        self._outbox.ahead.done(message.work)

    def _notice(self, message: m.Notice) -> None:
        show_sentence(message.text)

    def _resync(self, message: m.Resync) -> None:
        link = self._connection.link
        if link is None:
            return
        link.resync(message.epoch)
        if message.lost:
            text = message.text or "The device was restarted."
            if message.work:
                text += asked_for(self._outbox.place_of(message.work, message.op))
            link.begin_anew()
            self._connection.forget(errors.DeviceLost(text))
        link.queue(m.Resynced(message.epoch))
        link.flush()

    def _refused(self, message: m.Refused) -> None:
        text = f"The broker ended this session: {message.text}"
        raise self._connection.lost(errors.DeviceLost(text))
