"""Simulated runs: completion times that follow by arithmetic, lanes, memory, no chance."""

import random

import pytest

from jgpu.sched import CellStarted, Core, Limits, SessionOpened, SpillAsked
from jgpu.sched.simulate.arrivals import bursts, heavy_tailed, poisson, uniform
from jgpu.sched.simulate.clock import Clock
from jgpu.sched.simulate.device import Hardware, SimulatedDevice
from jgpu.sched.simulate.engine import Grain, contended_fairness, run_jobs, scaled_limits
from jgpu.sched.simulate.jobs import Cell, JobMemory, SimulatedJob
from jgpu.sched.simulate.loop import LoopPace
from jgpu.sched.simulate.rates import packing_load, speed
from jgpu.sched.simulate.requests import Server
from jgpu.sched.simulate.results import SimulatedCell, jain, mean, percentile, summarise

MS = 0.001
WHOLE = LoopPace(segment_s=1.0)


def job(number, iterations, iteration_s=10 * MS, arrival_s=0.0, **options):
    """A job of one cell."""
    keys = ("think_s", "host_s", "ahead", "programs", "told")
    cell = Cell(iterations, iteration_s, **{k: options.pop(k) for k in keys if k in options})
    return SimulatedJob(f"job{number}", f"user{number}", arrival_s, (cell,), **options)


def completion(jobs, policy, **options):
    """Completion times in milliseconds, in the order of the jobs."""
    run = run_jobs(jobs, policy, pace=options.pop("pace", WHOLE), **options)
    assert run.busy_s == pytest.approx(sum(run.charged_s.values()))
    return [pytest.approx(each.jct_s / MS) for each in run.jobs]


def test_fifo_runs_one_job_after_the_other():
    jobs = [job(1, 5), job(2, 2, arrival_s=1 * MS), job(3, 3, arrival_s=100 * MS)]
    assert completion(jobs, "fifo") == [50, 69, 30]


def test_a_cell_waits_until_its_first_work_begins():
    jobs = [job(1, 5), job(2, 2, arrival_s=1 * MS), job(3, 3, arrival_s=100 * MS)]
    run = run_jobs(jobs, "fifo", pace=WHOLE)
    assert [cell.waited_s / MS for cell in run.cells] == [0, pytest.approx(49), 0]
    assert SimulatedCell(1, 2.0, 3.0, 1.0).waited_s == 0.0


def test_batch_jobs_count_a_quarter_under_fair():
    jobs = [job(1, 100, priority=2), job(2, 40)]
    batch, other = run_jobs(jobs, pace=WHOLE).jobs
    assert other.jct_s == pytest.approx(0.5, abs=0.015)  # four fifths of the device
    assert batch.jct_s == pytest.approx(1.4)


def test_srtf_runs_the_shortest_job_first():
    jobs = [job(1, 50), job(2, 2, arrival_s=1 * MS), job(3, 8, arrival_s=2 * MS)]
    # what is in flight when the shorter ones come (two segments) runs out
    assert completion(jobs, "srtf") == [600, 39, 118]


def test_fair_gives_equal_jobs_of_two_users_alternate_turns():
    assert completion([job(1, 10), job(2, 10)], "fair") == [190, 200]


def test_fair_shares_follow_the_weights():
    jobs = [job(1, 30, weight=2.0), job(2, 30)]
    first, second = run_jobs(jobs, "fair", pace=WHOLE).jobs
    assert second.jct_s == pytest.approx(600 * MS)
    assert first.jct_s == pytest.approx(450 * MS, abs=20 * MS)


def test_las_lets_a_newcomer_overtake_who_was_served_longer():
    jobs = [job(1, 200), job(2, 10, arrival_s=1.5)]
    long, short = run_jobs(jobs, "las", pace=WHOLE).jobs
    assert short.jct_s <= 0.13
    assert long.jct_s == pytest.approx(2.1)


def test_a_job_that_reads_each_loss_pays_its_own_time_each_iteration():
    jobs = [job(1, 10, host_s=3 * MS, ahead=1, told=False)]
    assert completion(jobs, "fair") == [130]


def test_a_job_that_runs_ahead_hides_its_own_time():
    jobs = [job(1, 10, host_s=3 * MS, ahead=4)]
    assert completion(jobs, "fair") == [103]


