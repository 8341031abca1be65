"""Whose work ended an executor, and what follows: who is told what, what is refused, who waits.

Keeps the strikes over all executors of this broker, and the last end for the status. What was on
the page is told to its own user and to administrators; others learn that it was not theirs.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jgpu.broker.control.executors.endings import End, described
from jgpu.broker.control.executors.strikes import Strike, Strikes
from jgpu.broker.control.executors.suspects import Suspects
from jgpu.broker.control.registry import Registry, SessionPhase, SessionRecord
from jgpu.broker.control.reports.report import Viewer
from jgpu.broker.flightpage import FlightEntry
from jgpu.wire import limits
from jgpu.wire.messages import RefusedProgram, RefusePrograms, Suspect, TryAlone
from jgpu.wire.reports.report import CulpritReport, EndReport

__all__ = ["Culprits", "Story"]

_LOG = logging.getLogger("jgpu.broker")


@dataclass(frozen=True, slots=True)
class Story:
    """How the executor before ended, for one session; its work and op where it was these."""

    text: str = ""
    work: int = 0
    op: int = 0


_NONE: Final = Story()


class Culprits:
    """One device's; on the event loop."""

    def __init__(
        self,
        registry: Registry,
        strikes: Strikes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._strikes = strikes
        self._clock = clock
        #: what may have broken the device
        self._suspects = Suspects()
        #: from the clock to seconds since the epoch
        self._since = time.time() - clock()
        #: told of each end whose work it was, if that is known, and what happened
        self.on_fault: Callable[[str, str], None] = lambda user, text: None
        self._stories: dict[int, Story] = {}
        #: the last end: when (seconds since the epoch), how, and whose work it was
        self._last: tuple[float, End, str] | None = None

    # -- an executor ended -------------------------------------------------------------------

    def ended(self, end: End) -> bool:
        """Take an end in, while sessions are as they were; whether it is one user's doing."""
        culprit = self._blamed(end)
        user = self._user(culprit) if culprit is not None else ""
        alone = self._is_tried(end, user)
        self._last = time.time(), end, user
        for session in self._registry.sessions.values():
            if session.state is SessionPhase.ADOPTED:
                story = self._story(session, end, culprit, user, alone=alone)
                self._stories[session.number] = story
        self._suspect(end, culprit)
        if culprit is None:
            ran = f" What ran: {'; '.join(map(self._row, end.suspects))}." if end.suspects else ""
            if ran:
                _LOG.error("%s%s", end.sentence, ran)
            self.on_fault("", end.sentence + ran)
            return False
        _LOG.error("%s It was %s.", end.sentence, self._row(culprit))
        self.on_fault(user, f"{end.sentence} It was {self._row(culprit)}.")
        if user:
            self._strike(user, culprit, end, alone=alone)
        return bool(user)

    def _is_tried(self, end: End, user: str) -> bool:
        """Whether the culprit broke the device while it was alone there, being tried."""
        culprit = end.culprit
        return end.on_device and culprit is not None and self._suspects.tries(user, culprit.program)

    def _suspect(self, end: End, culprit: FlightEntry | None) -> None:
        """Have programs that may break the device again run alone."""
        if not end.on_device:
            return
        if culprit is None:
            suspects = end.suspects
        elif self._suspects.convict(self._user(culprit), culprit.program):
            suspects = ()  # refused from here on
        else:
            suspects = (culprit,)
        self._suspects.suspect(
            (self._user(each), each.program) for each in suspects if any(each.program)
        )

    def _blamed(self, end: End) -> FlightEntry | None:
        """The culprit; of several that a fault leaves, the only one that has struck before."""
        if end.culprit is not None or not end.fault:
            return end.culprit
        known = [e for e in end.suspects if self._strikes.struck(self._user(e), e.program)]
        return known[0] if len(known) == 1 else None

    def _strike(self, user: str, culprit: FlightEntry, end: End, *, alone: bool) -> None:
        op = max(0, culprit.op)
        now = self._clock()
        self._strikes.note(user, now, culprit.program, op, culprit.name, end.how, alone=alone)
        held_s = self._strikes.held_s(user, now)
        if held_s:
            _LOG.warning("%s is held off for %.0f s: %s", user, held_s, self.held(user))
            self.on_fault(user, self.held(user))

    def _user(self, entry: FlightEntry) -> str:
        session = self._registry.sessions.get(entry.session)
        return session.user if session is not None else ""

    def _row(self, entry: FlightEntry) -> str:
        where = f"op {entry.op} of program" if entry.op >= 0 and entry.ops > 1 else "program"
        program = f" ({where} {entry.program.hex()})" if any(entry.program) else ""
        user = self._user(entry) or "a user who is gone"
        return f"{described(entry)}{program} of session {entry.session} ({user})"

    # -- what sessions are told --------------------------------------------------------------

    def _story(
        self,
        session: SessionRecord,
        end: End,
        culprit: FlightEntry | None,
        user: str,
        *,
        alone: bool,
    ) -> Story:
        if culprit is not None and culprit.session == session.number:
            text = (
                f"{_capital(described(culprit))} of this notebook ended the shared device: its "
                f"process {end.how}."
            )
            if alone:
                text += (
                    " Nothing else ran then, for it was in flight at an end before. It is not run "
                    "again."
                )
            return Story(text, *_place(culprit))
        if culprit is not None:
            whose = (
                "another of your notebooks" if user == session.user else "another user's program"
            )
            return Story(
                f"The shared device ended because of {whose}; it was not this notebook's fault."
            )
        mine = next((e for e in end.suspects if e.session == session.number), None)
        if mine is not None:
            among = "the only one" if len(end.suspects) == 1 else f"one of {len(end.suspects)}"
            text = (
                f"The shared device ended: its process {end.how}. Work of this notebook was "
                f"{among} that ran at that moment ({described(mine)}), so it may have been this, "
                "or not."
            )
            if end.on_device:
                text += (
                    " Until it has gone through once, it runs while nothing else does: then it is "
                    "certain."
                )
            return Story(text, *_place(mine))
        return Story(
            f"The shared device ended: its process {end.how}. Nothing of this notebook ran at that "
            "moment; it was not this notebook's fault."
        )

    def story(self, number: int) -> Story:
        """What a session is told when the next executor gets it."""
        return self._stories.pop(number, _NONE)

    def forget(self, number: int) -> None:
        """The session ended."""
        self._stories.pop(number, None)

    def held(self, user: str) -> str:
        """Why new work of a user is refused for a while; empty where it is not."""
        now = self._clock()
        held_s = self._strikes.held_s(user, now)
        if not held_s:
            return ""
        # Of the end, not of now: the same text as long as it holds.
        until = time.strftime("%H:%M", time.localtime(self._since + now + held_s))
        return (
            f"Programs of {user} have ended the shared device {self._strikes.limit} times within "
            f"{self._strikes.window_s / 60:g} minutes, so new work of {user} is refused until "
            f"{until}. Find out which op it is before: run it with small tensors on the CPU."
        )

    # -- what executors are told -------------------------------------------------------------

    def refusals(self) -> RefusePrograms:
        """The programs that are not run any more."""
        refused = self._strikes.refused()[: limits.MAX_REFUSED]
        return RefusePrograms(tuple(map(_refused, refused)))

    def trials(self) -> TryAlone:
        """The programs that have the device alone while they run."""
        tried = self._suspects.tried()
        return TryAlone(tuple(Suspect(program, through) for program, through in tried))

    def went_through(self, user: str, program: bytes) -> bool:
        """A suspect did; whether executors are to be told what is tried from here on."""
        return self._suspects.went_through(user, program)

    # -- the status --------------------------------------------------------------------------

    def last_end(self, viewer: Viewer) -> EndReport | None:
        """The last end, as this viewer may see it."""
        if self._last is None:
            return None
        when, end, user = self._last
        if end.culprit is None or not user:
            culprit = None
        elif viewer.sees(user):
            culprit = CulpritReport(
                user=user,
                session=end.culprit.session,
                op=described(end.culprit),
                program=end.culprit.program.hex(),
            )
        else:
            culprit = CulpritReport(user=viewer.name(user))
        return EndReport(when=when, how=end.how, culprit=culprit)


def _place(entry: FlightEntry) -> tuple[int, int]:
    """Work and op that a notebook can find its line by."""
    return (entry.work, entry.op) if entry.op >= 0 and entry.work else (0, 0)


def _capital(text: str) -> str:
    return text if "::" in text else text[:1].upper() + text[1:]


def _refused(strike: Strike) -> RefusedProgram:
    name = strike.name.replace("aten::", "")
    op = f" ({name}; the process {strike.how})" if name else ""
    if strike.alone:
        text = (
            f"This program ended the shared device while nothing else ran there{op}, so it is not "
            "run any more."
        )
    elif strike.for_all:
        text = (
            f"This program has ended the shared device under two users{op}, so nobody's is run any "
            "more."
        )
    else:
        text = (
            f"This program has ended the shared device twice{op} and everybody lost what was on "
            "it, so it is not run again."
        )
    text = f"{text} Compute it another way; what runs well natively is a fault to be reported."
    return RefusedProgram(strike.program, text, strike.op, strike.name, strike.refused or ())
