"""Shares of device time, over seconds of virtual time."""

import pytest
from scheduler_driver import Device, Lab, Notebook, device_with

from jgpu.sched import (
    Core,
    IllegalEvent,
    LanesConfigured,
    Limits,
    SessionClosed,
    SessionOpened,
    TimeCharged,
)

MS = 0.001
TEN = (MS,) * 10


def shares(notebooks, until=4.0, **options):
    """Let notebooks train on one device; return each user's share of its time."""
    lab = Lab(device_with(validate=False, **options), *notebooks)
    lab.run(until)
    lab.device.core.validate()
    used_s = lab.user_seconds()
    total_s = sum(used_s.values())
    assert total_s == pytest.approx(lab.device.busy_s)
    return {user: seconds / total_s for user, seconds in used_s.items()}


@pytest.mark.parametrize("reads", [1, 10])
def test_users_share_alike_however_many_notebooks_they_have(reads):
    notebooks = [Notebook(session, "user1", TEN, reads=reads) for session in range(4)]
    found = shares([*notebooks, Notebook(9, "user2", TEN, reads=reads)])
    assert found["user2"] == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize("work_s", [1.5 * MS, 3 * MS, 10 * MS])
@pytest.mark.parametrize("reads", [1, 10])
def test_longer_iterations_give_no_larger_share(work_s, reads):
    found = shares(
        [
            Notebook(1, "user1", (work_s,) * 10, reads=reads),
            Notebook(2, "user2", TEN, pause_s=0.5 * MS),
        ]
    )
    assert found["user2"] == pytest.approx(0.5, abs=0.02)


def test_shares_follow_weights():
    notebooks = [Notebook(session, "user1", TEN, weight=2.0) for session in range(3)]
    found = shares([*notebooks, Notebook(9, "user2", TEN)])
    assert found["user1"] == pytest.approx(2 / 3, abs=0.005)


