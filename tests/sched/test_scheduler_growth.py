"""Tables of the scheduler that outlive sessions."""

import pytest

from jgpu.sched import Core, LanesConfigured, Limits, SessionClosed, SessionOpened, TimeCharged
from jgpu.sched.reports.recording import EventRecorder


def test_accounts_are_kept_of_few_users_without_a_session():
    core = Core("fair", Limits(users_kept=10))
    core.handle(LanesConfigured(1, 100), 0.0)
    core.handle(SessionOpened(1, "stays"), 0.0)
    core.handle(TimeCharged(1, 5.0), 0.0)
    for number in range(2, 200):
        core.handle(SessionOpened(number, f"user{number}"), 0.0)
        core.handle(TimeCharged(number, 0.5), 0.0)
        core.handle(SessionClosed(number), 0.0)
        core.validate()
    users = {user.name: user.device_seconds for user in core.snapshot().users}
    assert len(users) <= 12
    assert users["stays"] == 5.0
    assert users["user199"] == 0.5


def test_a_user_whose_account_went_comes_back_as_a_newcomer():
    core = Core("fair", Limits(users_kept=0))
    core.handle(LanesConfigured(1, 100), 0.0)
    for number, user in enumerate(["user1", "user2", "user1"], start=1):
        core.handle(SessionOpened(number, user), 0.0)
        core.handle(TimeCharged(number, 1.0), 0.0)
        core.handle(SessionClosed(number), 0.0)
    core.validate()
    assert core.snapshot().users[0].device_seconds == pytest.approx(1.0)


class Sink:
    def __init__(self):
        self.lines = 0

    def write(self, text):
        self.lines += 1


def test_no_more_is_recorded_than_can_be_read(monkeypatch):
    monkeypatch.setattr("jgpu.sched.reports.recording._MOST_LINES", 100)
    sink = Sink()
    recorder = EventRecorder(sink, "fair")
    for _ in range(1000):
        recorder.note(SessionClosed(1), 0.0)
    assert sink.lines == 100