def test_think_time_and_startup_are_waits_without_work():
    cells = (Cell(2, 10 * MS), Cell(1, 10 * MS, think_s=2.0))
    run = run_jobs([SimulatedJob("job", "user1", 0.0, cells, startup_s=1.0)], pace=WHOLE)
    assert [each.began_s for each in run.cells] == [pytest.approx(1.0), pytest.approx(3.02)]
    assert [each.took_s for each in run.cells] == [pytest.approx(0.02), pytest.approx(0.01)]
    assert run.jobs[0].first_s == pytest.approx(1.0)
    assert run.busy_s == pytest.approx(0.03)


def test_a_session_that_works_again_is_not_told_to_rest():
    jobs = [job(1, 3, host_s=0.6, ahead=2, iteration_s=0.7)]
    assert completion(jobs, "fair", pace=LoopPace(segment_s=1.0, idle_s=0.5)) == [2700]


def test_programs_and_segments_change_nothing_for_a_job_alone():
    jobs = [job(1, 10, programs=4)]
    assert completion(jobs, "fair", pace=LoopPace(segment_s=0.5 * MS)) == [100]


@pytest.mark.parametrize(("load", "each_ms"), [(0.4, 100), (0.5, 100), (1.0, 200), (1.2, 240)])
def test_jobs_in_two_lanes_are_slowed_by_the_sum_of_their_loads(load, each_ms):
    jobs = [job(1, 10, load=load), job(2, 10, load=load)]
    assert completion(jobs, "fair", hardware=Hardware(lanes=2)) == [each_ms, each_ms]


def test_a_neighbour_that_ends_gives_its_speed_back():
    jobs = [job(1, 1, 10 * MS), job(2, 1, 30 * MS)]
    assert completion(jobs, "fair", hardware=Hardware(lanes=2)) == [20, 40]


def test_a_switch_costs_what_the_hardware_says():
    jobs = [job(1, 2), job(2, 2)]
    assert completion(jobs, "fair", hardware=Hardware(switch_s=1 * MS)) == [43, 32]


def test_work_that_does_not_fit_waits_and_everything_finishes():
    memory = JobMemory(resident=100, kept=300, transient=100)
    jobs = [job(n, 400, memory=memory, think_s=n * 0.1) for n in range(1, 5)]
    hardware = Hardware(capacity=1000, look_s=0.1, link_bytes_per_s=10_000)
    run = run_jobs(jobs, "fair", hardware=hardware, sample_s=0.05)
    assert len(run.jobs) == 4
    assert run.spilled_bytes > 0
    assert run.restored_bytes > 0
    assert run.memory[-1].committed <= 1000
    assert max(each.waiting for each in run.memory) >= 1
    assert run.memory[-1].resident in (0, 100)


def test_fairness_is_measured_while_users_compete():
    jobs = [job(1, 100), job(2, 100)]
    runs = {p: run_jobs(jobs, p, pace=WHOLE, sample_s=0.2) for p in ("fair", "fifo")}
    assert contended_fairness(runs["fair"].memory) == pytest.approx(1.0, abs=0.01)
    assert contended_fairness(runs["fifo"].memory) == pytest.approx(0.5, abs=0.01)
    assert contended_fairness(run_jobs([job(1, 10)], sample_s=0.05).memory) is None


def test_a_run_may_end_before_its_jobs():
    run = run_jobs([job(1, 10), job(2, 100)], "fifo", until_s=0.2)
    assert [each.name for each in run.jobs] == ["job1"]


def test_a_server_answers_requests_one_at_a_time():
    clock = Clock()
    device = SimulatedDevice(clock, Core("fair"), Hardware())
    server = Server(clock, device, 1, "user1", (10 * MS, 10 * MS), (1.0, 1.005, 2.0))
    clock.run()
    assert server.latencies == [pytest.approx(each * MS) for each in (20, 35, 20)]


def test_copies_of_a_session_that_has_gone_mean_nothing():
    clock = Clock()
    device = SimulatedDevice(clock, Core("fair"), Hardware(link_bytes_per_s=100))
    device.tell(SessionOpened(1, "user1"))
    device.measure(1, JobMemory(resident=100, kept=100))
    device.tell(SpillAsked(1, resident=True))
    clock.run(until=1.0)
    device.close(1)
    clock.run()
    assert (device.spilled_bytes, clock.now) == (200, 2.0)
    device.tell(SessionOpened(2, "user1"))
    device.measure(2, JobMemory(resident=100, kept=100))
    device.tell(SpillAsked(2, resident=True))
    clock.run()
    device.tell(CellStarted(2))
    device.close(2)
    clock.run()
    assert device.restored_bytes == 200


