"""What is to be done about an executor that does not go on: sights of it in, verdicts out. Pure.

A work of a living session may take as long as it takes; it is told in the log, and ended only where
the administrator has set a limit. A work that outlives its session has its lane retired. The
executor is ended only where nothing else is left: its pump is silent, it does not give a lane up
when told to, or no lane is open to somebody who would have one without those that are retired.

The pump's signs of life are on the flight page. While it waits for something to happen it gives
none, so it is asked something now and then: it has to be seen after that. A process that is stopped
(SIGSTOP, a debugger) has a patience of its own. Silence counts from when the process could run, and
from when this process ran itself: a host that slept blames nobody.

Times are nanoseconds of the host's monotonic clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from jgpu.broker.flightpage import FlightEntry, PumpSign, State

__all__ = [
    "EndExecutor",
    "GiveUpLane",
    "Note",
    "Patience",
    "Sight",
    "Verdict",
    "Watchdog",
    "at_work",
    "lane_of",
]

_SECOND: Final = 1_000_000_000
#: looks further apart than this say that this process did not run
_GAP_NS: Final = 10 * _SECOND
#: a pump that was seen so recently need not be asked anything
_RECENT_NS: Final = 2 * _SECOND
#: lanes that may be retired at once; each has a thread or a stream
_MOST_RETIRED: Final = 16


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, in seconds."""

    #: a work may outlive its session
    outlives_s: float = 60.0
    #: a work of a living session may take; 0: as long as it takes
    work_s: float = 0.0
    #: a pump may give no sign of life
    silent_s: float = 60.0
    #: a process may be stopped
    stopped_s: float = 600.0
    #: a lane that is to be given up may not be, and sessions may be cut off by retired lanes
    stuck_s: float = 10.0
    #: silence is not worth telling
    untold_s: float = 3.0
    #: a work of a living session is not worth telling
    usual_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of an executor at one moment."""

    now_ns: int
    #: None before the first sign
    pump: PumpSign | None
    entries: tuple[FlightEntry, ...]
    #: sessions whose clients are there
    living: frozenset[int]
    #: lanes that are retired, as the executor said last
    retired: frozenset[int] = frozenset()
    #: no lane is open, and somebody waits for memory that retired lanes hold
    cut_off: bool = False
    #: the process is stopped
    stopped: bool = False
    #: the thread that the pump runs on
    pump_thread: int = 0


@dataclass(frozen=True, slots=True)
class GiveUpLane:
    """Have the executor give a lane up, and end the session if it lives."""

    lane: int
    session: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class EndExecutor:
    """End the process; nothing else is left."""

    #: as in "its process ..."
    how: str
    culprit: FlightEntry | None = None
    #: what ran, where it is not certain which of it is to blame
    suspects: tuple[FlightEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log."""

    text: str


Verdict = GiveUpLane | EndExecutor | Note


