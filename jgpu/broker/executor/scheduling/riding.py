"""Works so little that they just follow the one before them in its lane.

What a wait costs is mostly decisions; there is nothing to decide about a few bytes behind a program
that is in flight. Only a few may ride, or they would hold the lane unseen.
"""

from typing import Final

from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.runs import RunWork

__all__ = ["may_ride"]

#: works that may follow another unseen, and the longest that they may take, in seconds
_RIDERS: Final = 4
_LITTLE_S: Final = 20e-6


def may_ride(session: ExecutorSession, work: Work, tail: ExecutorSession | None) -> bool:
    """Whether a work may follow the session's others; `tail` was last given to their lane."""
    queue = session.queue
    return (
        0 < queue.launched == len(queue.offered) - 1
        and session.standing.riders < _RIDERS
        and tail is session
        and not session.table.away
        and not isinstance(work, RunWork)
        and work.predicted_s() <= _LITTLE_S
    )
