"""Downloads answered as soon as their bytes are there.

A notebook that reads its loss after the optimizer's step asks for a number that was computed before
most of that step ran. Such a download is answered when the last work that writes its buffer is
over; the rest of the step then runs while Python records the next iteration. What the client reads
is the same, for nothing that is still to run writes the buffer.

Only where the host reads the device's memory itself (`cpu`): on `cuda` a copy takes its place in
the stream.

Invariant: every download is answered exactly once, by whichever thread takes it from its writer's
`followers`.
"""

from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.transfers import DownloadWork

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["FOLLOWERS", "EarlyDownload", "answer_early", "last_writer", "may_answer_early"]

#: downloads that may follow one work; what comes then takes its place in the order of works
FOLLOWERS: Final = 64


def may_answer_early(session: "ExecutorSession") -> bool:
    """Whether downloads of this session may leave the order of its works now."""
    return bool(
        session.device.reads_directly
        and session.faults is None
        and not session.life.is_over
        and not session.queue.cancel_requests
        and not session.lost
        and not session.movement.is_copying
        and not session.table.spilled
    )


class EarlyDownload:
    """A download that follows the last writer of its buffer, in no lane."""

    def __init__(self, work: DownloadWork, device: Device) -> None:
        self._work = work
        self._device = device

    def answer(self) -> None:
        """Reply; on the pump, or on the lane's thread that ran the writer."""
        if not self._work.session.life.is_over:
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
