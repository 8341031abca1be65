"""What the accelerator does of composites at the autograd key records what Python's kernels record.

Does not cover whether their results are the native ones (`test_recurrent_cells`, `test_dropout`).
"""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import (
    batch_norm,
    cross_entropy,
    dropout,
    grid_sample,
    group_norm,
    log_softmax,
    scaled_dot_product_attention,
    softmax,
)
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.accelerator import loading
from jgpu.device import current
from jgpu.device.composed import composites, steps
from jgpu.device.composed.attention import onhost
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


def heads(length, **more):
    return ones(2, length, 3, 8, **more).transpose(1, 2)


ATTENTION = {
    "plain": ({}, {}),
    "causal": ({}, {"is_causal": True}),
    "scaled": ({}, {"scale": 0.3}),
    "wanted": ({"requires_grad": True}, {}),
    "of doubles": ({"dtype": torch.float64}, {}),
    "masked": ({}, {"attn_mask": (4, 5)}),
    "masked and wanted": ({"requires_grad": True}, {"attn_mask": (2, 1, 4, 5), "scale": 0.3}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_called_by_name_alike_and_without_python(name, monkeypatch):
    more, options = ATTENTION[name]
    if "attn_mask" in options:
        options = options | {"attn_mask": ones(*options["attn_mask"], dtype=more.get("dtype"))}
    args = (heads(4, **more), heads(5, **more), heads(5, **more))
    mask, causal = options.get("attn_mask"), options.get("is_causal", False)
    named = {key: options[key] for key in options if key == "scale"}
    op = aten.scaled_dot_product_attention.default
    in_python = recorded(lambda: composites._attention(op, (*args, mask, 0.0, causal), named))
    made = scaled_dot_product_attention(*args, **options)
    assert made.requires_grad is more.get("requires_grad", False)
    monkeypatch.setattr(onhost, "attend_on_host", None)
    assert recorded(lambda: scaled_dot_product_attention(*args, **options)) == in_python != []


LEFT_TO_PYTHON = {
    "truths": {"attn_mask": lambda: ones(4, 5, dtype=torch.bool)},
    "a mask that is wanted": {"attn_mask": lambda: ones(4, 5, requires_grad=True)},
    "dropout": {"dropout_p": lambda: 0.5},
    "groups": {"enable_gqa": lambda: True},
}


@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_attention_that_is_not_plain_goes_into_python(name, monkeypatch):
    options = {key: make() for key, make in LEFT_TO_PYTHON[name].items()}
    assert_goes_into_python(monkeypatch, [heads(4), heads(5), heads(5)], options)


def test_attention_under_a_switch_or_without_elements_goes_into_python(monkeypatch):
    assert_goes_into_python(monkeypatch, [heads(4), heads(0), heads(0)], {})
    with sdpa_kernel(SDPBackend.MATH):
        assert_goes_into_python(monkeypatch, [heads(4), heads(5), heads(5)], {})


def assert_goes_into_python(monkeypatch, args, options):
    calls, original = [], onhost.attend_on_host

    def attend_on_host(args, kwargs):
        calls.append(args)
        return original(args, kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(onhost, "attend_on_host", attend_on_host)
        for _ in range(3):
            scaled_dot_product_attention(*args, **options)
    assert len(calls) == 3


CLASSES = torch.zeros(2, 5, 5, dtype=torch.int64, device="cuda")
TORCHS_OWN = {
    "softmax.int", "log_softmax.int", "_batch_norm_impl_index", "grid_sampler", "group_norm",
    "cross_entropy_loss",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("softmax", lambda x, grid: softmax(x, -1)),
        ("log_softmax", lambda x, grid: log_softmax(x, -1)),
        ("batch norm", lambda x, grid: batch_norm(x, None, None, training=True)),
        ("sampled grid", lambda x, grid: grid_sample(x, grid, align_corners=False)),
        ("group norm", lambda x, grid: group_norm(x, 2)),
        ("classes", lambda x, grid: cross_entropy(x, CLASSES)),
        ("smooth classes", lambda x, grid: cross_entropy(x, CLASSES, label_smoothing=0.1)),
        ("weighted classes", lambda x, grid: cross_entropy(x, CLASSES, torch.ones(4).cuda())),
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
