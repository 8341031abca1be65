"""Taking works back that have not started, and what they would have brought about.

The run of an interrupted session that a lane is at ends at its next op, and no other work begins,
unless the iteration has written a resident buffer: then it is finished, and what lies behind it is
taken back (`course`). What was taken back has effects all the same: its outputs are poisoned, what
it would have dropped is dropped. These wait until no lane has anything of the session.
"""

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Failure
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.works.base import Work, report_failure
from jgpu.wire import messages

__all__ = ["begin_cancel", "fail_oldest", "finish_cancel"]

_TEXT = "The computation was interrupted before it started."


def begin_cancel(session: ExecutorSession, request: int, since: int = 0) -> list[Work]:
    """Take works out of the session's order; returns those that the scheduler has yet to start.

    Those up to number `since` stay.

    Launched ones stay in the order, for a lane has them; it skips them.
    """
    queue = session.queue
    works = [*queue.offered, *queue.received]
    return queue.begin_cancel(request, works[session.course.interrupt(works, since) :])


def finish_cancel(session: ExecutorSession, port: Port) -> bool:
    """Nothing of the session runs: poison what was taken back, and tell the client.

    Returns whether its iteration was cut short.
    """
    taken, requests = session.queue.finish_cancel()
    if taken:
        failure = Failure(taken[0].number, 0, "", "WorkCancelled", _TEXT)
        poisoned = {number: None for work in taken for number in work.cancel(port, failure)}
        report_failure(session, failure, poisoned)
        for work in taken:
            if work.request is not None:
                report_failure(session, failure, (), work.request)
            work.answer_followers()
    for request in requests:
        session.send(messages.Synced(request))
    return session.course.resume()


def fail_oldest(session: ExecutorSession, port: Port) -> None:
    """Fail the oldest work, which could not fit though all others were gone.

    No lane has anything of the session.
    """
    work = session.queue.cancel_oldest()
    text = session.out_of_memory(work.transient)
    failure = Failure(work.number, 0, "", "OutOfMemoryError", text)
    report_failure(session, failure, work.cancel(port, failure), work.request)
    work.answer_followers()
