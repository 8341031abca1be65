"""Quick bindings: what one program's calls taught is never used for calls that were not tried."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder
from sketch import CPU, all_live
from test_programs_replay import replay

from jgpu.broker.executor.programs import Buffer, RunContext
from jgpu.broker.executor.programs.running import callables

X = torch.linspace(0.1, 0.9, 9)
#: losses whose Python binding has another default reduction than their schema
LOSSES = {
    "mse_loss": lambda r: F.mse_loss(X, torch.ones(9), reduction=r),
    "binary_cross_entropy": lambda r: F.binary_cross_entropy(X, torch.ones(9), reduction=r),
    "binary_cross_entropy_with_logits": lambda r: F.binary_cross_entropy_with_logits(
        X, torch.ones(9), reduction=r
    ),
    "smooth_l1_loss": lambda r: F.smooth_l1_loss(X, torch.ones(9), reduction=r),
    "huber_loss": lambda r: F.huber_loss(X, torch.ones(9), reduction=r),
    "soft_margin_loss": lambda r: F.soft_margin_loss(X, torch.ones(9), reduction=r),
    "multi_margin_loss": lambda r: F.multi_margin_loss(
        X.view(3, 3), torch.tensor([0, 2, 1]), reduction=r
    ),
}
ORDERS = list(itertools.permutations(["none", "mean", "sum"]))


def compute(call):
    with Recorder() as recorder:
        call()
    return replay(recorder.recording(), runs=3)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_its_own_reduction_whatever_was_computed_before(name, order, monkeypatch):
    monkeypatch.setattr(callables, "_known", type(callables._known)())
    for reduction in order:
        compute(lambda reduction=reduction: LOSSES[name](reduction))


#: calls of one op that differ in constants, numbers of arguments, dtypes or ranks
NEIGHBOURS = {
    "sum": [
        lambda: X.sum(),
        lambda: X.view(3, 3).sum(0),
        lambda: X.view(3, 3).sum(1),
        lambda: X.view(3, 3).sum((0, 1)),
        lambda: X.view(3, 3).sum(1, keepdim=True),
        lambda: X.view(3, 3).sum(0, dtype=torch.float64),
    ],
    "pad": [
        lambda: torch.constant_pad_nd(X, [1, 2]),
        lambda: torch.constant_pad_nd(X, [1, 2], -0.0),
        lambda: torch.constant_pad_nd(X, [1, 2], 0.0),
        lambda: torch.constant_pad_nd(X, [1, 2], 0),
        lambda: torch.constant_pad_nd(X, [1, 2], float("nan")),
    ],
    "threshold": [
        lambda: torch.threshold(-X, -0.5, 0.0),
        lambda: torch.threshold(-X, -0.5, -0.0),
    ],
    "mul": [
        lambda: X * 2,
        lambda: X * 2.0,
        lambda: X * True,
        lambda: X * torch.tensor(2),
        lambda: X * torch.tensor(2.0, dtype=torch.float64),
        lambda: X * X,
        lambda: torch.arange(9) * torch.arange(9),
    ],
    "pow": [
        lambda: X**2,
        lambda: X**2.0,
        lambda: X ** torch.tensor(2),
        lambda: X**X,
        lambda: 2**X,
    ],
    "std": [
        lambda: X.std(),
        lambda: X.std(unbiased=False),
        lambda: X.std(correction=0),
        lambda: X.view(3, 3).std(0, correction=2),
    ],
    "cumsum": [lambda: X.cumsum(0), lambda: X.cumsum(-1), lambda: X.cumsum(0, dtype=torch.float64)],
    "argmax": [
        lambda: X.argmax(),
        lambda: X.view(3, 3).argmax(0),
        lambda: X.view(3, 3).argmax(1, keepdim=True),
    ],
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_call_is_not_answered_for_by_its_neighbours(name, seed):
    calls = NEIGHBOURS[name] * 2
    random.Random(seed).shuffle(calls)
    for call in calls:
        compute(call)


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_a_zero_keeps_its_sign_in_the_compiled_form(order):
    for fill in order:
        with Recorder() as recorder:
            expected = torch.threshold(-X, -0.5, fill)
        recording = recorder.recording()
        definition = replay(recording, runs=2)
        buffers = [Buffer(k, t.clone()) for k, t in enumerate(recording.inputs)]
        outcome = definition.run(buffers, (), all_live(definition), b"", RunContext(CPU, {}))
        assert torch.equal(outcome.outputs[-1].signbit(), expected.signbit())
