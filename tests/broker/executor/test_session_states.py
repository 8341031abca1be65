"""The states of a session and of its works: what may follow what, and what the queue keeps true."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jgpu.broker.executor.lifecycle import PHASE_MOVES, Lifecycle, LifePhase
from jgpu.broker.executor.memory.movement import MemoryMovement, MovementState
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.queue import WorkQueue
from jgpu.broker.executor.works.states import LaneProgress, WorkProgress
from jgpu.errors import ProtocolError
from jgpu.wire import messages as m

# -- the phase of a session ----------------------------------------------------------------------


@given(st.lists(st.sampled_from(LifePhase), max_size=6))
def test_a_session_goes_from_phase_to_phase_as_the_table_says(phases):
    life = Lifecycle()
    for phase in phases:
        before = life.phase
        if phase in PHASE_MOVES[before]:
            life.become(phase)
            assert life.phase is phase
        else:
            with pytest.raises(AssertionError, match="a session goes from"):
                life.become(phase)
            assert life.phase is before
        life.validate()


@pytest.mark.parametrize("phase", LifePhase)
def test_a_lane_that_finds_the_protocol_broken_changes_nothing_of_a_session_that_ends(phase):
    life = Lifecycle()
    life.phase = phase
    life.violate()
    assert life.phase is (LifePhase.VIOLATED if phase is LifePhase.LIVE else phase)


def test_whose_works_are_skipped_and_who_is_told_nothing():
    shown = {}
    for phase in LifePhase:
        life = Lifecycle()
        life.phase = phase
        shown[phase] = (life.is_over, life.has_ended, life.is_closed)
    assert shown == {
        LifePhase.LIVE: (False, False, False),
        LifePhase.VIOLATED: (True, False, False),
        LifePhase.ENDING: (True, True, False),
        LifePhase.CLOSED: (True, True, True),
        LifePhase.RELEASED: (True, True, True),
    }


def test_the_reason_of_an_end_is_the_last_that_was_given():
    life = Lifecycle()
    life.become(LifePhase.ENDING)
    life.become(LifePhase.CLOSED, "The broker was stopped.")
    life.become(LifePhase.RELEASED)
    assert life.reason == "The broker was stopped."


# -- where its memory is -------------------------------------------------------------------------


@given(st.lists(st.sampled_from(MovementState), max_size=8))
def test_one_copy_of_a_sessions_memory_is_under_way_at_most(states):
    movement = MemoryMovement()
    copies = 0
    for state in states:
        before = movement.state
        try:
            movement.become(state)
        except AssertionError:
            assert movement.state is before
        else:
            copies += movement.is_copying - (before in {"leaving", "returning"})
        movement.validate()
        assert copies in {0, 1}
        assert movement.is_copying == bool(copies)
        assert movement.is_due == (movement.state is MovementState.DUE_BACK)


# -- the order of its works ----------------------------------------------------------------------


def work_of(number, *, ready=True):
    work = Work(SimpleNamespace(life=Lifecycle()), number, ends_iteration=False)
    if not ready:
        work = Waiting(work.session, number, ends_iteration=False)
    return work


class Waiting(Work):
    """A work whose definition is awaited."""

    known = False

    @property
    def ready(self):
        return self.known


class Queues(RuleBasedStateMachine):
    """A queue beside a model of it: numbers in their order, by where they are."""

    def __init__(self):
        super().__init__()
        self.queue = WorkQueue()
        self.numbers = 0
        self.received, self.offered, self.launched, self.held = [], [], [], []
        self.cancelled, self.requests, self.notes = [], [], 0

    @rule(ready=st.booleans())
    def a_work_comes(self, ready):
        self.numbers += 1
        work = work_of(self.numbers, ready=ready)
        self.queue.accept(work)
        assert len(work.before) == self.notes
        self.notes = 0
        (self.held if self.requests else self.received).append(work)

    @rule(buffers=st.integers(0, 3))
    def something_is_freed(self, buffers):
        self.queue.note(m.Free(tuple(range(buffers))))
        self.notes += 1

    @rule()
    def the_wrong_number_comes(self):
        with pytest.raises(ProtocolError, match="came where"):
            self.queue.count(work_of(self.numbers + 2))

    @rule()
    def definitions_come(self):
        for work in self.received + self.held:
            work.known = True

    @rule()
    def the_next_is_offered(self):
        work = self.queue.offer_next()
        if self.received and self.received[0].ready:
            assert work is self.received.pop(0)
            self.offered.append(work)
        else:
            assert work is None

    @precondition(lambda self: self.offered)
    @rule()
    def the_next_is_launched(self):
        work = self.offered.pop(0)
        self.queue.launch(work)
        self.launched.append(work)

    @precondition(lambda self: self.launched)
    @rule(dropped=st.booleans())
    def the_youngest_comes_back_from_its_lane(self, dropped):
        work = self.launched.pop()
        self.queue.unlaunch(work, dropped=dropped)
        if not dropped:
            self.offered.insert(0, work)

    @precondition(lambda self: self.launched)
    @rule()
    def the_oldest_is_done(self):
        work = self.launched.pop(0)
        self.queue.complete(work)
        assert work.state is WorkProgress.DONE

    @precondition(lambda self: self.offered and not self.launched and not self.requests)
    @rule()
    def the_oldest_fails_before_it_runs(self):
        assert self.queue.cancel_oldest() is self.offered.pop(0)

    @rule(data=st.data())
    def an_interrupt_comes(self, data):
        works = [*self.launched, *self.offered, *self.received]
        kept = data.draw(st.integers(0, len(works)))
        known = self.queue.begin_cancel(len(self.requests), works[kept:])
        self.cancelled += works[kept:]
        self.requests.append(len(self.requests))
        stays = {*works[:kept]}
        assert known == [work for work in self.offered if work not in stays]
        self.offered = [work for work in self.offered if work in stays]
        self.received = [work for work in self.received if work in stays]

    @precondition(lambda self: not (self.launched or self.offered or self.received))
    @rule()
    def the_interrupt_is_over(self):
        assert self.queue.finish_cancel() == (self.cancelled, self.requests)
        self.cancelled, self.requests = [], []
        self.received, self.held = self.held, []

    @rule()
    def the_session_ends(self):
        dropped = self.queue.drop_waiting()
        assert dropped == self.offered[::-1]
        self.offered, self.received, self.held = [], [], []

    @invariant()
    def the_queue_is_what_the_model_says(self):
        assert list(self.queue.offered) == self.launched + self.offered
        assert (list(self.queue.received), self.queue.held) == (self.received, self.held)
        assert self.queue.launched == len(self.launched)
        assert self.queue.outstanding == sum(
            map(len, (self.launched, self.offered, self.received, self.held))
        )
        self.queue.validate()


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_works_finish_in_their_order():
    queue = WorkQueue()
    for number in (1, 2):
        queue.accept(work_of(number))
        queue.launch(queue.offer_next())
    with pytest.raises(AssertionError, match="finish in order"):
        queue.complete(queue.offered[1])


# -- what a lane makes of a work -----------------------------------------------------------------


def test_a_work_that_waits_is_due_again_and_lacks_nothing():
    work = work_of(1)
    for progress in LaneProgress:
        work.progress, work.lacking = progress, 100 * (progress is LaneProgress.HALTED)
        assert work.waits == (progress in {LaneProgress.HALTED, LaneProgress.PUT_OFF})
    work.launch_again()
    assert (work.progress, work.lacking, work.waits) == (LaneProgress.DUE, 0, False)
    work.validate()
