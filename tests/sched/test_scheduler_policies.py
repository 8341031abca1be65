"""What each policy prefers, and what budgets do to turns; see elsewhere for `fair` and `fifo`."""

from types import SimpleNamespace

import pytest
from scheduler_driver import Held, Lab, Notebook, device_with

from jgpu.sched import (
    CellEnded,
    CellStarted,
    IllegalEvent,
    IllegalTransition,
    Limits,
    LoopTold,
    MemoryWanted,
    PolicyChanged,
    SessionClosed,
    SessionOpened,
    SpillAsked,
    UserConfigured,
    WorkCancelled,
)
from jgpu.sched.policies import Progress
from jgpu.sched.policies.las import LeastAttainedService
from jgpu.sched.policies.pack import Pack
from jgpu.sched.policies.priority import ByPriority
from jgpu.sched.policies.srtf import ShortestRemaining
from jgpu.sched.states import Residence

MS = 0.001
LIMITS = Limits(trial_s=1.0, least_gain=0.1)


def device_of(policy, *priorities, maximum=1):
    """A device with sessions 1, 2, ... of user1, user2, ... of these classes."""
    device = device_with(maximum=maximum, policy=policy)
    for session, priority in enumerate(priorities, start=1):
        device.tell(SessionOpened(session, f"user{session}", 1.0, priority))
    return device


def view(**known):
    """What a policy sees of a session, as far as it matters here."""
    user = SimpleNamespace(name="user", share=1.0, virtual_s=0.0, in_flight_s=0.0)
    plain = {"user": user, "priority": 1, "virtual_s": 0.0, "in_flight_s": 0.0, "arrival": 1}
    plain |= {"share": 1.0, "lead_s": 0.0}
    return SimpleNamespace(**plain | {"iteration_s": 0.001, "attained_s": 0.0} | known)


def order(device, count):
    """Let so many segments end; the sessions of all that were started."""
    for _ in range(count):
        device.pass_time(MS)
        device.finish(0)
    return [each.session for each in device.started]


# --- las


def test_las_lets_new_jobs_pass_those_that_were_served_for_long():
    device = device_of("las", 1, 1)
    device.send(1, 1.5, ends=True)
    device.pass_time(1.5)
    device.finish(0)
    for _ in range(8):
        device.send(1, 0.004)
    device.send(2, MS, ends=True)
    started = order(device, 4)
    assert started.index(2) < len(started) - 1
    reasons = [entry.why for entry in device.core.story(2)]
    assert "in queue 0, not 1" in reasons


def test_las_serves_jobs_of_one_queue_in_the_order_in_which_they_came():
    device = device_of("las", 1, 1, 1)
    for session in (1, 3, 2):
        for _ in range(2):
            device.send(session, 0.02, ends=True)
    assert order(device, 6) == [1, 1, 3, 3, 2, 2]


def test_las_begins_anew_with_each_cell():
    device = device_of("las", 1)
    (session,) = device.core._table.sessions.values()
    policy = LeastAttainedService()
    session.progress.device_seconds = 50.0
    assert policy.queue_of(session) == 2
    device.tell(CellStarted(1))
    assert policy.queue_of(session) == 0


# --- srtf


def test_srtf_serves_the_loop_that_is_over_soonest():
    device = device_of("srtf", 1, 1)
    for session, left in ((1, 100), (2, 10)):
        device.send(session, MS, ends=True)
        device.tell(LoopTold(session, left, 0.1))
    order(device, 2)
    device.send(1, 0.05, 0.05, ends=True)
    device.send(1, 0.05, 0.05, ends=True)
    device.send(2, 0.05, ends=True)
    assert order(device, 3)[2:5] == [1, 2, 1]


def test_srtf_lets_in_whoever_is_over_sooner_by_more_than_a_turn():
    policy = ShortestRemaining()
    running = view(remaining_s=1.0, iteration_s=0.1)
    assert policy.preempts(running, view(remaining_s=0.5), LIMITS) == "over in 0.5 s, 0.5 s sooner"
    assert policy.preempts(running, view(remaining_s=0.95), LIMITS) == ""


def test_srtf_expects_a_job_of_unknown_length_to_last_as_long_again():
    device = device_of("srtf", 1, 1)
    one, two = device.core._table.sessions[1], device.core._table.sessions[2]
    policy = device.core._turns.policy
    one.progress.device_seconds = two.progress.device_seconds = 3.0
    device.tell(LoopTold(2, 4, 0.5))
    assert (policy.remaining_s(one), policy.remaining_s(two)) == (3.0, 2.0)
    done = two.progress
    done.iterations, done.iteration_s, done.current_s = 3, 1.0, 0.25
    assert policy.remaining_s(two) == 0.75
    device.tell(LoopTold(2, None))
    assert policy.remaining_s(two) == 3.0