class Watchdog:
    """Watches one executor process; a new one for each."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        #: when it looked last
        self._looked_ns = 0
        #: silence before this means nothing
        self._floor_ns = 0
        #: when the pump was asked something that it was not seen after; 0 where it was
        self._asked_ns = 0
        #: whether the executor is to be asked something now
        self.asks = False
        #: since when the process is stopped; 0 where it is not
        self._stopped_ns = 0
        #: since when somebody is cut off; 0 while nobody is
        self._cut_off_ns = 0
        #: by session that works and has ended: since when
        self._ended_ns: dict[int, int] = {}
        #: works whose lanes are to be given up, since when
        self._told_ns: dict[tuple[str, int, int], int] = {}
        #: what the log has been told of
        self._noted: set[object] = set()
        self._silence_s = 0.0

    @property
    def silence(self) -> str:
        """What the status says of a pump that gives no sign of life; empty where it does."""
        if self._stopped_ns:
            seconds = (self._looked_ns - self._stopped_ns) / _SECOND
            return f"Stopped for {seconds:.0f} s, by a debugger or SIGSTOP."
        if self._silence_s >= self._patience.untold_s:
            return f"Not answering for {self._silence_s:.0f} s."
        return ""

    def look(self, sight: Sight) -> list[Verdict]:
        """Judge what is seen; afterwards see `asks`."""
        now = sight.now_ns
        self.asks = bool(at_work(sight.entries))
        if not self._looked_ns or now - self._looked_ns > _GAP_NS:
            self._floor_ns = now
        self._looked_ns = now
        verdicts = [*self._look_at_pump(sight)]
        if not any(isinstance(each, EndExecutor) for each in verdicts):
            verdicts += self._look_at_lanes(sight)
        return verdicts

    # -- the pump ----------------------------------------------------------------------------

    def _look_at_pump(self, sight: Sight) -> Iterable[Verdict]:
        now, patience = sight.now_ns, self._patience
        if sight.stopped:
            self._floor_ns = now
            self._stopped_ns = self._stopped_ns or now
            yield from self._note("stopped", "The executor's process is stopped.")
            stopped_s = (now - self._stopped_ns) / _SECOND
            if stopped_s >= patience.stopped_s:
                yield EndExecutor(f"had been stopped for {stopped_s:.0f} s and was ended")
            return
        self._stopped_ns = 0
        self._noted.discard("stopped")
        self._silence_s = self._silent_ns(sight) / _SECOND
        if self._silence_s < patience.untold_s:
            self._noted.discard("silent")
        else:
            yield from self._note("silent", "The executor does not answer.")
        if self._silence_s >= patience.silent_s:
            yield self._silent_end(sight)

    def _silent_ns(self, sight: Sight) -> int:
        pump, now = sight.pump, sight.now_ns
        if pump is None:
            return 0
        if not pump.waits:
            self._asked_ns = 0
            return max(0, now - max(pump.since_ns, self._floor_ns))
        if pump.since_ns >= self._asked_ns:
            if now - pump.since_ns < _RECENT_NS:
                return 0
            self._asked_ns, self.asks = now, True
        return max(0, now - max(self._asked_ns, self._floor_ns))

    def _silent_end(self, sight: Sight) -> EndExecutor:
        how = f"did not answer for {self._silence_s:.0f} s and was ended"
        running = [each for each in sight.entries if each.state is State.WORKS]
        own = [each for each in running if each.native_id == sight.pump_thread]
        if len(own) == 1:
            return EndExecutor(how, own[0])
        return EndExecutor(how, None, tuple(running))

    # -- lanes -------------------------------------------------------------------------------

    def _look_at_lanes(self, sight: Sight) -> Iterable[Verdict]:
        working = at_work(sight.entries)
        stuck = [entry for lane, entry in working.items() if lane in sight.retired]
        self._forget(sight, working.values())
        if self._silence_s >= self._patience.untold_s:
            self._told_ns.clear()  # nothing is carried out
        for lane, entry in working.items():
            if lane not in sight.retired:
                yield from self._look_at_work(sight, lane, entry)
        self._cut_off_ns = (self._cut_off_ns or sight.now_ns) if sight.cut_off else 0
        if sight.cut_off and self._since_s(sight, self._cut_off_ns) >= self._patience.stuck_s:
            yield _ended_for("kept memory that others waited for, for work that did not end", stuck)
        elif len(stuck) > _MOST_RETIRED:
            yield _ended_for(f"had {len(stuck)} lanes with work that did not end", stuck)

    def _look_at_work(self, sight: Sight, lane: int, entry: FlightEntry) -> Iterable[Verdict]:
        patience, took_s = self._patience, self._since_s(sight, entry.since_ns)
        what = f"{entry.name or 'a work'} of session {entry.session}"
        if entry.session not in sight.living:
            ended_ns = self._ended_ns.setdefault(entry.session, sight.now_ns)
            if min(took_s, self._since_s(sight, ended_ns)) >= patience.outlives_s:
                text = f"{what} goes on {patience.outlives_s:.0f} s after its session's end"
                yield from self._retire(sight, lane, entry, text)
        elif patience.work_s and took_s >= patience.work_s:
            op = f" ({entry.name})" if entry.name else ""
            yield from self._retire(
                sight,
                lane,
                entry,
                f"{what} takes longer than {patience.work_s:g} s",
                f"Work of this notebook{op} took longer than {patience.work_s:g} s, which is all "
                "that this device's administrator allows for one piece of work.",
            )
        elif took_s >= patience.usual_s:
            yield from self._note(
                _key(entry), f"Lane {lane} has been at {what} for {took_s:.0f} s."
            )

    def _retire(
        self, sight: Sight, lane: int, entry: FlightEntry, why: str, text: str = ""
    ) -> Iterable[Verdict]:
        told_ns = self._told_ns.setdefault(_key(entry), sight.now_ns)
        if self._since_s(sight, told_ns) >= self._patience.stuck_s:
            yield EndExecutor(
                "had work that did not end and could not be put aside, and was ended", entry
            )
            return
        yield from self._note(_key(entry)[1:], f"Lane {lane} is given up: {why}.")
        yield GiveUpLane(lane, entry.session, text)

    def _since_s(self, sight: Sight, then_ns: int) -> float:
        return (sight.now_ns - then_ns) / _SECOND

    def _forget(self, sight: Sight, working: Iterable[FlightEntry]) -> None:
        """Keep no more than concerns what is at work now."""
        entries = list(working)
        keys = {_key(entry) for entry in entries}
        sessions = {entry.session for entry in entries} - sight.living
        self._told_ns = {key: told for key, told in self._told_ns.items() if key in keys}
        self._ended_ns = {each: ns for each, ns in self._ended_ns.items() if each in sessions}
        kept = {"stopped", "silent", *keys, *(key[1:] for key in keys)}
        self._noted &= kept

    def _note(self, about: object, text: str) -> Iterable[Verdict]:
        if about not in self._noted:
            self._noted.add(about)
            yield Note(text)


def _ended_for(how: str, stuck: list[FlightEntry]) -> EndExecutor:
    if len(stuck) == 1:
        return EndExecutor(f"{how}, and was ended", stuck[0])
    return EndExecutor(f"{how}, and was ended", None, tuple(stuck))


def _key(entry: FlightEntry) -> tuple[str, int, int]:
    return entry.label, entry.session, entry.since_ns


def lane_of(entry: FlightEntry) -> int | None:
    """The lane that a record is of; None for a helper's."""
    kind, _, number = entry.label.partition(" ")
    return int(number) if kind == "lane" and number.isdecimal() else None


def at_work(entries: Iterable[FlightEntry]) -> dict[int, FlightEntry]:
    """By lane, what each is at that is at something."""
    return {
        lane: entry
        for entry in entries
        if entry.state is State.WORKS and (lane := lane_of(entry)) is not None
    }
