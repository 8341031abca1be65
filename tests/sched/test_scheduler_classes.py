"""What the classes of sessions mean under `fair`: batch counts less, interactive comes first."""

import pytest
from scheduler_driver import Lab, Notebook, device_with

from jgpu.sched import PolicyChanged, Priority, SessionOpened, TimeCharged

MS = 0.001
TEN = (MS,) * 10
INTERACTIVE, NORMAL, BATCH = Priority


def lab_of(*notebooks, **options):
    return Lab(device_with(validate=False, **options), *notebooks)


def shares(*notebooks, until=4.0, **options):
    """Each user's part of the device's time, and each session's."""
    lab = lab_of(*notebooks, **options)
    lab.run(until)
    lab.device.core.validate()
    users, total_s = lab.user_seconds(), lab.device.busy_s
    sessions = {each.id: each.device_seconds for each in lab.device.core.snapshot().sessions}
    return (
        {user: seconds / total_s for user, seconds in users.items()},
        {session: seconds / total_s for session, seconds in sessions.items()},
    )


# --- batch


@pytest.mark.parametrize("reads", [1, 10])
def test_whoever_has_batch_work_alone_counts_a_quarter_beside_others(reads):
    users, _ = shares(
        Notebook(1, "user1", TEN, reads=reads, priority=BATCH),
        Notebook(2, "user2", TEN, reads=reads, pause_s=0.0),
    )
    assert users["user1"] == pytest.approx(1 / 5, abs=0.01)


def test_ten_batch_sessions_of_a_user_count_as_one():
    grading = [Notebook(n, "user1", TEN, reads=4, priority=BATCH) for n in range(10, 20)]
    users, _ = shares(
        *grading,
        Notebook(1, "user2", TEN, pause_s=0.0),
        Notebook(2, "user3", TEN, pause_s=0.0),
    )
    assert users["user1"] == pytest.approx(1 / 9, abs=0.01)
    assert users["user2"] == pytest.approx(4 / 9, abs=0.01)


def test_a_quarter_is_a_quarter_of_the_users_own_weight():
    users, _ = shares(
        Notebook(1, "user1", TEN, weight=8.0, priority=BATCH),
        Notebook(2, "user2", TEN, pause_s=0.0),
    )
    assert users["user1"] == pytest.approx(2 / 3, abs=0.01)


def test_a_users_own_batch_work_takes_nothing_from_the_user_and_a_fifth_of_what_is_theirs():
    users, sessions = shares(
        Notebook(1, "user1", TEN, pause_s=0.0),
        Notebook(2, "user1", TEN, priority=BATCH),
        Notebook(3, "user2", TEN, pause_s=0.0),
    )
    assert users["user1"] == pytest.approx(1 / 2, abs=0.01)
    assert sessions[2] == pytest.approx(1 / 10, abs=0.01)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_batch_work_among_batch_work_has_the_whole_weights(weight):
    users, _ = shares(
        Notebook(1, "user1", TEN, weight=weight, priority=BATCH),
        Notebook(2, "user2", TEN, priority=BATCH),
    )
    assert users["user1"] == pytest.approx(weight / (weight + 1), abs=0.01)


def test_batch_work_alone_has_the_whole_device():
    lab = lab_of(Notebook(1, "user1", TEN, reads=10, priority=BATCH))
    lab.run(2.0)
    assert lab.user_seconds()["user1"] > 1.98


def test_a_notebook_that_reads_its_loss_does_not_pay_fourfold_for_the_batch_work_beside_it():
    """In the moments between its iterations only the user's batch work has anything to run."""
    with_batch, sessions = shares(
        Notebook(1, "user1", TEN, pause_s=3 * MS),
        Notebook(2, "user1", TEN, priority=BATCH),
        Notebook(3, "user2", TEN, pause_s=0.0),
    )
    without, _ = shares(
        Notebook(1, "user1", TEN, pause_s=3 * MS), Notebook(3, "user2", TEN, pause_s=0.0)
    )
    assert with_batch["user1"] == pytest.approx(1 / 2, abs=0.02)
    assert sessions[1] > 0.75 * without["user1"]


