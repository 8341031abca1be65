"""Taking back works that have not started, from the next iteration boundary on.

What is half done is finished: parameters that an optimizer has updated in part would be worse
than a late answer. What is taken back has effects all the same: its outputs are poisoned, what it
would have dropped is dropped. These wait until no lane has anything of the session.
"""

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Failure
from jgpu.broker.executor.session import Session
from jgpu.broker.executor.works import Work, WorkState, report_failure
from jgpu.wire import messages

__all__ = ["begin_cancel", "finish_cancel"]

_TEXT = "The computation was interrupted before it started."


def begin_cancel(session: Session, request: int) -> list[Work]:
    """Take works out of the session's order; returns those that the scheduler knows."""
    session.cancel_requests.append(request)
    works = [*session.offered, *session.received]
    first = session.launched
    if not session.at_boundary:
        while first < len(works) and not works[first].ends_iteration:
            first += 1
        first += 1
    taken = works[first:]
    for work in taken:
        session.queued_bytes -= work.nbytes
    known = [work for work in taken if work.state is WorkState.OFFERED]
    for work in taken:
        work.state = WorkState.CANCELLED
    for _ in known:
        session.offered.pop()
    for _ in range(len(taken) - len(known)):
        session.received.pop()
    session.cancelled.extend(taken)
    return known


def finish_cancel(session: Session, port: Port) -> None:
    """Nothing of the session runs: poison what was taken back, and tell the client."""
    taken, session.cancelled = session.cancelled, []
    requests, session.cancel_requests = session.cancel_requests, []
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
    session.received.extend(session.held)
    session.held.clear()
