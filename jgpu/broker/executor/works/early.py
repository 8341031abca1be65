"""Downloads answered as soon as their bytes are there.

A notebook that reads its loss after the optimizer's step asks for a number that was computed before
most of that step ran. Such a download is answered when the last work that writes its buffer is
over; the rest of the step then runs while Python records the next iteration. What the client reads
is the same, for nothing that is still to run writes the buffer.

Where the host reads the device's memory itself (`cpu`) the bytes are read then. On `cuda` they are
copied right behind the writer's ops, so a download follows a work that was not launched yet; else
it takes its place in the order of works.

Invariant: every download is answered exactly once, by whichever thread takes it from its writer's
`followers`.
"""

from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.devices.base import Device, Port
from jgpu.broker.executor.programs import Buffer, Failure
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.transfers import DownloadWork

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession

__all__ = [
    "FOLLOWERS",
    "EarlyDownload",
    "answer_early",
    "last_writer",
    "may_answer_early",
    "may_follow",
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
