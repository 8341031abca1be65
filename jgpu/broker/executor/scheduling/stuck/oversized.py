"""Works that wait for memory and could not have it though all others were gone.

The scheduler counts what works need, and knows nothing of users' limits. A program that does not
fit as a whole need not wait for anybody: it is offered anew as one that needs nothing, and its ops
are counted one by one as they run (`RunWork`). Any other work fails.
"""

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.cancel import fail_oldest
from jgpu.broker.executor.works.runs import RunWork

__all__ = ["look_at_oldest"]


def look_at_oldest(session: ExecutorSession, port: Port) -> tuple[tuple[Work, ...], bool] | None:
    """Look at the oldest work of a session; None where it may go on waiting.

    Returns the works that the scheduler is to forget, and whether it is to be told of them anew.
    """
    offered = session.queue.offered
    if not session.quiet or not offered or any(work.rides for work in offered):
        return None
    work = offered[0]
    if work.in_parts or session.may_use(work.transient - session.table.bytes_of(work.frees())):
        return None
    if isinstance(work, RunWork):
        work.in_parts, work.claim = True, 0
        return tuple(offered), True
    fail_oldest(session, port)
    return (work,), False
