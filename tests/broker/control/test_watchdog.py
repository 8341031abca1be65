"""What follows from what is seen of an executor: sights in, verdicts out, on an own clock."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jgpu.broker.control.executors.watchdog import (
    EndExecutor,
    GiveUpLane,
    Note,
    Patience,
    Sight,
    Watchdog,
    at_work,
    lane_of,
)
from jgpu.broker.flightpage import FlightEntry, Kind, PumpSign, State

SECOND = 1_000_000_000
THREAD = 4321
PATIENCE = Patience(outlives_s=60, silent_s=30, stopped_s=300)


def entry(lane=0, session=1, since=0.0, state=State.WORKS, name="aten::mm", native=99, label=""):
    """A record of a lane's that began a program at that second."""
    return FlightEntry(
        label or f"lane {lane}", state, session, 7, Kind.PROGRAM, int(since * SECOND), bytes(16),
        3, 1, name, 0, native,
    )  # fmt: skip


class Seen:
    """A watchdog that looks every second at what a test says."""

    def __init__(self, patience=PATIENCE, **seen):
        self.dog = Watchdog(patience)
        self.now_s = 1000.0
        self.verdicts = []
        self.seen = {"entries": (), "living": frozenset(), "pump_thread": THREAD} | seen

    def look(self, *, pump=None, **seen):
        """One look; the verdicts but for notes."""
        self.seen |= seen
        pump = pump or PumpSign(waits=True, since_ns=self.at(self.now_s))
        sight = Sight(now_ns=self.at(self.now_s), pump=pump, **self.seen)
        self.now_s += 1.0
        found = self.dog.look(sight)
        self.verdicts += found
        return [each for each in found if not isinstance(each, Note)]

    def go(self, seconds, **seen):
        """Look so long; (second, verdicts) of the looks that led to any."""
        began, found = self.now_s, []
        while self.now_s < began + seconds:
            at = self.now_s - began
            if verdicts := self.look(**seen):
                found.append((at, verdicts))
        return found

    @property
    def notes(self):
        """Lines for the log."""
        return [each.text for each in self.verdicts if isinstance(each, Note)]

    @staticmethod
    def at(seconds):
        """On the clock of the page."""
        return int(seconds * SECOND)


def test_a_long_work_of_a_living_session_is_told_once_and_left_alone():
    seen = Seen(living=frozenset({1}), entries=(entry(since=1000.0),))
    assert seen.go(5000) == []
    assert seen.notes == ["Lane 0 has been at aten::mm of session 1 for 60 s."]


def test_a_work_that_outlives_its_session_has_its_lane_retired_until_that_is_done():
    seen = Seen(living=frozenset({1}), entries=(entry(since=1000.0),))
    seen.go(500)
    found = seen.go(65, living=frozenset())
    assert found == [(60.0 + k, [GiveUpLane(0, 1)]) for k in range(5)]
    assert seen.go(1000, retired=frozenset({0})) == []
    assert seen.notes[-1] == (
        "Lane 0 is given up: aten::mm of session 1 goes on 60 s after its session's end."
    )


def test_a_work_that_ends_in_time_costs_nobody_anything():
    seen = Seen(entries=(entry(since=1000.0),))
    assert seen.go(59) == []
    assert seen.go(59, entries=(entry(since=1059.0, session=2),)) == []
    assert seen.go(59, entries=(entry(since=1118.0),)) == []
    assert seen.go(1000, entries=(entry(state=State.RESTS),)) == []


def test_a_limit_ends_the_session_whose_work_exceeds_it():
    seen = Seen(
        Patience(work_s=20), living=frozenset({1, 2}), entries=(entry(since=1000.0, lane=3),)
    )
    ((second, (verdict,)), *_) = seen.go(22)
    assert second == 20.0
    assert (verdict.lane, verdict.session) == (3, 1)
    assert "aten::mm" in verdict.text
    assert "20 s" in verdict.text


def test_a_lane_that_is_not_given_up_costs_the_executor():
    seen = Seen(entries=(entry(since=1000.0),))
    found = seen.go(75)
    assert [type(each) for _, (each,) in found[:10]] == [GiveUpLane] * 10
    assert found[10] == (
        70.0,
        [
            EndExecutor(
                "had work that did not end and could not be put aside, and was ended",
                entry(since=1000.0),
            )
        ],
    )


def test_whoever_is_cut_off_by_retired_lanes_is_worth_an_executor():
    stuck = entry(since=1000.0)
    seen = Seen(entries=(stuck,), retired=frozenset({0}))
    assert seen.go(500) == []
    assert seen.go(5, cut_off=True) == []
    assert seen.go(5, cut_off=False) == []
    ((second, (verdict,)), *_) = seen.go(12, cut_off=True)
    assert (second, verdict.culprit) == (10.0, stuck)
    many = tuple(entry(lane=k, since=1000.0) for k in range(17))
    seen = Seen(entries=many, retired=frozenset(range(17)))
    assert seen.look() == [
        EndExecutor("had 17 lanes with work that did not end, and was ended", None, many)
    ]