def test_who_claims_no_boundary_gets_no_more():
    found = shares(
        [Notebook(1, "user1", TEN, reads=1000, ends=False), Notebook(2, "user2", TEN)], until=3.0
    )
    assert found["user2"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("lanes", [1, 3])
def test_among_many_the_same_is_chosen_as_by_a_look_at_all(lanes):
    """Turns, hence virtual times, differ as soon as one choice does."""
    stories = []
    for listed in (0, 12, 1000):
        device = Device(Core("fair", Limits(listed_at_most=listed)), validate=False)
        device.tell(LanesConfigured(lanes, 1000))
        notebooks = [
            Notebook(
                session,
                f"user{session % 25}",
                ((session % 7 + 1) * MS / 2,) * 2,
                reads=1 + session % 3,
                weight=(1.0, 2.0)[session % 25 % 2],
                priority=session % 3,
                begins_at=session * MS,
                pause_s=(session % 5) * 7 * MS,
            )
            for session in range(60)
        ]
        lab = Lab(device, *notebooks)
        lab.run(3.0)
        device.core.validate()
        stories.append([device.core.story(each.session) for each in notebooks])
    assert stories[0] == stories[1] == stories[2]


def test_a_latecomer_neither_monopolises_nor_starves():
    lab = Lab(
        device_with(validate=False),
        Notebook(1, "user1", TEN),
        Notebook(2, "user2", TEN, begins_at=2.0),
    )
    lab.run(2.0)
    before = lab.user_seconds()["user1"]
    lab.run(2.05)
    after = lab.user_seconds()
    assert after["user1"] - before == pytest.approx(0.025, abs=0.010)
    assert after["user2"] == pytest.approx(0.025, abs=0.010)


def test_who_was_away_for_long_is_owed_nothing():
    lab = Lab(
        device_with(validate=False),
        Notebook(1, "user1", TEN),
        Notebook(2, "user2", TEN, pause_s=1.0),
    )
    lab.run(1.5)
    used_s = lab.user_seconds()
    assert used_s["user2"] == pytest.approx(0.020, abs=0.001)
    assert used_s["user1"] > 1.4


def test_a_short_cell_after_a_pause_is_ahead_by_a_turn():
    """It is over before a fair share of each of its ten iterations would have ended it."""
    cells, pause_s = Notebook(9, "user9", TEN, reads=10, pause_s=0.25), 0.25
    others = [Notebook(session, f"user{session}", TEN) for session in range(1, 5)]
    lab = Lab(device_with(validate=False), cells, *others)
    lab.run(20.0)
    cell_s = 20.0 / (cells.iterations / 10) - pause_s
    assert cell_s < 0.43
    used_s = lab.user_seconds()
    assert used_s["user9"] < min(used_s[f"user{each}"] for each in range(1, 5))


def test_who_pauses_for_a_moment_only_is_ahead_by_no_more_than_he_missed():
    pausing = Notebook(99, "user99", TEN, pause_s=0.11)
    others = [Notebook(session, f"user{session}", TEN) for session in range(1, 40)]
    lab = Lab(device_with(validate=False), pausing, *others)
    lab.run(20.0)
    used_s = lab.user_seconds()
    assert used_s["user99"] <= 1.02 * min(used_s[f"user{each}"] for each in range(1, 40))


def test_who_asks_for_less_than_a_share_gets_it_at_once():
    lab = Lab(
        device_with(validate=False),
        *[Notebook(session, f"user{session}", TEN) for session in (1, 2, 3)],
        Notebook(4, "user4", (2 * MS,), pause_s=30 * MS),
    )
    lab.run(4.0)
    # 2 ms of work every 32 ms; waits for little more than the iteration that is under way
    assert lab.notebooks[4].iterations > 4.0 / 0.046


def test_eight_users_with_different_models_share_alike():
    notebooks = [
        Notebook(number, f"user{number}", (0.5 * MS * (number + 1),) * (4 + number))
        for number in range(8)
    ]
    found = list(shares(notebooks, until=8.0).values())
    assert sum(found) ** 2 / (len(found) * sum(share**2 for share in found)) > 0.999


def test_three_users_share_two_lanes_alike():
    found = shares([Notebook(n, f"user{n}", TEN) for n in range(3)], maximum=2)
    assert all(share == pytest.approx(1 / 3, abs=0.01) for share in found.values())


def test_the_notebooks_of_a_user_share_alike_wherever_they_are():
    lab = Lab(
        device_with(maximum=2, capacity=100, validate=False),
        *[
            Notebook(session, f"user{session % 3}", (MS,) * 3, transient=size)
            for session, size in enumerate((35, 0, 0, 60, 10))
        ],
    )
    lab.run(3.0)
    # sessions 1 and 4 of user1 need little, and fit into either lane
    sessions = {each.id: each.device_seconds for each in lab.device.core.snapshot().sessions}
    assert sessions[1] == pytest.approx(sessions[4], rel=0.1)


def test_a_lane_never_idles_while_somebody_has_work():
    lab = Lab(
        device_with(validate=False),
        Notebook(1, "user1", TEN, pause_s=5 * MS),
        Notebook(2, "user2", TEN, pause_s=5 * MS),
    )
    lab.run(2.0)
    assert lab.device.busy_s > 1.99


# --- what is computed beside the lanes


def opened(*users):
    device = device_with()
    for session, user in enumerate(users, start=1):
        device.tell(SessionOpened(session, user))
    return device


def seconds_of(device):
    return {user.name: user.device_seconds for user in device.core.snapshot().users}


def test_what_is_computed_beside_the_lanes_is_charged_to_session_and_user():
    device = opened("user1", "user2")
    assert device.tell(TimeCharged(1, 0.5)) == []
    assert seconds_of(device) == {"user1": 0.5, "user2": 0.0}
    assert [s.device_seconds for s in device.core.snapshot().sessions] == [0.5, 0.0]
    assert device.core.snapshot().busy_seconds == 0.0
    assert "pays for 0.500000 s" in str(device.core.story(1)[-1])


def test_whoever_computed_beside_the_lanes_waits_until_others_have_had_as_much():
    lab = Lab(device_with(validate=False), Notebook(1, "user1", TEN), Notebook(2, "user2", TEN))
    lab.run(1.0)
    assert 1 <= lab.device.core.users_at_work <= 2
    lab.device.tell(TimeCharged(1, 0.3))
    assert lab.device.core.ahead_s(1) == pytest.approx(0.3, abs=0.03)
    assert lab.device.core.ahead_s(2) == pytest.approx(-0.3, abs=0.03)
    before = lab.user_seconds()
    lab.run(1.3)
    after = lab.user_seconds()
    used_s = {user: after[user] - before[user] for user in after}
    assert used_s["user1"] < 0.07  # while the other reads
    assert used_s["user1"] + used_s["user2"] == pytest.approx(0.3, abs=0.01)
    assert lab.device.core.ahead_s(1) < 0.15


def test_whoever_only_computes_beside_the_lanes_is_not_owed_what_they_were_not_there_for():
    lab = Lab(device_with(validate=False), Notebook(1, "user1", TEN))
    lab.run(2.0)
    lab.device.tell(SessionOpened(2, "user2"))
    lab.device.tell(TimeCharged(2, 0.25))
    assert lab.device.core.ahead_s(2) == pytest.approx(0.25, abs=0.02)


def test_nobody_is_ahead_of_nobody():
    device = opened("user1")
    device.tell(TimeCharged(1, 5.0))
    assert device.core.ahead_s(1) == 0.0


def test_a_charge_of_a_session_that_is_gone_changes_nothing():
    device = opened("user1")
    device.tell(SessionClosed(1))
    assert device.tell(TimeCharged(1, 5.0)) == []
    assert seconds_of(device) == {"user1": 0.0}


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_charge_that_cannot_be_is_refused(seconds):
    with pytest.raises(IllegalEvent, match="cannot be charged"):
        opened("user1").tell(TimeCharged(1, seconds))