@pytest.mark.parametrize("event", [LoopTold(1, -1), LoopTold(1, 1, -1.0), LoopTold(1, 1, 1e999)])
def test_loops_that_cannot_be_are_refused(event):
    with pytest.raises(IllegalEvent, match="told of a loop that cannot be"):
        device_of("srtf", 1).tell(event)


# --- priority


def test_priority_lets_a_better_class_in_between_two_works():
    device = device_of("priority", 2, 0, 1)
    for _ in range(6):
        device.send(1, *[MS] * 5, ends=False)
    device.send(2, MS, ends=True)
    device.send(3, MS, ends=True)
    started = order(device, 11)
    assert started.index(2) < started.index(3) < len(started) - 1
    assert any("interactive before batch" in entry.why for entry in device.core.story(2))
    statuses = device.core.snapshot().sessions
    assert [each.priority for each in statuses] == ["batch", "interactive", "normal"]


def test_priority_is_fair_within_a_class_and_no_worse_class_comes_in():
    device = device_of("priority", 1, 1, 2)
    for _ in range(60):
        for session in (1, 2, 3):
            device.send(session, 0.005, ends=True)
    order(device, 80)
    used = device.used_s
    assert used[1] == pytest.approx(used[2], abs=0.015)
    assert 3 not in used


def test_priority_fetches_the_better_class_from_another_lane():
    device = device_of("priority", 2, 1, 0, maximum=2)
    for session in (1, 2):
        for _ in range(4):
            device.send(session, MS, MS, ends=True)
    device.send(3, MS, ends=True)
    for _ in range(8):
        busy = [lane for lane, running in device.lanes.items() if running]
        device.pass_time(MS)
        device.finish(busy[0])
    assert 3 in [each.session for each in device.started]


def test_priority_compares_classes_before_anything_else():
    policy = ByPriority()
    batch, normal, other = view(priority=2), view(), view(virtual_s=9.0)
    assert sorted([batch, normal, other], key=policy.rank) == [normal, other, batch]
    assert policy.preempts(normal, batch, LIMITS) == ""
    assert policy.outranks(batch, normal, LIMITS)
    assert not policy.outranks(normal, batch, LIMITS)
    assert not policy.outranks(normal, other, LIMITS)


def test_a_policy_that_plans_no_lanes_has_them_all():
    assert ByPriority().lanes(progress(0.0, 0.0, 1), LIMITS) == 4


def test_a_class_that_does_not_exist_is_refused():
    with pytest.raises(IllegalEvent, match="has no class 7"):
        device_of("priority", 7)


# --- pack


def progress(now, worked_s, lanes, version=1, jobs=3, most=4):
    return Progress(now, worked_s, jobs, version, lanes, most)


def test_pack_keeps_a_lane_that_gains_and_takes_back_one_that_does_not():
    pack = Pack()
    assert pack.lanes(progress(0.0, 0.0, 1), LIMITS) == 1
    assert pack.lanes(progress(0.5, 0.4, 1), LIMITS) == 1
    assert pack.lanes(progress(1.0, 0.8, 1), LIMITS) == 2
    assert pack.lanes(progress(1.5, 1.0, 1), LIMITS) == 2  # the second lane is not open yet
    assert pack.lanes(progress(2.0, 2.2, 2), LIMITS) == 3
    assert pack.lanes(progress(3.0, 3.6, 3), LIMITS) == 2
    assert pack.lanes(progress(9.0, 9.9, 2), LIMITS) == 2


def test_pack_tries_no_more_lanes_than_there_are_jobs_or_lanes_and_anew_when_these_change():
    pack = Pack()
    pack.lanes(progress(0.0, 0.0, 1, jobs=2), LIMITS)
    assert pack.lanes(progress(1.0, 0.5, 1, jobs=2), LIMITS) == 2
    assert pack.lanes(progress(2.0, 2.0, 2, jobs=2), LIMITS) == 2
    assert pack.lanes(progress(3.0, 9.0, 2, jobs=2), LIMITS) == 2
    assert pack.lanes(progress(3.1, 9.0, 2, version=2, jobs=1), LIMITS) == 1
    assert pack.lanes(progress(9.9, 9.9, 1, version=2, jobs=1), LIMITS) == 1


def test_pack_opens_lanes_and_another_policy_has_all_of_them():
    device = device_with(maximum=3, policy="pack")
    notebooks = [Notebook(n, f"user{n}", (0.004,), reads=5) for n in (1, 2, 3)]
    lab = Lab(device, *notebooks)
    lab.run(0.4)
    assert len(device.lanes) == 1
    lab.run(4.0)
    assert len(device.lanes) == 3  # lanes of this device do not slow each other
    assert device.core.snapshot().policy == "pack"
    device.tell(PolicyChanged("fair"))
    assert device.core._table.maximum == 3


# --- budgets