def test_once_a_users_other_sessions_rest_their_batch_work_counts_a_quarter():
    notebook = Notebook(1, "user1", TEN, pause_s=100.0)
    lab = lab_of(
        notebook,
        Notebook(2, "user1", TEN, priority=BATCH),
        Notebook(3, "user2", TEN, pause_s=0.0),
    )
    lab.run(1.0)
    before = lab.user_seconds()
    lab.run(5.0)
    after = lab.user_seconds()
    assert after["user1"] - before["user1"] == pytest.approx(4.0 / 5, abs=0.04)


def test_what_was_used_as_batch_is_no_debt_later():
    """A user whose batch run ends and who opens a notebook has a whole share at once."""
    lab = lab_of(
        Notebook(1, "user1", TEN, priority=BATCH),
        Notebook(2, "user2", TEN, pause_s=0.0),
        Notebook(3, "user1", TEN, pause_s=0.0, begins_at=3.0),
    )
    lab.run(3.0)
    before = lab.user_seconds()
    lab.run(4.0)
    after = lab.user_seconds()
    assert after["user1"] - before["user1"] == pytest.approx(0.5, abs=0.03)


def test_what_is_computed_beside_the_lanes_counts_by_class_too():
    device = device_with()
    for session, priority in ((1, BATCH), (2, NORMAL)):
        device.tell(SessionOpened(session, f"user{session}", 1.0, priority))
    device.send(2, 10 * MS)
    for session in (1, 2):
        device.tell(TimeCharged(session, 0.1))
    assert device.core.ahead_s(1) == pytest.approx((0.4 - 0.1 - 10 * MS) / 4)


@pytest.mark.parametrize("policy", ["las", "fifo", "srtf", "priority"])
def test_other_policies_weigh_no_class(policy):
    device = device_with(policy=policy)
    device.tell(SessionOpened(1, "user1", 1.0, BATCH))
    device.tell(SessionOpened(2, "user2"))
    device.send(2, 10 * MS)
    device.tell(TimeCharged(1, 0.4))
    assert device.core.ahead_s(1) == pytest.approx(0.4 - 10 * MS)


def test_a_change_of_the_policy_weighs_anew():
    lab = lab_of(
        Notebook(1, "user1", TEN, priority=BATCH),
        Notebook(2, "user2", TEN, pause_s=0.0),
        policy="las",
    )
    lab.run(1.0)
    lab.device.tell(PolicyChanged("fair"))
    before = lab.user_seconds()["user1"]
    lab.run(11.0)
    assert lab.user_seconds()["user1"] - before == pytest.approx(2.0, abs=0.3)
    lab.device.tell(PolicyChanged("priority"))
    lab.device.core.validate()


# --- interactive


@pytest.mark.parametrize("reads", [1, 10])
def test_interactive_work_has_no_larger_share(reads):
    notebooks = [Notebook(n, f"user{n}", TEN, reads=reads) for n in (1, 2, 3)]
    users, _ = shares(
        Notebook(9, "user9", TEN, reads=reads, priority=INTERACTIVE), *notebooks, until=8.0
    )
    assert users["user9"] == pytest.approx(1 / 4, abs=0.005)


def test_an_interactive_session_has_no_larger_share_of_its_users():
    _, sessions = shares(
        Notebook(1, "user1", TEN, priority=INTERACTIVE), Notebook(2, "user1", TEN), until=8.0
    )
    assert sessions[1] == pytest.approx(1 / 2, abs=0.01)


def test_of_those_who_come_together_the_interactive_one_is_first_and_has_no_more():
    device = device_with()
    device.tell(SessionOpened(9, "user9"))
    device.send(9, *[10 * MS] * 3, ends=True)
    for session in range(1, 5):
        priority = INTERACTIVE if session == 3 else NORMAL
        device.tell(SessionOpened(session, f"user{session}", 1.0, priority))
    for _ in range(3):
        for session in range(1, 5):
            device.send(session, 10 * MS, ends=True)
    order = []
    while any(device.lanes.values()):
        (running,) = [lane[0] for lane in device.lanes.values()]
        order.append(running.start.session)
        device.pass_time(10 * MS)
        device.finish(running.start.lane)
    assert order == [9, 9, 9, 3, 1, 2, 4, 3, 1, 3, 2, 4, 1, 2, 4]
