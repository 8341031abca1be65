"""Whose probe is made next, and who pays for it.

A probe computes beside the lanes, on a thread of its own, and its user is charged the time it took.
Of one identity one probe is made at a time, and a few altogether: first of whoever has had least of
the device. A user who is ahead of others with work waits until these have had as much, or for as
long as that would take if nobody were in their way.

A probe cannot be stopped. One that takes a minute keeps its thread and loses its place: others are
made on a new thread, and its identity's as well, until that has lost several.

Invariant: a probe of a session that has ended is not begun, and what was computed for one is
charged to the next session of its user.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Any, Final

from jgpu.broker.executor.admission.refusals import Refusals
from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.programs import HANDS, KINDS, Chooser, Prober, choice_of, question_of
from jgpu.broker.executor.scheduling.driver import SchedulerDriver
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.flightpage import Kind
from jgpu.errors import ProgramError, ProgramRefused
from jgpu.wire import limits, messages

__all__ = ["Probes"]

#: what is answered beside the lanes: what an op returns, what the device would do by itself
_Question = messages.Probe | messages.ChooseAttention | messages.ChooseNorm | messages.LayOutWeights

#: virtual seconds that a user may be ahead of others and go on probing
_CREDIT_S: Final = 0.25
#: seconds after which a probe keeps nobody waiting any longer
_LOST_S: Final = 60.0
#: probes that may be lost that way, of one identity and altogether; each keeps a thread
_MOST_LOST_EACH: Final = 2
_MOST_LOST: Final = 16
_TOO_MANY_LOST: Final = (
    "Two ops of yours whose results were asked for have not ended, and more are not tried until "
    "they do. Interrupt or restart what began them; others are not held up by it."
)
#: what one message is counted as while it waits, for its decoded form is larger
_WAITING_BYTES: Final = 256 << 10


@dataclass(slots=True)
class _Waiting:
    session: ExecutorSession
    message: _Question
    question: bytes
    #: when it was seen to be ahead of others, and for how long it waits for them at most
    since: float = 0.0
    patience_s: float = -1.0


class Probes:
    """All probes of one executor; on the pump."""

    def __init__(
        self,
        prober: Prober,
        chooser: Chooser,
        turns: SchedulerDriver,
        hand: Callable[[int], HelperThread],
        refusals: Refusals,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`hand(n)` makes the n-th thread that probes are made on."""
        self._prober = prober
        self._chooser = chooser
        self._turns = turns
        self._hand = hand
        self._refusals = refusals
        self._clock = clock
        turns.trials.beside = lambda: len(self._busy) - len(self._lost)
        #: by identity, what waits, oldest first; no empty entries
        self._waiting: dict[str, deque[_Waiting]] = {}
        #: identities of which a probe is being made
        self._running: set[str] = set()
        self._free: list[HelperThread] = []
        self._hands: list[HelperThread] = []
        #: by thread, whose probe it makes, and since when
        self._busy: dict[HelperThread, tuple[str, float]] = {}
        #: threads whose probes take too long to be waited for
        self._lost: set[HelperThread] = set()

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for others to have had as much."""
        return bool(self._waiting)

    def ask(self, session: ExecutorSession, message: _Question) -> None:
        """Answer a probe now if the answer is known, else when its turn has come."""
        try:
            question = _key_of(message)
        except ProgramError as error:
            _reply(session, message, error)
            return
        known: Any
        if isinstance(message, messages.Probe):
            known = self._prober.known(question, session.owner.identity)
        else:
            known = self._chooser.known(question, session.owner.identity)
        if known is not None:
            _reply(session, message, known)
            return
        refused = self._refusal(session, question)
        if refused:
            _reply(session, message, ProgramRefused(refused))
            return
        session.programs.begin(_WAITING_BYTES)
        queue = self._waiting.setdefault(session.owner.identity, deque())
        queue.append(_Waiting(session, message, question))
        self.start()

    def _refusal(self, session: ExecutorSession, question: bytes) -> str:
        """Why a question is not tried: it has ended executors, or its user has; empty if it is."""
        refused = self._refusals.of(session.owner.user, question)
        if refused is not None:
            return refused.text
        if self._lost_of(session.owner.identity) >= _MOST_LOST_EACH:
            return _TOO_MANY_LOST
        return session.account.refusal if session.account.held else ""

    def _lost_of(self, identity: str) -> int:
        return sum(self._busy[hand][0] == identity for hand in self._lost)

    def _give_up(self) -> None:
        """Probes that take too long keep their threads, and nothing else."""
        now = self._clock()
        for hand, (identity, since) in self._busy.items():
            if now - since >= _LOST_S and len(self._lost) < _MOST_LOST and hand not in self._lost:
                self._lost.add(hand)
                self._running.discard(identity)

    def collect(self) -> None:
        """Hand back what is done, and begin what may be begun."""
        for hand in self._hands:
            hand.collect()
        if self._waiting:
            self.start()

    def forget(self, session: ExecutorSession) -> None:
        """The session ends: what waits is not begun."""
        queue = self._waiting.pop(session.owner.identity, None)
        for each in queue or ():
            if each.session is session:
                self._is_over(each, well=False)
        kept = deque(each for each in queue or () if each.session is not session)
        if kept:
            self._waiting[session.owner.identity] = kept

    def close(self) -> None:
        """End the threads."""
        for hand in self._hands:
            hand.close()

    def start(self) -> None:
        """Begin probes, the one of whoever is least ahead first, while there are hands."""
        self._give_up()
        while len(self._busy) - len(self._lost) < HANDS:
            ready = [
                (self._turns.ahead_s(queue[0].session), identity)
                for identity, queue in self._waiting.items()
                if identity not in self._running
            ]
            identity = next(
                (i for ahead_s, i in sorted(ready) if self._may_begin(ahead_s, i)), None
            )
            if identity is None:
                return
            queue = self._waiting[identity]
            user = queue[0].session.owner.user
            if not self._turns.trials.admits_probe(queue[0], user, queue[0].question):
                return
            probe = queue.popleft()
            if not queue:
                del self._waiting[identity]
            self._begin(identity, probe)

    def _may_begin(self, ahead_s: float, identity: str) -> bool:
        """Whether others have had as much, or time enough for it."""
        if ahead_s <= _CREDIT_S:
            return True
        first, now = self._waiting[identity][0], self._clock()
        if first.patience_s < 0:
            first.since, first.patience_s = now, ahead_s * self._turns.users_at_work()
        return now - first.since >= first.patience_s

    def _begin(self, identity: str, probe: _Waiting) -> None:
        if not self._free:
            self._hands.append(self._hand(len(self._hands)))
            self._free.append(self._hands[-1])
        hand = self._free.pop()
        self._running.add(identity)
        self._busy[hand] = identity, self._clock()
        message, prober, chooser = probe.message, self._prober, self._chooser
        clock = monotonic if KINDS[prober.device].runs_ahead else thread_time

        def task() -> tuple[Any, float]:
            name = type(message).__name__
            if isinstance(message, messages.Probe):
                name = message.op.name
            number = probe.session.number
            hand.flight.begin(number, 0, Kind.PROBE, probe.question, name.encode(), 1)
            hand.flight.mark()[0] = 0
            began = clock()
            try:
                answer: Any
                if isinstance(message, messages.Probe):
                    parts = message.op, message.inputs, message.params, message.flags
                    answer = prober.ask(*parts)
                else:
                    answer = chooser.ask(message)
            except Exception as error:
                answer = error
            return answer, clock() - began

        hand.put(probe.session.number, task, lambda made: self._made(hand, probe, *made))

    def _is_over(self, probe: _Waiting, *, well: bool) -> None:
        user = probe.session.owner.user
        self._turns.trials.probe_over(probe, user, probe.question, well=well)

    def _made(self, hand: HelperThread, probe: _Waiting, answer: Any, seconds: float) -> None:
        session = probe.session
        self._free.append(hand)
        del self._busy[hand]
        if hand in self._lost:
            self._lost.discard(hand)
        else:
            self._running.discard(session.owner.identity)
        session.programs.end(_WAITING_BYTES)
        self._is_over(probe, well=not isinstance(answer, Exception))
        self._turns.charge(session, seconds)
        if not isinstance(answer, Exception):
            remembers = self._prober if isinstance(probe.message, messages.Probe) else self._chooser
            remembers.remember(probe.question, session.owner.identity, answer)
        _reply(session, probe.message, answer)


def _key_of(message: _Question) -> bytes:
    """What the answer is kept under; raises `ProgramError` for a question that is too large."""
    if isinstance(message, messages.Probe):
        return question_of(message.op, message.inputs, message.params, message.flags)
    return choice_of(message)


def _reply(session: ExecutorSession, message: _Question, answer: Any) -> None:
    is_probe = isinstance(message, messages.Probe)
    request = message.request
    if isinstance(answer, Exception):
        error = type(answer).__name__, str(answer)[: limits.MAX_TEXT]
        made = messages.Probed if is_probe else messages.Chosen
        session.send(made(request, error=error))
    elif is_probe:
        session.send(messages.Probed(request, *answer))
    else:
        session.send(messages.Chosen(request, answer))
