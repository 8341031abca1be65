"""Runs that are told to stop between two ops: gone on with, left there, or freed."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch import Sketch, all_live, buffers, context, contiguous

from jgpu.accelerator import loading
from jgpu.broker.executor.programs import Failure, Running
from jgpu.broker.executor.programs.running.run import has_written_resident

VECTOR = contiguous(8)
TOLD = Failure(1, 0, "", "WorkCancelled", "told to stop")


class Strike:
    """A mark that stops its run when an op is about to be noted; the first `at` ops are done."""

    def __init__(self, running, at):
        self.running, self.at = running, at
        self.begun = None

    def __setitem__(self, place, op):
        if op == self.at:
            self.begun = self.running.stop()
        self.running.mark[place] = op


def running_of(definition, given):
    word = memoryview(bytearray(8)).cast("q")
    word[0] = -1
    return Running(definition.plan, given, word[:], word)


def run(definition, given, params=(), stop_at=None, live=None):
    """Run it with a strike before an op; returns the outcome and the context."""
    running = running_of(definition, given)
    strike = Strike(running, stop_at)
    ctx = context(running=running, mark=strike)
    outcome = definition.run(given, params, live or all_live(definition), b"", ctx)
    return outcome, ctx


def go_on(definition, outcome, ctx, given):
    running = running_of(definition, given)
    ctx.running, ctx.mark = running, running.mark
    return definition.resume(outcome.stopped, ctx)


def values(outcome):
    return [t.tolist() if isinstance(t, torch.Tensor) else t for t in outcome.outputs]


def state(ctx):
    return ctx.generators[0].get_state().tolist()


# -- random programs ------------------------------------------------------------------------------

_ops = st.lists(
    st.tuples(
        st.sampled_from(["add", "mul_", "add_", "dropout", "normal_", "batch_norm"]),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=8,
)


def sketched(ops, count=None):
    """A program of the first `count` ops over three vectors, the first two of which keep means."""
    made = Sketch(inputs=3)
    vectors = [0, 1, 2]

    def seen(number):
        return made.seen(vectors[number % len(vectors)], VECTOR)

    for kind, one, other in ops[:count]:
        if kind == "add":
            vectors.append(made.op("add.Tensor", seen(one), seen(other), outs=[VECTOR]))
        elif kind in ("mul_", "add_"):
            made.op(f"{kind}.Tensor", seen(one), seen(other), outs=[None])
        elif kind == "dropout":
            mask = contiguous(8, dtype="bool")
            vectors.append(made.op("native_dropout", seen(one), 0.5, True, outs=[VECTOR, mask])[0])
        elif kind == "normal_":
            made.op("normal_", seen(one), 0.0, 1.0, outs=[None])
        else:
            given = made.seen(vectors[one % len(vectors)], contiguous(4, 2))
            mean, var = (made.seen(k, contiguous(2)) for k in (0, 1))
            normed = [contiguous(4, 2), contiguous(2), contiguous(2)]
            made.op("native_batch_norm", given, None, None, mean, var, True, 0.1, 1e-5, outs=normed)
    return made


def given_vectors():
    torch.manual_seed(5)
    return buffers(*(torch.rand(8) for _ in range(3)))


def whole(definition):
    given = given_vectors()
    outcome, ctx = run(definition, given)
    return values(outcome), [b.base.tolist() for b in given], state(ctx)


@settings(max_examples=60, deadline=None)
@given(_ops, st.integers(0, 8), st.booleans())
def test_a_run_that_is_stopped_and_goes_on_is_as_one_that_was_not(ops, at, compiled):
    definition = sketched(ops).define()
    expected = [whole(definition) for _ in range(3 if compiled else 1)][-1]
    if not compiled:
        definition = sketched(ops).define()
    given = given_vectors()
    outcome, ctx = run(definition, given, stop_at=at)
    while outcome.stopped is not None:
        assert (outcome.stopped.op, ctx.mark.begun) == (at, at)
        outcome = go_on(definition, outcome, ctx, given)
    assert (values(outcome), [b.base.tolist() for b in given], state(ctx)) == expected
    assert outcome.failures == []


@settings(max_examples=60, deadline=None)
@given(_ops, st.data(), st.booleans())
def test_a_run_that_is_left_holds_what_its_ops_until_then_made(ops, data, compiled):
    at = data.draw(st.integers(0, len(ops) - 1))
    definition = sketched(ops).define()
    for _ in range(3 if compiled else 0):
        whole(definition)
    given = given_vectors()
    outcome, ctx = run(definition, given, stop_at=at)
    outcome = definition.leave(outcome.stopped, TOLD)
    assert outcome.failures == [TOLD]
    if at == 0:
        made, after, drawn = [], [b.base.tolist() for b in given_vectors()], state(context())
    else:
        made, after, drawn = whole(sketched(ops, at).define())
    assert [b.base.tolist() for b in given] == after
    assert state(ctx) == drawn
    for k, value in enumerate(values(outcome)):
        finished = definition.plan.last_write[k] < at
        assert value == (made[k] if finished else TOLD)


@settings(max_examples=100, deadline=None)
@given(_ops, st.integers(0, 8), st.integers(0, 7))
def test_the_first_write_of_an_input_is_never_later_than_its_first_change(ops, begun, resident):
    definition = sketched(ops).define()
    begun = min(begun, len(ops))
    given = given_vectors()
    for k, buffer in enumerate(given):
        buffer.resident = bool(resident >> k & 1)
    before = [b.base.tolist() for b in given]
    if begun:
        run(sketched(ops, begun).define(), given)
    changed = [b.base.tolist() != old for b, old in zip(given, before, strict=True)]
    if any(each and buffer.resident for each, buffer in zip(changed, given, strict=True)):
        assert has_written_resident(definition.plan, given, begun)


# -- by hand --------------------------------------------------------------------------------------


def test_an_input_is_first_written_by_its_first_in_place_op_whatever_its_alias():
    sketch = Sketch(inputs=3)
    first, second = sketch.seen(0, VECTOR), sketch.seen(1, VECTOR)
    sketch.op("add.Tensor", first, second, outs=[VECTOR])
    sketch.op("add_.Tensor", second, first, outs=[None])
    sketch.op("add_.Tensor", second, first, outs=[None])
    plan = sketch.define().plan
    assert plan.first_write == (3, 1, 3)


def test_batch_norm_writes_its_running_statistics_though_its_schema_does_not_say_so():
    assert sketched([("batch_norm", 2, 0)]).define().written == {0, 1}


@pytest.mark.parametrize("earlier_runs", [0, 2])
def test_an_op_that_fails_while_its_run_is_told_to_stop_has_failed(earlier_runs):
    """It is told so when the op was noted: the op is in progress, and its error is its own."""
    sketch = Sketch(inputs=2)
    index = contiguous(2, dtype="int64")
    sketch.op(
        "index_select", sketch.seen(0, VECTOR), 0, sketch.seen(1, index), outs=[contiguous(2)]
    )
    sketch.op("add_.Tensor", sketch.seen(0, VECTOR), 1, outs=[None])
    definition = sketch.define()
    for _ in range(earlier_runs):
        run(definition, buffers(torch.ones(8), torch.tensor([0, 1])))
    given = buffers(torch.ones(8), torch.tensor([0, 9]))
    running = running_of(definition, given)

    class During(Strike):
        def __setitem__(self, place, op):
            self.running.mark[place] = op
            self.running.stop()

    ctx = context(running=running, mark=During(running, 0))
    outcome = definition.run(given, (), all_live(definition), b"", ctx)
    if outcome.stopped is None:
        pytest.fail("it was not stopped")
    assert outcome.stopped.op == 1
    outcome = definition.leave(outcome.stopped, TOLD)
    assert [(f.error, f.op) for f in outcome.failures] == [("IndexError", 0), ("WorkCancelled", 0)]
    assert given[0].base.tolist() == [1.0] * 8


LARGE = contiguous(1 << 16)


@pytest.mark.parametrize("earlier_runs", [0, 2])
def test_of_a_run_in_progress_only_the_ops_own_storages_are_kept(earlier_runs):
    """c = a + b; d = c + c; e = d + a; f = e + e, freed from another thread while e is made."""
    sketch = Sketch(inputs=2)
    a, b = sketch.seen(0, LARGE), sketch.seen(1, LARGE)
    c = sketch.op("add.Tensor", a, b, outs=[LARGE])
    d = sketch.op("add.Tensor", sketch.seen(c, LARGE), sketch.seen(c, LARGE), outs=[LARGE])
    e = sketch.op("add.Tensor", sketch.seen(d, LARGE), a, outs=[LARGE])
    sketch.op("add.Tensor", sketch.seen(e, LARGE), sketch.seen(e, LARGE), outs=[LARGE])
    definition = sketch.define()
    fresh = [torch.ones(1 << 16), torch.ones(1 << 16)]
    for _ in range(earlier_runs):
        run(definition, buffers(*fresh))
    given = buffers(*fresh)
    arrived, go = threading.Event(), threading.Event()
    seen = {}

    class Waiting:
        def __setitem__(self, place, op):
            seen["running"].mark[place] = op
            if op == 2:
                arrived.set()
                assert go.wait(30)

    def lane():
        seen["running"] = running_of(definition, given)
        ctx = context(running=seen["running"], mark=Waiting())
        live = all_live(definition)
        seen["outcome"] = definition.run(given, (), live, b"", ctx)

    thread = threading.Thread(target=lane)
    thread.start()
    assert arrived.wait(30)
    running = seen["running"]
    assert running.stop() == 3
    kept = running.kept(3)
    running.free_others(kept)
    assert [buffer.address in kept for buffer in given] == [True, False]
    assert [buffer.base.untyped_storage().nbytes() for buffer in given] == [4 << 16, 0]
    go.set()
    thread.join(30)
    stopped = seen["outcome"].stopped
    assert stopped.op == 3
    left = definition.leave(stopped, TOLD).outputs
    sizes = [each.untyped_storage().nbytes() for each in left[:3]]
    assert sizes == [0, 4 << 16, 4 << 16]
    assert left[2].tolist() == [5.0] * (1 << 16)


# -- runs of the accelerator ----------------------------------------------------------------------


accelerated = pytest.mark.skipif(loading.load() is None, reason="the accelerator is not built here")


def known(ops):
    """The program, and masks with which the accelerator runs it; every slot is told once made."""
    definition = sketched(ops).define()
    wanted = tuple(range(definition.fresh))
    for _ in range(3):
        told(definition, given_vectors(), wanted, lambda slot, made: None)
    variants = [each for key, each in definition._variants.items() if key[2] == wanted]
    assert all(each.straight is not None for each in variants)
    return definition, wanted


def told(definition, given, wanted, tell, running=None):
    ctx = context()
    ctx.wanted, ctx.tell = wanted, tell
    if running is not None:
        ctx.running, ctx.mark = running, running.mark
    return definition.run(given, (), all_live(definition), b"", ctx), ctx


@accelerated
@settings(max_examples=60, deadline=None)
@given(_ops, st.integers(0, 8))
def test_the_accelerators_run_is_stopped_before_its_next_op(ops, at):
    definition, wanted = known(ops)
    seen = given_vectors()
    whole_run, ctx = told(definition, seen, wanted, lambda slot, made: None)
    expected = values(whole_run), [b.base.tolist() for b in seen], state(ctx)

    given = given_vectors()
    running = running_of(definition, given)
    begun, slots = [], []

    def tell(slot, made):
        slots.append(slot)
        if len(slots) == at + 1:
            begun.append(running.stop())

    outcome, ctx = told(definition, given, wanted, tell, running)
    if begun and begun[0] < definition.ops:
        # told in the midst of its last op: what follows is the first that is not begun
        assert outcome.stopped.op == begun[0]
        outcome = go_on(definition, outcome, ctx, given)
    assert outcome.stopped is None
    assert (values(outcome), [b.base.tolist() for b in given], state(ctx)) == expected
    assert outcome.failures == []


@accelerated
def test_a_run_that_is_stopped_before_the_accelerator_begins_does_nothing():
    definition, wanted = known([("mul_", 0, 1), ("add", 0, 1)])
    given = given_vectors()
    before = [b.base.tolist() for b in given]
    running = running_of(definition, given)
    assert running.stop() == 0
    outcome, _ = told(definition, given, wanted, lambda slot, made: None, running)
    assert outcome.stopped.op == 0
    assert [b.base.tolist() for b in given] == before


@accelerated
def test_of_the_accelerators_run_only_the_ops_own_storages_are_kept():
    size = 4096
    large = contiguous(size)
    made = Sketch(inputs=1)
    first = made.op("neg.default", made.seen(0, large), outs=[large])
    second = made.op("exp.default", made.seen(first, large), outs=[large])
    made.op("sum.default", made.seen(second, large), outs=[contiguous()])
    made.op("add.Tensor", made.seen(first, large), made.seen(second, large), outs=[large])
    definition = made.define()
    given = buffers(torch.zeros(size))
    for _ in range(3):
        told(definition, buffers(torch.zeros(size)), (2,), lambda slot, made: None)
    running, held = running_of(definition, given), {}

    def tell(slot, tensor):
        begun = running.stop()  # the sum is the last that is begun
        held.update(running._variables())
        running.free_others(running.kept(begun))
        held["begun"] = begun

    outcome, _ = told(definition, given, (2,), tell, running)
    assert held.pop("begun") == outcome.stopped.op == 3
    sizes = {name: tensor.untyped_storage().nbytes() for name, tensor in held.items()}
    kept, gone = {f"s{second}": 4 * size, f"s{second + 1}": 4}, {f"s{first}": 0}
    assert {name: sizes[name] for name in kept | gone} == kept | gone


@accelerated
def test_whenever_another_thread_stops_the_accelerators_run_it_goes_on_as_if_it_had_not():
    ops = [("add", 0, 1), ("mul_", 2, 3), ("dropout", 1, 0), ("add_", 0, 4), ("normal_", 1, 0)] * 4
    definition, _ = known(ops)
    for _ in range(3):
        seen = given_vectors()
        whole_run, ctx = told(definition, seen, (), None)
    expected = values(whole_run), [b.base.tolist() for b in seen], state(ctx)
    for attempt in range(200):
        given = given_vectors()
        running, place = running_of(definition, given), attempt % len(ops)

        def strike(running=running, place=place):
            while running.word[0] < place:
                pass
            running.stop()

        thread = threading.Thread(target=strike)
        thread.start()
        outcome, ctx = told(definition, given, (), None, running)
        thread.join(60)
        while outcome.stopped is not None:
            outcome = go_on(definition, outcome, ctx, given)
        found = values(outcome), [b.base.tolist() for b in given], state(ctx)
        assert found == expected
