"""A compiled step that returns otherwise than it was seen to: an error and no number, once.

The fault is put where such a fault once was: the cache of quick bindings answers with a call that
was not tried. Of what the accelerator does the fault is in the op.
"""

from collections import OrderedDict

import pytest
import torch
from sketch import Sketch, all_live, buffers, context, contiguous

from jgpu.broker.executor.programs import Failure
from jgpu.broker.executor.programs.running import assembly, callables

NINE = contiguous(9)
SCALAR = contiguous()
X = torch.linspace(0.1, 0.9, 9)


@pytest.fixture
def answer(form, monkeypatch):
    """Has compiled runs call another callable for an op."""

    def in_python(step):
        return answers.get(step.info.base, step.precaution)

    monkeypatch.setattr(callables, "_known", OrderedDict())
    monkeypatch.setattr(callables, "_find", lambda step, _: answers.get(step.info.base))
    monkeypatch.setattr(assembly, "_in_python", in_python)
    answers = {}
    return answers.__setitem__


def run(definition, *tensors, **kwargs):
    return definition.run(buffers(*tensors), (), all_live(definition), b"", context(**kwargs))


def loss_of_a_mean():
    """2 * x, then the mean loss of x and its double, then the square of that, and -x beside it."""
    sketch = Sketch(inputs=1)
    x = sketch.seen(0, NINE)
    double = sketch.op("mul.Tensor", x, 2.0, outs=[NINE])
    loss = sketch.op("mse_loss.default", x, sketch.seen(double, NINE), outs=[SCALAR])
    seen = sketch.seen(loss, SCALAR)
    sketch.op("mul.Tensor", seen, seen, outs=[SCALAR])
    sketch.op("neg.default", x, outs=[NINE])
    return sketch.define()


def each(x, y):
    return (x - y) ** 2


@pytest.mark.parametrize(
    ("call", "returned"),
    [
        (each, "float32 of shape [9] and stride [1]"),
        (lambda x, y: each(x, y).mean().double(), "float64 of shape [] and stride []"),
        (lambda x, y: None, "nothing"),
        (lambda x, y: each(x, y).sum(0, keepdim=True), "float32 of shape [1] and stride [1]"),
    ],
    ids=["shape", "dtype", "nothing", "rank"],
)
def test_what_leans_on_it_fails_and_nothing_else_is_lost(answer, call, returned):
    definition = loss_of_a_mean()
    expected = [2 * X, (X**2).mean(), (X**2).mean() ** 2, -X]
    first = run(definition, X)
    assert all(map(torch.equal, first.outputs, expected))
    answer("mse_loss", call)
    second = run(definition, X)
    (failure,) = second.failures
    assert (failure.op, failure.error) == (1, "RuntimeError")
    assert failure.text == (
        f"aten::mse_loss.default returned {returned} where the program expects "
        "float32 of shape [] and stride []."
    )
    assert second.outputs[1:3] == [failure, failure]
    assert torch.equal(second.outputs[0], 2 * X)
    assert torch.equal(second.outputs[3], -X)
    for _ in range(2):  # step by step from here on
        outcome = run(definition, X)
        assert outcome.failures == []
        assert all(map(torch.equal, outcome.outputs, expected))


def test_a_value_that_is_wrong_is_not_told(answer):
    definition = loss_of_a_mean()
    run(definition, X)
    answer("mse_loss", each)
    told = []
    run(definition, X, wanted=(1, 2), tell=lambda slot, tensor: told.append(slot))
    assert told == []


def test_an_error_of_the_op_itself_is_no_comparison(answer):
    definition = loss_of_a_mean()
    run(definition, X)

    def fails(x, y):
        raise AssertionError("of its own")

    answer("mse_loss", fails)
    (failure,) = run(definition, X).failures
    assert (failure.error, failure.text) == ("AssertionError", "of its own")


def test_what_nobody_keeps_is_compared_too(answer):
    """The mean of nine losses is the mean loss; the slot between is the only one to show it."""
    sketch = Sketch(inputs=1)
    x = sketch.seen(0, NINE)
    loss = sketch.op("mse_loss.default", x, x, outs=[SCALAR])
    sketch.op("mean.default", sketch.seen(loss, SCALAR), outs=[SCALAR])
    definition = sketch.define()
    only_last = b"\x02"
    definition.run(buffers(X), (), only_last, b"", context())
    answer("mse_loss", each)
    outcome = definition.run(buffers(X), (), only_last, b"", context())
    assert [failure.name for failure in outcome.failures] == ["aten::mse_loss.default"]
    assert isinstance(outcome.outputs[1], Failure)


def test_other_strides_are_laid_out_as_claimed(answer):
    matrix = torch.arange(6.0).view(2, 3)
    sketch = Sketch(inputs=1)
    made = sketch.op("neg.default", sketch.seen(0, contiguous(2, 3)), outs=[contiguous(2, 3)])
    sketch.op("neg.default", sketch.seen(made, contiguous(6)), outs=[contiguous(6)])
    definition = sketch.define()
    run(definition, matrix)
    answer("neg", lambda x: (-x).t().contiguous().t() if x.dim() == 2 else -x)
    for _ in range(2):
        outcome = run(definition, matrix)
        assert outcome.failures == []
        assert outcome.outputs[0].stride() == (3, 1)
        assert torch.equal(outcome.outputs[0], -matrix)
        assert torch.equal(outcome.outputs[1], matrix.flatten())


def test_results_of_one_op_are_judged_one_by_one(answer):
    matrix = torch.tensor([[3.0, 1.0], [2.0, 5.0]])
    values, places = contiguous(2), contiguous(2, dtype="int64")
    sketch = Sketch(inputs=1)
    largest, where = sketch.op(
        "max.dim", sketch.seen(0, contiguous(2, 2)), 1, outs=[values, places]
    )
    sketch.op("neg.default", sketch.seen(largest, values), outs=[values])
    sketch.op("neg.default", sketch.seen(where, places), outs=[places])
    definition = sketch.define()
    run(definition, matrix)

    def narrow(x, dim):
        found = torch.max(x, dim)
        return found.values, found.indices.int()

    answer("max", narrow)
    outcome = run(definition, matrix)
    (failure,) = outcome.failures
    assert "returned int32" in failure.text
    assert torch.equal(outcome.outputs[0], torch.tensor([3.0, 5.0]))
    assert torch.equal(outcome.outputs[2], torch.tensor([-3.0, -5.0]))
    assert outcome.outputs[1] is outcome.outputs[3] is failure


def test_sessions_inputs_that_were_written_before_stay_written(answer):
    """An update in place before the broken step has happened once, not twice and not never."""
    sketch = Sketch(inputs=1)
    x = sketch.seen(0, NINE)
    sketch.op("add_.Tensor", x, 1.0, outs=[None])
    sketch.op("mse_loss.default", x, x, outs=[SCALAR])
    sketch.op("add_.Tensor", x, 1.0, outs=[None])
    definition = sketch.define()
    run(definition, X)
    answer("mse_loss", each)
    given = buffers(X)
    outcome = definition.run(given, (), all_live(definition), b"", context())
    assert isinstance(outcome.outputs[0], Failure)
    assert torch.equal(given[0].base, X + 1 + 1)
