"""Refuses new work of users who may have none, and programs that have ended executors.

Only runs are refused: what is on the device stays, can be read, saved and freed. A refused run
leaves the buffers that it would have written as they are and poisons those that it would have made,
so that the failure is told at the next wait and whoever uses them hears of it.

Invariant: no iteration is refused in part. One that has begun is finished, or parameters that an
optimizer has updated in part would be worse than a late answer; and one that was refused is refused
to its end. A program that has ended executors is refused wherever it stands: running it would cost
everybody everything.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.admission.refusals import Refusals
from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Failure
from jgpu.broker.executor.works.base import LEAST_S, Work
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.flightpage import Kind

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.wire import messages

__all__ = ["Gate", "RefusedRun"]

#: runs after which an iteration that never ends is refused in its midst
_MOST_RUNS: Final = 256


class RefusedRun(RunWork):
    """Takes a run's place in the order of works, and computes nothing."""

    kind = Kind.OTHER

    def __init__(
        self, session: "ExecutorSession", message: "messages.Run", failure: Failure, *, told: bool
    ) -> None:
        super().__init__(session, message)
        self._failure = failure
        #: the client hears of it by another run's failure
        self._is_told = told and not message.report

    @property
    def ready(self) -> bool:
        """It needs no definition."""
        return True

    def predicted_s(self) -> float:
        """Next to nothing."""
        return LEAST_S

    def may_write(self, buffer: int) -> bool:
        """It makes its fresh buffers, without a value."""
        return self.message.first <= buffer < self.message.first + 8 * len(self.message.live)

    def note(self, port: Port) -> None:
        """It runs nothing."""
        Work.note(self, port)

    def do(self, port: Port) -> None:
        """Poison what it would have made."""
        poisoned = self.cancel(port, self._failure)
        if not self._is_told:
            self._failures = [(self._failure, poisoned)]


@dataclass(slots=True)
class _Gate:
    """One session's."""

    #: runs are refused until the iteration's end
    closed: bool = False
    #: the client was told of a refusal and has not waited for anything since
    told: bool = False
    #: runs let through since the user's work is refused, for their iteration has begun
    runs: int = 0


class Gate:
    """Decides which runs are refused; on the pump."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        #: sessions that were told of a refused program and have not waited for anything since
        self._told: set[int] = set()
        #: sessions whose last run does not end its iteration
        self._begun: set[int] = set()
        #: by session, of those whose user's work is refused or was a moment ago
        self._gates: dict[int, _Gate] = {}

    def is_open(self, session: "ExecutorSession") -> bool:
        """Whether no run of a session is refused, whichever; `passed` says that one came."""
        return not (self._refusals.any or session.account.refusal or session.number in self._gates)

    def passed(self, session: "ExecutorSession", message: "messages.Run") -> None:
        """A run was let through."""
        if message.ends_iteration:
            self._begun.discard(session.number)
        else:
            self._begun.add(session.number)

    def work_of(self, session: "ExecutorSession", message: "messages.Run") -> RunWork:
        """The run, or what stands for it if it is refused."""
        number, account = session.number, session.account
        refusals = self._refusals
        refused = refusals.of(session.owner.user, message.program) if refusals.any else None
        if refused is not None:
            failure = Failure(
                message.work, refused.op, refused.name, "ProgramRefused", refused.text
            )
            told = number in self._told
            work: RunWork = RefusedRun(session, message, failure, told=told)
            self._told.add(number)
        elif (account.refusal or number in self._gates) and self._is_closed(session):
            gate, text = self._gates[number], account.refusal or _OVER
            kind = account.refused_as or "BudgetExceeded"
            failure = Failure(message.work, 0, "", kind, text)
            work = RefusedRun(session, message, failure, told=gate.told)
            gate.told = True
        else:
            work = RunWork(session, message)
        self.passed(session, message)
        return work

    def _is_closed(self, session: "ExecutorSession") -> bool:
        text = session.account.refusal
        gate = self._gates.setdefault(session.number, _Gate())
        if session.number not in self._begun or (text and gate.runs >= _MOST_RUNS):
            gate.closed, gate.runs = bool(text), 0
        if not gate.closed:
            gate.runs += 1
            if not text:
                del self._gates[session.number]
        return gate.closed

    def boundary(self, session: "ExecutorSession") -> None:
        """An iteration ended otherwise than by a run."""
        self._begun.discard(session.number)

    def waited(self, session: "ExecutorSession") -> None:
        """The client waits for something, by which it hears of a refusal; the next is a new one."""
        self._told.discard(session.number)
        gate = self._gates.get(session.number)
        if gate is not None:
            gate.told = False

    def forget(self, session: "ExecutorSession") -> None:
        """The session ends."""
        self._begun.discard(session.number)
        self._told.discard(session.number)
        self._gates.pop(session.number, None)


#: For the rest of an iteration whose beginning was refused, when the budget allows work again.
_OVER: Final = "The beginning of this iteration was refused so all of it is."