def test_a_model_that_was_spilled_comes_back_and_what_is_away_is_told_as_away():
    clock = Clock()
    device = SimulatedDevice(clock, Core("fair"), Hardware(link_bytes_per_s=100))
    device.tell(SessionOpened(1, "user1"))
    device.measure(1, JobMemory(resident=100, kept=100))
    device.tell(SpillAsked(1, resident=True))
    clock.run()
    device.measure(1, JobMemory(resident=100, kept=50))
    (session,) = device.core.snapshot().sessions
    assert (session.resident, session.kept, session.spilled) == (0, 0, 150)
    device.tell(CellStarted(1))
    clock.run()
    (session,) = device.core.snapshot().sessions
    assert (session.resident, session.kept, session.spilled) == (100, 50, 0)


def test_the_same_input_gives_the_same_run():
    chance = [random.Random(7), random.Random(7)]
    runs = []
    for each in chance:
        times = zip(uniform(each, 8, 1.0), heavy_tailed(each, 8, 1.5, 4.0), strict=True)
        jobs = [job(n, 40, length / 40, arrival) for n, (arrival, length) in enumerate(times)]
        runs.append(run_jobs(jobs, "fair", hardware=Hardware(lanes=2)))
    assert runs[0] == runs[1]


def test_grain_makes_iterations_longer_and_changes_no_work():
    fine = job(1, 1000, host_s=1 * MS)
    coarse = fine.coarsened(1.0)
    assert coarse.service_s == pytest.approx(fine.service_s)
    assert coarse.cells[0].iterations == 10
    assert coarse.cells[0].host_s == pytest.approx(0.1)
    assert job(1, 3).coarsened(1 * MS) == job(1, 3)
    (whole,) = run_jobs([fine], grain=Grain(1.0, instead_of_s=10 * MS)).jobs
    assert whole.jct_s == pytest.approx(10.1)


def test_scaled_limits_scale_times_alone():
    limits = scaled_limits(Limits(), 10)
    assert limits.quantum_s == pytest.approx(Limits().quantum_s * 10)
    assert limits.in_flight_segments == Limits().in_flight_segments


def test_loads_are_calibrated_to_what_was_measured():
    assert speed([3.0]) == 1.0
    gaining, losing = packing_load(81.8, 419.3), packing_load(10.3, 9.0)
    assert 20 * speed([gaining] * 20) == pytest.approx(419.3 / 81.8)
    assert 2 * speed([losing] * 2) == pytest.approx(9.0 / 10.3)
    assert speed([gaining] * 3) == 1.0


def test_the_clock_keeps_the_order_in_which_it_was_asked():
    clock, seen = Clock(), []
    clock.at(1.0, seen.append, "a")
    clock.at(1.0, seen.append, "b")
    clock.after(0.5, clock.at, 0.1, seen.append, "late")
    clock.run(until=2.0)
    assert seen == ["late", "a", "b"]
    assert clock.now == 2.0


def test_arrivals_come_in_order():
    chance = random.Random(1)
    assert mean(poisson(chance, 2000, 10.0)) == pytest.approx(100.0, rel=0.05)
    times = bursts(chance, 6, 3, 10.0, 1.0)
    assert times == sorted(times)
    assert [time // 10 for time in times] == [0, 0, 0, 1, 1, 1]
    assert sum(heavy_tailed(chance, 100, 1.5, 300.0)) == pytest.approx(300.0)


def test_figures_over_jobs():
    assert percentile([1, 2, 3, 4, 5], 50) == 3
    assert percentile([1, 2], 95) == pytest.approx(1.95)
    assert jain([1, 1, 1]) == pytest.approx(1.0)
    assert jain([1, 0]) == pytest.approx(0.5)
    assert jain([0, 0]) == 1.0
    run = run_jobs([job(1, 1), job(2, 3)], "fifo", pace=WHOLE)
    figures = summarise(run.jobs)
    assert figures.makespan_s == pytest.approx(0.04)
    assert figures.mean_jct_s == pytest.approx(0.025)
    assert figures.mean_queue_s == pytest.approx(0.005)
    assert figures.mean_first_s == pytest.approx(0.005)
