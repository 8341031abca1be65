"""What was asked of the executor, and who waits for the answers.

One table of all questions whose answer is to come: those that somebody waits for, those whose
answer is handed to a function, those that take works back, and runs whose report is awaited. A
waiter that leaves (Ctrl-C) leaves its question here until it is answered. Beside it stand the
failures that no question asked for: the next wait raises them. Nothing here sends or waits.

Invariant: a number is asked once, is answered once, and its answer reaches the one that asked;
what is lost is nobody's (`validate`).
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from jgpu import errors

__all__ = ["PendingRequest", "RequestState", "Requests"]


class RequestState(Enum):
    """How far a question is."""

    #: it has a number, and is not on its way yet
    NEW = "new"
    #: the answer is to come, and somebody, or a function, is there for it
    ASKED = "asked"
    #: the answer is to come, and nobody waits for it any more
    LEFT = "left"
    ANSWERED = "answered"
    #: the device was lost: there will be no answer
    LOST = "lost"


_ASKED: Final = RequestState.ASKED
_ANSWERED: Final = RequestState.ANSWERED


class PendingRequest:
    """One question."""

    __slots__ = ("answer", "number", "state", "then")

    def __init__(self, number: int, then: Callable[[Any], None] | None = None) -> None:
        #: its number, or that of the work whose report it is
        self.number = number
        self.state = RequestState.NEW
        #: once answered: a message, or the error that says why there is none
        self.answer: Any = None
        #: what the answer is handed to; None if somebody waits
        self.then = then

    @property
    def is_answered(self) -> bool:
        """Whether the waiting is over."""
        return self.state is _ANSWERED


class Requests:
    """The table, and the failures that are to be told."""

    __slots__ = ("_asked", "_cancel", "_in_arena", "_next", "_reports", "failures")

    def __init__(self) -> None:
        self._next = 1
        #: by number, those whose answer is to come
        self._asked: dict[int, PendingRequest] = {}
        #: by the work's number, runs whose report is to come
        self._reports: dict[int, PendingRequest] = {}
        #: the download whose bytes the arena is for, until it is answered
        self._in_arena: PendingRequest | None = None
        #: the last interrupt that was told, until it is answered
        self._cancel: PendingRequest | None = None
        #: what failed and was not told yet, oldest first
        self.failures: list[errors.JgpuError] = []

    def __len__(self) -> int:
        """How many answers are to come."""
        return len(self._asked) + len(self._reports)

    # -- asking ------------------------------------------------------------------------------

    def new(self, then: Callable[[Any], None] | None = None) -> PendingRequest:
        """A question with a number; its answer is handed to `then`, or waited for."""
        self._next += 1
        return PendingRequest(self._next - 1, then)

    def ask(self, request: PendingRequest) -> None:
        """The question is on its way."""
        request.state = _ASKED
        self._asked[request.number] = request

    def ask_into_arena(self, request: PendingRequest) -> None:
        """As `ask`; the arena's download half is the executor's until it is answered."""
        self.ask(request)
        self._in_arena = request

    def ask_back(self, request: PendingRequest) -> None:
        """Works are taken back; nobody waits for the answer, which says that it was done."""
        self.ask(request)
        request.state = RequestState.LEFT
        self._cancel = request

    def ask_report(self, work: int) -> PendingRequest:
        """A run will be reported on."""
        request = self._reports[work] = PendingRequest(work)
        request.state = _ASKED
        return request

    @property
    def arena_is_free(self) -> bool:
        """Whether nothing will be written to the arena's download half."""
        return self._in_arena is None

    @property
    def takes_back(self) -> bool:
        """Whether an interrupt was told that is not over."""
        return self._cancel is not None

    # -- answers -----------------------------------------------------------------------------

    def answer(self, number: int, reply: Any) -> None:
        """Pass on what was answered, or the error that says why nothing was.

        A waiter is told of an earlier failure first, if there is one.
        """
        request = self._asked.pop(number, None)
        if request is None:  # a failure that is told in parts answers once
            return
        if request is self._in_arena:
            self._in_arena = None
        if request is self._cancel:
            self._cancel = None
        left = request.state is not _ASKED
        request.state = _ANSWERED
        if left:
            return
        failed = isinstance(reply, BaseException)
        if request.then is not None:
            request.then(None if failed else reply)
        else:
            request.answer = self.failures.pop(0) if failed and self.failures else reply

    def awaits_report(self, work: int) -> bool:
        """Whether somebody waits for this run's report."""
        return work in self._reports

    def report(self, work: int, learnt: Any) -> None:
        """A run that somebody waits for is reported on."""
        request = self._reports.pop(work)
        request.answer, request.state = learnt, _ANSWERED

    def leave(self, request: PendingRequest) -> None:
        """The waiter goes; with its answer, or without."""
        if request.state is _ASKED:
            request.state = RequestState.LEFT
            if self._reports.get(request.number) is request:
                del self._reports[request.number]  # such a run may never be reported on

    # -- failures that nobody asked for ------------------------------------------------------

    def fail(self, error: errors.JgpuError) -> None:
        """Something failed: the next wait raises this."""
        self.failures.append(error)

    def tell(self, failure: BaseException) -> bool:
        """Whether this failure waited to be raised; from here on it does not."""
        waiting = len(self.failures)
        self.failures = [each for each in self.failures if each is not failure]
        return len(self.failures) < waiting

    # -- loss --------------------------------------------------------------------------------

    def forget(self) -> None:
        """The device is gone: nobody answers any more."""
        asked = [*self._asked.values(), *self._reports.values()]
        self._asked, self._reports = {}, {}  # works are numbered anew, questions are not
        self._in_arena = self._cancel = None
        self.failures.clear()
        abandoned = [each for each in asked if each.state is _ASKED]
        for request in asked:
            request.state = RequestState.LOST
        for request in abandoned:
            if request.then is not None:
                request.then(None)

    def validate(self) -> None:
        """Assert the module's invariant."""
        for table in (self._asked, self._reports):
            for number, request in table.items():
                assert request.number == number
                assert request.state in (RequestState.ASKED, RequestState.LEFT)
                assert request.answer is None
        assert all(number < self._next for number in self._asked)
        for alone in (self._in_arena, self._cancel):
            assert alone is None or self._asked[alone.number] is alone
        assert all(each.state is _ASKED for each in self._reports.values())
