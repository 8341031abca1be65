"""Bytes for the host as soon as they are there: downloads, and values that are told unasked.

A notebook that reads its loss after the optimizer's step asks for a number that was computed before
most of that step ran. Such a download is answered when the last work that writes its buffer is
over; the rest of the step then runs while Python records the next iteration. What the client reads
is the same, for nothing that is still to run writes the buffer.

Where the host reads the device's memory itself (`cpu`) the bytes are read then. On `cuda` they are
copied right behind the writer's ops, so a download follows a work that was not launched yet; else
it takes its place in the order of works.

A value that the client said it will read is told in the midst of the run that computes it, behind
the last op that writes it.

Invariants: every download is answered exactly once, by whichever thread takes it from its writer's
`followers`. No value is sent before the report of a failure that it may follow from: neither what a
failed run left, nor a value of a later run.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from jgpu.broker.executor.devices.base import Device, Port
from jgpu.broker.executor.programs import Buffer, Failure
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.transfers import DownloadWork
from jgpu.wire import limits, messages

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.works.runs import RunWork

__all__ = [
    "FOLLOWERS",
    "EarlyDownload",
    "answer_early",
    "last_writer",
    "may_answer_early",
    "may_follow",
    "own_up",
    "tell",
    "tell_late",
]

#: downloads that may follow one work; what comes then takes its place in the order of works
FOLLOWERS: Final = 64
#: bytes of one that is copied behind its writer's ops
_FEW_BYTES: Final = 64 << 10


def may_answer_early(session: "ExecutorSession") -> bool:
    """Whether downloads of this session may leave the order of its works now."""
    device = session.device
    # Whoever reads the memory itself does not see what was noted of it.
    direct = device.reads_directly and session.faults is None
    return bool(
        (direct or device.launches_ahead)
        and not session.life.is_over
        and not session.queue.cancel_requests
        and not session.lost
        and not session.movement.is_copying
        and not session.table.spilled
    )


def may_follow(session: "ExecutorSession", work: DownloadWork, writer: Work | None) -> bool:
    """Whether a download may follow this last writer of its buffer; None: all are over."""
    if writer is not None and len(writer.followers) >= FOLLOWERS:
        return False
    if session.device.reads_directly:
        return True
    # A copy that is asked for now would lie behind all that is on the stream.
    few = work.message.count <= _FEW_BYTES
    return few and writer is not None and writer.awaits_launch


class EarlyDownload:
    """A download that follows the last writer of its buffer, in no lane."""

    def __init__(self, work: DownloadWork, device: Device) -> None:
        self._work = work
        self._device = device
        #: its bytes are copied behind the writer's ops
        self._begun = False

    def begin(self, port: Port) -> None:
        """The writer was launched: have the bytes copied behind it."""

        def read(buffer: Buffer, offset: int, target: memoryview) -> None:
            port.use([buffer])
            port.read(buffer, offset, target)

        self._begun = True
        self._work.take(read)

    def spoil(self, tainted: dict[int, Failure]) -> None:
        """These buffers held, when the writer was over, what came of a wrong value."""
        self._work.spread(tainted, {})

    def answer(self) -> None:
        """Reply; on the pump, or on the lane's thread that ran the writer."""
        if self._work.session.life.is_over:
            return
        if not self._device.reads_directly:
            self._work.look_again(missed=not self._begun)
        else:
            self._work.take(self._device.read_now)
        self._work.reply()


def answer_early(session: "ExecutorSession", work: DownloadWork, writer: Work | None) -> None:
    """Answer now, or as soon as the last unfinished work that writes the buffer is over."""
    download = EarlyDownload(work, session.device)
    if writer is None:
        download.answer()
        return
    writer.followers.append(download)
    if not writer.over:
        return
    try:  # it ended meanwhile: whoever takes the download answers it
        writer.followers.remove(download)
    except ValueError:
        return
    download.answer()


def last_writer(session: "ExecutorSession", buffer: int) -> Work | None:
    """The last unfinished work that writes a buffer."""
    for works in (session.queue.received, session.queue.offered):
        for work in reversed(works):
            if work.may_write(buffer) and not work.over:
                return work
    return None


# -- values told unasked -------------------------------------------------------------------------


def tell(run: "RunWork", port: Port, slot: int, made: torch.Tensor) -> None:
    """Say what a wanted slot of a run holds, as soon as the ops before are over."""
    storage, session = made.untyped_storage(), run.session
    if storage.nbytes() > limits.WANTED_BYTES:  # some kernels take more than they return
        return
    if made.device != session.device.torch_device:  # it lives on the host
        return
    if session.faults is not None and not session.faults.tell_before(run, port):
        return
    if port.tell(storage, partial(_send_value, run, slot)):
        run.told.add(slot)


def tell_late(run: "RunWork", port: Port) -> None:
    """Say what wanted slots hold that nothing was said of in the midst of the run."""
    session = run.session
    if not session.device.tells:
        return
    for slot in run.message.wanted:
        if slot in run.told:
            continue
        buffer = session.table.buffers.get(run.message.first + slot)
        if buffer is not None and buffer.base is not None:
            tell(run, port, slot, buffer.base)


def own_up(run: "RunWork") -> None:
    """The run is over: wanted slots of which nothing was said have to be asked for."""
    for slot in run.message.wanted:
        if slot not in run.told:
            _send_value(run, slot, b"")


def _send_value(run: "RunWork", slot: int, data: bytes) -> None:
    faults = run.session.faults
    if slot in run.spoiled or (faults is not None and faults.suspected):
        data = b""  # it has to be asked for: whoever asks is told why there is none
    run.session.send(messages.Value(run.message.first + slot, data))
