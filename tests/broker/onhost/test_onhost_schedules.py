"""The `cuda` device over streams that run out of order: no byte is wrong, each rule is needed."""

import inspect

import pytest
from results import write_result
from schedules import LANES, NBYTES, SESSIONS, Schedule, Wrong

from jgpu.broker.executor.devices.cuda import CudaDevice as Device
from jgpu.broker.executor.devices.gpu.lane import StreamLane as Lane

EVERYDAY = range(20)
UNTIL_IT_SHOWS = range(80)
THOUSAND = range(1000)


def run_all(seeds):
    for seed in seeds:
        Schedule(seed).run()


def is_wrong(seed):
    """Whether a schedule has a wrong byte, and what it did until then."""
    schedule = Schedule(seed)
    try:
        schedule.run()
    except Wrong:
        return True, schedule
    return False, schedule


def test_whatever_runs_before_what_all_bytes_are_right():
    run_all(EVERYDAY)


@pytest.mark.slow
def test_a_hundred_more_schedules_give_the_right_bytes():
    run_all(range(20, 120))


def test_one_lane_is_right_too():
    for seed in range(10):
        Schedule(seed, lanes=1).run()


# Each of these takes one rule out of the device.


def no_wait(monkeypatch):
    """What another lane used last is used without a wait."""
    monkeypatch.setattr(Lane, "use", lambda self, buffers: None)


def no_note_of_use(monkeypatch):
    """A lane waits, and does not say that it used the buffer last."""
    use = Lane.use

    def forgetful(self, buffers):
        before = {id(each): self._uses.get(id(each)) for each in buffers}
        use(self, buffers)
        self._uses.update({key: used for key, used in before.items() if used is not None})

    monkeypatch.setattr(Lane, "use", forgetful)


def no_note_of_making(monkeypatch):
    """Nobody says whose a fresh buffer is."""
    monkeypatch.setattr(Lane, "made", lambda self, buffers: None)


def no_retirement(monkeypatch):
    """What others used is dropped at once."""

    def drop(self, buffers):
        for buffer in buffers:
            self._uses.pop(id(buffer), None)
            self._calls.release(buffer)

    monkeypatch.setattr(Lane, "retire", drop)


def no_event_of_the_end(monkeypatch):
    """A job is over when it was launched."""
    monkeypatch.setattr(Lane, "land", _landing_at_once(Lane.land))


def _landing_at_once(land):
    def at_once(self):
        done = self._calls.done
        self._calls.done = lambda event: True
        try:
            return land(self)
        finally:
            self._calls.done = done

    return at_once


def an_event_before_the_ops(monkeypatch):
    """The end is recorded before the ops are launched."""
    launch = Lane._launch

    def early(self, job):
        inner = job.launch
        ops = []
        job.launch = ops.append
        launch(self, job)
        self._flight = self.flying[-1]
        self._calls.set_stream(self.stream)
        try:
            with self._calls.launching():
                inner(self)
        except Exception as error:
            job.broke(error)
        self._flight = None

    monkeypatch.setattr(Lane, "_launch", early)


def ops_on_the_stream_before(monkeypatch):
    """Ops go to whatever stream was set last."""
    launch = Lane._launch

    def elsewhere(self, job):
        set_stream = self._calls.set_stream
        if getattr(self._calls, "was_set", False):
            self._calls.set_stream = lambda stream: None
        self._calls.was_set = True
        try:
            launch(self, job)
        finally:
            self._calls.set_stream = set_stream

    monkeypatch.setattr(Lane, "_launch", elsewhere)


def drops_without_asking_who_else(monkeypatch):
    """A program drops an input on the way, though another lane's stream has its block."""
    monkeypatch.setattr(Lane, "owns", lambda self, buffers: True)


def retired_before_others_are_through(monkeypatch):
    """What is retired goes with this lane's job, whatever others still do with it."""

    def retire(self, buffers):
        for buffer in buffers:
            if self._owns(buffer):
                self._calls.release(buffer)
            else:
                self._flight.retired.append(buffer)

    monkeypatch.setattr(Lane, "retire", retire)


def a_last_hop_too_early(monkeypatch):
    """What goes by way of pinned memory is read there before it has come."""
    read = Lane.read

    def early(self, buffer, offset, target):
        read(self, buffer, offset, target)
        for action in self._flight.after:
            action()
        self._flight.after.clear()

    monkeypatch.setattr(Lane, "read", early)


def copies_that_nobody_waits_for(monkeypatch):
    """A copy to the host counts as over when it was asked for."""
    copy = Device._copy_and_wait

    def at_once(self, target, source):
        synchronize = self._calls.synchronize
        self._calls.synchronize = lambda event: None
        try:
            copy(self, target, source)
        finally:
            self._calls.synchronize = synchronize

    monkeypatch.setattr(Device, "_copy_and_wait", at_once)


def restored_buffers_that_are_nobodys(monkeypatch):
    """Who uses a restored buffer takes its block for its own."""
    monkeypatch.setattr(Device, "arrived", lambda self, buffers: None)


RULES = [
    no_wait,
    no_note_of_use,
    no_note_of_making,
    no_retirement,
    no_event_of_the_end,
    an_event_before_the_ops,
    ops_on_the_stream_before,
    drops_without_asking_who_else,
    retired_before_others_are_through,
    a_last_hop_too_early,
    copies_that_nobody_waits_for,
    restored_buffers_that_are_nobodys,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_without_a_rule_a_byte_is_wrong(rule, monkeypatch):
    rule(monkeypatch)
    with pytest.raises(Wrong):
        run_all(UNTIL_IT_SHOWS)


@pytest.mark.long
@pytest.mark.timeout(14_400)
def test_a_thousand_schedules_are_right_and_each_rule_taken_out_is_found_by_many(monkeypatch):
    ran = [is_wrong(seed) for seed in THOUSAND]
    wrong = [seed for seed, (found, _) in zip(THOUSAND, ran, strict=True) if found]
    rules = []
    for rule in RULES:
        with monkeypatch.context() as without:
            rule(without)
            caught = [seed for seed in UNTIL_IT_SHOWS if is_wrong(seed)[0]]
        rules.append(
            {
                "rule": rule.__name__,
                "taken out": inspect.getdoc(rule),
                "schedules": len(UNTIL_IT_SHOWS),
                "caught in": len(caught),
                "first caught by": caught[0] if caught else None,
            }
        )
    schedules = [schedule for _, schedule in ran]
    figures = {
        "schedules": len(ran),
        "lanes": LANES,
        "sessions": SESSIONS,
        "works": sum(each.works for each in schedules),
        "works on another lane than the one before of their session": sum(
            each.moved for each in schedules
        ),
        "buffers dropped": sum(each.dropped for each in schedules),
        "buffers spilled and restored": sum(each.spilled for each in schedules),
        "bytes compared": sum(each.compared for each in schedules) * NBYTES,
        "schedules with a wrong byte": len(wrong),
        "wrong": wrong,
        "rules taken out": rules,
    }
    write_result("schedules", figures, device="cuda-on-host")
    assert wrong == []
    assert [each["rule"] for each in rules if not each["caught in"]] == []