def test_a_throttled_user_runs_only_where_the_device_would_idle():
    device = device_of("fair", 1, 1)
    device.tell(UserConfigured("user1", 1.0, throttled=True))
    for _ in range(3):
        device.send(1, MS, ends=True)
    started = order(device, 1)
    assert started == [1, 1, 1]
    for _ in range(20):
        device.send(1, MS, ends=True)
        device.send(2, MS, ends=True)
    order(device, 5)
    assert [each.waits_on for each in device.core.snapshot().sessions] == ["budget", ""]
    order(device, 17)
    after = [each.session for each in device.started][5:]
    assert after[:18] == [2] * 18
    device.tell(UserConfigured("user1"))
    assert not device.core._ledger.throttles


def test_a_throttled_iteration_makes_way_between_works_and_goes_on_later():
    device = device_of("fair", 1, 1)
    device.tell(UserConfigured("user1", 1.0, throttled=True))
    for _ in range(8):
        device.send(1, 0.004)
    device.send(2, MS, ends=True)
    started = order(device, 6)
    assert started.index(2) < 5
    assert any("used up their budget" in entry.why for entry in device.core.story(2))


def test_nobody_who_is_throttled_comes_in_between_for_what_he_is_owed():
    device = device_of("fair", 1, 1)
    for _ in range(60):
        device.send(1, 0.002)
    device.send(2, MS)
    device.tell(UserConfigured("user2", 1.0, throttled=True))
    assert 2 not in order(device, 40)


def test_users_who_cannot_be_are_refused():
    with pytest.raises(IllegalEvent, match="No user can be"):
        device_of("fair").tell(UserConfigured("user1", 0.0))


# --- memory that changes its mind


def test_a_session_that_yields_and_closes_gives_everything_up():
    device = device_of("fair", 1)
    device.measure(1, kept=10)
    device.send(1, MS, MS)
    device.tell(SpillAsked(1))
    device.tell(SessionClosed(1))
    device.finish(0, 2)
    assert device.core.snapshot().sessions == ()


def test_what_is_wanted_while_it_is_away_comes_back_with_the_rest():
    device = device_of("fair", 1)
    device.measure(1, kept=10)
    device.tell(SpillAsked(1))
    device.copied(1)
    held = device.memory[1]
    held.away_kept += 5
    device.tell(MemoryWanted(1, 15))
    assert device.core.snapshot().sessions[0].spilled == 15
    device.tell(SpillAsked(1))
    assert device.core.snapshot().sessions[0].residence == "away"


def test_an_evicted_session_in_mid_iteration_is_asked_once():
    device = device_of("fair", 1)
    device.measure(1, kept=10)
    device.send(1, MS)
    device.tell(SpillAsked(1))
    device.tell(SpillAsked(1, resident=True))
    assert device.core.snapshot().sessions[0].residence == "yielding"


def test_memory_cannot_come_back_that_was_not_away():
    device = device_of("fair", 1)
    with pytest.raises(IllegalTransition, match="the memory of session 1 cannot go from here"):
        device.core._table.sessions[1].reside(Residence.RESTORING)


def away_in_mid_iteration():
    """A device on which session 1 waits in mid-iteration for 20 bytes there is no room for."""
    device = device_of("fair", 1, 1)
    device.measure(2, resident=990)
    device.send(1, MS)
    device.finish(0)
    device.memory[1] = Held(away_kept=20)
    device.tell(MemoryWanted(1, 20))
    device.send(1, MS, ends=True)
    assert len(device.started) == 1
    assert device.core.snapshot().sessions[0].lane == 0
    return device


def test_what_is_wanted_in_mid_iteration_waits_in_a_queue_once_the_iteration_is_over():
    device = away_in_mid_iteration()
    device.works[2].cancelled = True
    device.tell(WorkCancelled(1, (2,)))
    device.tell(CellEnded(1))
    assert device.core.snapshot().sessions[0].lane is None
    device.send(1, MS, ends=True)
    device.measure(2, resident=0)
    device.copied(1)
    assert len(device.started) == 2


def test_what_is_wanted_in_mid_iteration_and_freed_meanwhile_is_waited_for_no_longer():
    device = away_in_mid_iteration()
    device.measure(1, away_kept=0)
    assert len(device.started) == 2


def test_nobody_moves_whose_memory_moves():
    device = device_of("fair", 1, maximum=2)
    device.measure(1, kept=10)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.send(1, MS)
    table = device.core._table
    session = table.sessions[1]
    assert not table.can_move(session, session.lane)
    assert not device.core._room._may_wait(session)
    device.core._placing.spread()
    assert session.lane is not None


def test_a_program_that_has_begun_runs_to_its_end_whatever_it_turns_out_to_need():
    device = device_of("fair", 1, 1)
    device.measure(2, kept=960)
    device.send(1, *[MS] * 10, live=10)
    device.measure(1, transient=80)
    assert device.capacity == {0: 80}
    order(device, 9)
    assert sum(each.count for each in device.started) == 10