def test_a_pump_that_works_on_one_turn_for_too_long_is_ended_with_what_runs_on_it():
    own, other = entry(since=1000.0, native=THREAD), entry(lane=1, since=1000.0)
    seen = Seen(living=frozenset({1}), entries=(own, other))
    sign = PumpSign(waits=False, since_ns=1000 * SECOND)
    assert seen.go(3, pump=sign) == []
    assert seen.dog.silence == ""
    assert seen.go(9, pump=sign) == []
    assert seen.dog.silence == "Not answering for 11 s."
    ((second, (verdict,)), *_) = seen.go(20, pump=sign)
    assert second + 12 == 30.0
    assert verdict == EndExecutor("did not answer for 30 s and was ended", own)
    assert seen.notes == ["The executor does not answer."]


def test_a_pump_that_waits_is_asked_and_has_to_be_seen_after_that():
    seen = Seen()
    sign = PumpSign(waits=True, since_ns=990 * SECOND)
    assert seen.look(pump=sign) == []
    assert seen.dog.asks
    assert seen.go(29, pump=sign) == []
    assert seen.look(pump=sign) == [EndExecutor("did not answer for 30 s and was ended")]
    seen = Seen()
    for _ in range(1000):
        assert seen.look(pump=PumpSign(waits=True, since_ns=seen.at(seen.now_s - 0.5))) == []
    assert seen.dog.silence == ""


def test_a_stopped_process_is_told_and_has_a_patience_of_its_own():
    seen = Seen()
    sign = PumpSign(waits=True, since_ns=1000 * SECOND)
    assert seen.go(300, pump=sign, stopped=True) == []
    assert seen.dog.silence == "Stopped for 299 s, by a debugger or SIGSTOP."
    assert seen.look(pump=sign) == [EndExecutor("had been stopped for 300 s and was ended")]
    seen = Seen()
    seen.go(200, pump=sign, stopped=True)
    # It goes on, and takes a while for what came meanwhile.
    assert seen.go(25, pump=sign, stopped=False) == []
    assert seen.notes[0] == "The executor's process is stopped."


def test_a_host_that_slept_blames_nobody():
    seen = Seen()
    sign = PumpSign(waits=False, since_ns=1000 * SECOND)
    seen.go(5, pump=sign)
    seen.now_s += 3600
    assert seen.go(25, pump=sign) == []


def test_only_lanes_are_at_work():
    assert lane_of(entry(label="probes 1")) is None
    assert lane_of(entry(label="lane x")) is None
    assert at_work([entry(label="definitions"), entry(lane=5), entry(state=State.RESTS)]) == {
        5: entry(lane=5)
    }


SIGHTS = st.fixed_dictionaries(
    {
        "advance": st.sampled_from([0.2, 1.0, 5.0, 20.0]),
        "waits": st.booleans(),
        "fresh": st.booleans(),
        "lanes": st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3),
        "living": st.frozensets(st.integers(1, 4)),
        "retired": st.frozensets(st.integers(0, 2)),
        "cut_off": st.booleans(),
        "stopped": st.booleans(),
    }
)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=200)
@given(st.lists(SIGHTS, min_size=1, max_size=60), st.sampled_from([0.0, 25.0]))
def test_whatever_is_seen_nobody_is_ended_who_may_go_on(sights, limit_s):
    """An executor ends for a reason that was there long enough; a living session by its limit."""
    patience = replace(PATIENCE, work_s=limit_s)
    dog, now, sign = Watchdog(patience), 1000.0, PumpSign(waits=True, since_ns=1000 * SECOND)
    began: dict[int, tuple[int, float]] = {}
    silent_since = stopped_since = now
    for seen in sights:
        now += seen["advance"]
        if seen["fresh"]:
            sign, silent_since = PumpSign(seen["waits"], int(now * SECOND)), now
        if not seen["stopped"]:
            stopped_since = now
        entries = []
        for lane, (session, again) in enumerate(seen["lanes"]):
            if again or began.get(lane, (0, 0.0))[0] != session:
                began[lane] = session, now
            entries.append(entry(lane=lane, session=session, since=began[lane][1]))
        sight = Sight(
            int(now * SECOND), sign, tuple(entries), seen["living"], seen["retired"],
            seen["cut_off"], seen["stopped"], THREAD,
        )  # fmt: skip
        for verdict in dog.look(sight):
            if isinstance(verdict, GiveUpLane):
                assert verdict.lane not in seen["retired"]
                took_s = now - began[verdict.lane][1] + 1e-6
                living = verdict.session in seen["living"]
                assert took_s >= (limit_s if living else patience.outlives_s)
                assert bool(verdict.text) == living
                assert not living or limit_s
            elif isinstance(verdict, EndExecutor) and "stopped" in verdict.how:
                assert now - stopped_since >= patience.stopped_s - 20
            elif isinstance(verdict, EndExecutor) and "answer" in verdict.how:
                assert now - silent_since >= patience.silent_s - 1e-6
            elif isinstance(verdict, EndExecutor):
                assert seen["cut_off"] or verdict.culprit is not None


def test_before_its_first_sign_a_pump_is_not_silent():
    dog = Watchdog(PATIENCE)
    assert dog.look(Sight(10**15, None, (), frozenset())) == []
