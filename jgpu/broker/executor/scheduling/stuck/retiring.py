"""Giving up a lane that is at a work which does not end; its session has ended.

The lane gives back what it has not begun. Works of the session that has ended go behind the stuck
one again, where they are skipped should it end after all; those of others were never launched, as
far as they can tell, and the scheduler has them launched elsewhere. What is on a stream of `cuda`
does not come back: such a lane can be given up only where nothing of others is behind the stuck
work.

What is not covered: works that lacked memory in their midst. They have begun, and wait for the lane
to which their launch belongs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jgpu.broker.executor.devices.base import Device, LaneJob
from jgpu.broker.executor.scheduling.trace import Stamped
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.states import WorkProgress

__all__ = ["GivenBack", "take_back"]


@dataclass(frozen=True, slots=True)
class GivenBack:
    """What a lane gave back: works of living sessions, and of such as have ended, in order."""

    living: tuple[Work, ...]
    dead: tuple[Work, ...]


def take_back(
    device: Device, sessions: Iterable[ExecutorSession], lane: int, stuck: ExecutorSession
) -> GivenBack | None:
    """Take back what a lane has not begun; None where it is at something else than was thought."""
    jobs = device.take_back(lane)
    taken = [_work(job) for job in jobs]
    keys = {work.key for work in taken}
    left = [
        work
        for session in sessions
        if session.standing.lane == lane
        for work in session.queue.offered
        if work.state is WorkProgress.LAUNCHED and work.key not in keys
        if not (work.waits or work.over)
    ]
    if not left or any(work.session is not stuck for work in left):
        if jobs:
            device.submit(lane, jobs)
        return None
    own = [job for job, work in zip(jobs, taken, strict=True) if work.session is stuck]
    if own:
        device.submit(lane, own)
    others = [work for work in taken if work.session is not stuck]
    for work in reversed(others):
        work.session.unlaunch(work)
    return GivenBack(
        tuple(work for work in others if not work.session.life.has_ended),
        tuple(work for work in others if work.session.life.has_ended),
    )


def _work(job: LaneJob) -> Work:
    work = job.work if isinstance(job, Stamped) else job
    assert isinstance(work, Work)
    return work
