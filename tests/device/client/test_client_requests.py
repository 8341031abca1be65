"""The table of what was asked: every answer reaches whoever asked, and nobody waits for ever."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from jgpu import errors
from jgpu.device.client.requests import Requests, RequestState


def asked(requests, then=None):
    request = requests.new(then)
    requests.ask(request)
    return request


def test_answers_in_any_order_reach_those_who_asked():
    requests, heard = Requests(), []
    first, second = asked(requests), asked(requests)
    asked(requests, heard.append)
    requests.answer(second.number, "second")
    assert (first.is_answered, second.answer) == (False, "second")
    requests.answer(3, "third")
    assert heard == ["third"]
    requests.answer(first.number, "first")
    assert first.answer == "first"
    assert len(requests) == 0


def test_an_answer_that_comes_after_the_waiter_left_is_nobodys():
    requests = Requests()
    left = asked(requests)
    requests.leave(left)
    after = asked(requests)
    assert len(requests) == 2
    requests.answer(left.number, "late")
    assert (left.answer, after.is_answered) == (None, False)


def test_the_arena_is_taken_until_the_answer_is_there_whoever_waits():
    requests = Requests()
    download = requests.new()
    requests.ask_into_arena(download)
    requests.leave(download)
    assert not requests.arena_is_free
    requests.answer(download.number, "late")
    assert requests.arena_is_free


def test_of_two_interrupts_the_second_one_s_answer_ends_both():
    requests = Requests()
    first, second = requests.new(), requests.new()
    requests.ask_back(first)
    requests.ask_back(second)
    requests.answer(first.number, "first")
    assert requests.takes_back
    requests.answer(second.number, "second")
    assert not requests.takes_back


def test_a_waiter_whose_request_failed_is_told_of_the_failure_before_it():
    requests, heard = Requests(), []
    earlier, own = errors.WorkFailed("earlier"), errors.WorkFailed("own")
    requests.fail(earlier)
    asked(requests, heard.append)
    requests.answer(1, own)
    assert (heard, requests.failures) == ([None], [earlier])
    waits = asked(requests)
    requests.answer(waits.number, own)
    assert waits.answer is earlier
    assert requests.failures == []


def test_a_failure_that_is_told_in_parts_answers_once():
    requests = Requests()
    request = asked(requests)
    error = errors.WorkFailed("x")
    requests.answer(request.number, error)
    requests.answer(request.number, errors.WorkFailed("its second part"))
    assert request.answer is error


def test_a_failure_is_told_once():
    requests = Requests()
    error, other = errors.WorkFailed("x"), errors.WorkFailed("x")
    requests.fail(error)
    assert not requests.tell(other)
    assert requests.tell(error)
    assert not requests.tell(error)


def test_a_run_that_nobody_waits_for_any_more_is_forgotten():
    requests = Requests()
    report = requests.ask_report(4)
    assert requests.awaits_report(4)
    requests.leave(report)
    assert not requests.awaits_report(4)
    assert len(requests) == 0


def test_what_is_lost_is_answered_by_nothing_and_numbers_go_on():
    requests, heard = Requests(), []
    waits, handed = asked(requests), asked(requests, heard.append)
    report = requests.ask_report(1)
    requests.fail(errors.WorkFailed("x"))
    requests.forget()
    assert heard == [None]
    assert {each.state for each in (waits, handed, report)} == {RequestState.LOST}
    assert (len(requests), requests.failures) == (0, [])
    requests.answer(waits.number, "of before")
    assert not waits.is_answered
    assert requests.new().number == 3


class Table(RuleBasedStateMachine):
    """Questions of all kinds, answered in any order, left and lost at any moment."""

    waiters = Bundle("waiters")

    def __init__(self):
        super().__init__()
        self.requests = Requests()
        #: those whose answer is to come, by number; runs by work
        self.asked, self.runs, self.works = {}, {}, 0
        #: what each function was given, by number; what waiters must be answered
        self.heard, self.due = {}, {}
        self.failures = []

    def _new(self, then=None):
        request = self.requests.new(then)
        assert request.number not in self.due
        self.due[request.number] = None
        self.asked[request.number] = request
        return request

    @rule(target=waiters, arena=st.booleans())
    def wait(self, arena):
        request = self._new()
        if arena and self.requests.arena_is_free:
            self.requests.ask_into_arena(request)
        else:
            self.requests.ask(request)
        return request

    @rule()
    def hand_on(self):
        heard = []
        request = self._new(heard.append)
        self.heard[request.number] = heard
        self.requests.ask(request)

    @rule()
    def interrupt(self):
        self.requests.ask_back(self._new())

    @rule(target=waiters)
    def run(self):
        self.works += 1
        request = self.runs[self.works] = self.requests.ask_report(self.works)
        return request

    @rule(data=st.data(), failed=st.booleans())
    def answer(self, data, failed):
        number = data.draw(st.integers(1, len(self.due) + 1))  # also what was answered, or never
        reply = errors.WorkFailed(str(number)) if failed else ("reply", number)
        request = self.asked.pop(number, None)
        self.requests.answer(number, reply)
        if request is None:
            return
        if number in self.heard:
            assert self.heard[number] == [None if failed else reply]
        elif request.state is RequestState.ANSWERED and request.answer is not None:
            expected = self.failures.pop(0) if failed and self.failures else reply
            assert request.answer is expected

    @rule(data=st.data())
    def report(self, data):
        awaited = [work for work in self.runs if self.requests.awaits_report(work)]
        if awaited:
            work = data.draw(st.sampled_from(awaited))
            request = self.runs.pop(work)
            self.requests.report(work, ("report", work))
            assert request.answer == ("report", work)

    @rule()
    def fail(self):
        self.failures.append(errors.WorkFailed("nobody asked"))
        self.requests.fail(self.failures[-1])

    @rule(waiter=consumes(waiters))
    def leave(self, waiter):
        answered = waiter.is_answered
        self.requests.leave(waiter)
        assert waiter.is_answered is answered
        if self.runs.get(waiter.number) is waiter:
            del self.runs[waiter.number]

    @rule()
    def lose(self):
        waiting = [*self.asked.values(), *self.runs.values()]
        self.requests.forget()
        for request in waiting:
            assert request.state is RequestState.LOST
        for number in self.asked.keys() & self.heard.keys():
            assert self.heard[number] == [None]
        self.asked, self.runs, self.works = {}, {}, 0
        self.failures = []

    @invariant()
    def nobody_waits_for_what_cannot_come(self):
        self.requests.validate()
        assert len(self.requests) == len(self.asked) + len(self.runs)
        assert self.requests.failures == self.failures
        for number, heard in self.heard.items():
            assert heard == [] if number in self.asked else len(heard) == 1


Table.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestTable = Table.TestCase
