"""What the accelerator does of composites at the autograd key records what Python's kernels record.

Does not cover whether their results are the native ones (`test_recurrent_cells`, `test_dropout`).
"""

import pytest
import torch
from torch.nn.functional import batch_norm, dropout, grid_sample, group_norm, log_softmax, softmax
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.accelerator import loading
from jgpu.device import current
from jgpu.device.composed import steps
from jgpu.device.recording import dispatch

pytestmark = pytest.mark.skipif(loading.load() is None, reason="the accelerator is not built here")

aten = torch.ops.aten


def ones(*shape, **more):
    return torch.ones(shape, device="cuda", **more)


def cell(gates, bias=True, state=1):
    weights = [ones(gates * 8, 4), ones(gates * 8, 8)]
    biases = [ones(gates * 8), ones(gates * 8)] if bias else []
    states = [ones(3, 8) for _ in range(state)]
    return (ones(3, 4), states if state > 1 else states[0], *weights, *biases)


def recorded(function):
    """Ops of a call, with what they read; made twice, so that its plans are known."""
    for _ in range(2):
        torch.cuda.synchronize()
        log = current.session.log
        function()
        found = [
            (plan.info.name, plan.geometries, [*offsets], [*params])
            for plan, _, offsets, _, params, _ in log.entries
        ]
    return found


CELLS = {
    "lstm": (aten.lstm_cell.default, {"gates": 4, "state": 2}),
    "lstm without biases": (aten.lstm_cell.default, {"gates": 4, "state": 2, "bias": False}),
    "gru": (aten.gru_cell.default, {"gates": 3}),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_written_out_alike(name):
    op, how = CELLS[name]
    args = cell(**how)
    step = steps.step_of(op._schema.name[6:], args, {})
    assert step is not None
    assert recorded(lambda: op(*args)) == recorded(lambda: step(*args)) != []


@pytest.mark.parametrize("p", [0.0, 0.25, 0.999])
@pytest.mark.parametrize("train", [True, False])
def test_dropout_is_written_out_alike(p, train):
    x = ones(3, 4, requires_grad=True)
    assert recorded(lambda: dropout(x, p, train)) == recorded(lambda: steps.dropped(x, p, train))


TORCHS_OWN = {
    "softmax.int", "log_softmax.int", "_batch_norm_impl_index", "grid_sampler", "group_norm"
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("softmax", lambda x, grid: softmax(x, -1)),
        ("log_softmax", lambda x, grid: log_softmax(x, -1)),
        ("batch norm", lambda x, grid: batch_norm(x, None, None, training=True)),
        ("sampled grid", lambda x, grid: grid_sample(x, grid, align_corners=False)),
        ("group norm", lambda x, grid: group_norm(x, 2)),
    ],
)
def test_what_is_torchs_own_goes_there_without_python(name, function, monkeypatch):
    x, grid = ones(2, 4, 5, 5, requires_grad=True), ones(2, 3, 3, 2)

    def call():
        function(x, grid)

    def take_apart(info, args, kwargs):
        assert info.name[6:] not in TORCHS_OWN, "it went into Python"
        return original(info, args, kwargs)

    expected, original = recorded(call), dispatch.take_apart
    monkeypatch.setattr(dispatch, "take_apart", take_apart)
    assert recorded(call) == expected != []


class Seen(TorchDispatchMode):
    """The ops that come by."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_in_a_mode_they_go_into_python_and_the_mode_sees_their_ops_on_either_side():
    args = cell(3)
    expected = recorded(lambda: torch.gru_cell(*args))
    with Seen() as seen:
        found = recorded(lambda: torch.gru_cell(*args))
        torch.ones(2, 2).add(1).sum()
    assert [name for name, *_ in found] == [name for name, *_ in expected]
    assert {"aten::addmm", "aten::sigmoid_", "aten::add", "aten::sum"} <= {*seen.names}
