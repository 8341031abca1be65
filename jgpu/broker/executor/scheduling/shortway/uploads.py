"""The short way of an upload: a few bytes in its message, all of a new buffer."""

from time import perf_counter
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.memory.hostbytes import quickest, tensor_of
from jgpu.broker.executor.programs import Buffer
from jgpu.broker.executor.scheduling.shortway.way import ShortWay
from jgpu.broker.executor.works.course import Passed
from jgpu.broker.executor.works.transfers import copy_s
from jgpu.broker.flightpage import Kind
from jgpu.wire import messages

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["ShortUploads"]

#: bytes that are copied faster than torch is asked to
_FEW_BYTES: Final = 4096
_UPLOAD: Final = Kind.UPLOAD  # plain: looking into an enumeration takes time


class ShortUploads:
    """Does such uploads."""

    def __init__(self, way: ShortWay) -> None:
        self._way = way
        self._device = way.device
        self._tensor_of = quickest(tensor_of)

    def take(self, session: "ExecutorSession", message: messages.Upload) -> bool:
        """Whether the upload was done; else nothing has happened."""
        way, data, size = self._way, message.data, message.size
        if data is None or len(data) != size or message.offset or not 0 < size <= _FEW_BYTES:
            return False
        if session.queue.outstanding or message.buffer in session.table.buffers:
            return False
        if not way.untold.make_way(session, uploads=True):
            return False
        if not way.is_clear(session, message.work):
            return False
        # The core knows nothing of what rides.
        rides = way.untold.takes_riders
        most = 0 if rides else way.forecasts[session.number].made_bytes + size
        predicted_s = copy_s(size)
        if (port := way.port(session, predicted_s, size, most)) is None:
            return False
        began, begin = way.clock(), perf_counter()
        try:
            made = self._tensor_of(data)
        except (RuntimeError, MemoryError):
            return False
        flight = port.flight
        flight.begin(session.number, message.work, _UPLOAD)
        session.table.add_made((Buffer(message.buffer, made, size),))
        flight.rest()
        took_s = perf_counter() - begin
        self._put_down(session, message, predicted_s, began, took_s, rides=rides)
        return True

    def _put_down(
        self,
        session: "ExecutorSession",
        message: messages.Upload,
        predicted_s: float,
        began: float,
        took_s: float,
        *,
        rides: bool,
    ) -> None:
        """What its having been offered, launched and finished would have left."""
        way, standing = self._way, session.standing
        passed = Passed(message.work, ends_iteration=False)
        way.put_down(session, passed, message.buffer, took_s)
        live = way.forecasts[session.number].note_upload(message.buffer, message.size)
        self._device.note_at_once(standing.lane, little=True)
        if rides:
            standing.riders += 1
            way.untold.ride(took_s)
            return
        standing.riders, standing.at_boundary = 0, False
        claim = live if live <= session.account.capacity else 0
        way.untold.note(session, predicted_s, claim, began, took_s, ends=False, riders=0)
