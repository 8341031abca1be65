"""The judge's words over results made by hand."""

import sys
from pathlib import Path

import pytest
import torch

import jgpu.bench.fidelity

sys.path.append(str(Path(jgpu.bench.fidelity.__file__).parent / "resources"))

import judging
from judging import RUNS, Told, compared, judge, raises_as_well, tell

from jgpu.errors import NotSupported, WorkFailed

X = torch.linspace(0, 1, 12).view(3, 4)


def told(value):
    return tell(lambda: value)


@pytest.mark.parametrize(
    ("native", "device", "word"),
    [
        (X, X.clone(), "equal"),
        (X, X + 1e-7, "close"),
        (X, X + 1e-2, "wrong"),
        (X, X.t().contiguous().t(), "close"),
        (X, X.double(), "wrong"),
        (X, X[:2], "wrong"),
        (X, (X, X), "wrong"),
        (X, X.clone().requires_grad_(), "wrong"),
        (torch.tensor([float("nan"), 0.0]), torch.tensor([float("nan"), 0.0]), "equal"),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "close"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "wrong"),
        (torch.zeros(0, 3), torch.zeros(0, 3), "equal"),
        (torch.ones(3, 1), torch.ones(1, 3).t(), "equal"),
        (X.to(torch.complex64).conj(), X.to(torch.complex64).conj(), "equal"),
        (True, True, "equal"),
        (True, 1, "wrong"),
        ({"a": X}, {"a": X}, "equal"),
    ],
)
def test_results(native, device, word):
    assert judge(told(native), told(device), {})[0] == word


def test_values_that_nobody_wrote_are_not_looked_at():
    assert judge(told(X), told(X + 1), {}, values=False) == ("equal", "")
    assert judge(told(X), told(X[:2]), {}, values=False)[0] == "wrong"


@pytest.mark.parametrize(
    ("native", "device", "word"),
    [
        (ValueError("a"), ValueError("b"), "equal"),
        (RuntimeError("a"), WorkFailed("b"), "equal"),
        (ValueError("a"), RuntimeError("b"), "error"),
        (None, RuntimeError("b"), "error"),
        (None, NotSupported("no"), "refused"),
        (None, WorkFailed("random samples should be between 0 and 1 (in aten::…)"), "refused"),
        (IndexError("a"), None, "error"),
    ],
)
def test_errors(native, device, word):
    pair = [told(X) if error is None else Told([], error) for error in (native, device)]
    assert judge(*pair, {})[0] == word


def test_a_wider_tolerance_of_the_database_counts():
    assert judge(told(X), told(X + 1e-2), {"rtol": 0.0, "atol": 0.1})[0] == "close"


def runs(*results):
    """A call that gives one result after the other."""
    left = iter(results)
    return lambda: next(left)


def test_the_worst_run_on_the_device_counts():
    good, near, bad = X, X + 1e-7, X + 1
    natives = (good, good)
    for on_device, word in (
        ((good, good, good), "equal"),
        ((good, near, good), "close"),
        ((near, good, bad), "wrong"),
        ((bad, near, good), "wrong"),
    ):
        assert len(on_device) == RUNS
        ((variant, found, text),) = compared("out", runs(*natives), runs(*on_device), {})
        assert (variant, found) == ("out", word)
        late = word != "equal" and on_device[0] is good
        assert text.startswith("in run 2: ") == late


def test_each_run_begins_with_the_same_seed():
    draw = lambda: torch.rand(3)  # noqa: E731
    assert list(compared("out", draw, draw, {})) == [("out", "equal", "")]


def test_an_error_counts_as_that_of_cuda_only_in_its_words_and_in_every_run():
    raised = Told([], RuntimeError("only in training mode"))
    longer = Told([], RuntimeError("_cudnn_rnn_backward may not: only in training mode."))
    other = Told([], RuntimeError("The executor is gone."))
    assert raises_as_well(raised, [longer, longer])
    assert not raises_as_well(raised, [longer, other])
    assert not raises_as_well(raised, [longer, told(X)])
    assert not raises_as_well(told(X), [longer, longer])


def test_a_result_is_no_fault_where_native_is_further_from_double_precision():
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    off, near = torch.tensor([1.0, 2.1]), torch.tensor([1.0, 2.001])
    for native, device, word in (
        (off, near, "close"),  # native is the one that is far off
        (near, off, "wrong"),
        (off, torch.tensor([1.1, 2.001]), "wrong"),  # right where native is not, wrong elsewhere
        (off, torch.tensor([1.0, float("nan")]), "wrong"),
        (off, near.double(), "wrong"),
    ):
        ((_, found, text),) = compared(
            "out", runs(native, native), runs(*[device] * RUNS), {}, wider=lambda: exact
        )
        assert found == word, (native, device, text)


@pytest.mark.parametrize(("kernels", "word"), [([1.05, 2.0], "close"), ([1.05, 2.01], "wrong")])
def test_bits_of_cudas_kernels_are_no_fault_where_native_is_as_far_off_at_its_worst(
    kernels, word, monkeypatch
):
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    native, device = torch.tensor([1.0, 2.1]), torch.tensor([1.05, 2.0])
    monkeypatch.setattr(judging, "_has_cuda_kernels", lambda: True)
    monkeypatch.setattr(judging, "_as_on_cuda", lambda _: (told(torch.tensor(kernels)), False))
    ((_, found, text),) = compared(
        "out", runs(native, native), runs(*[device] * RUNS), {}, wider=lambda: exact
    )
    assert found == word, text


def test_statistics_that_cuda_keeps_in_single_precision_are_judged_in_natives_type(monkeypatch):
    native, device = X.bfloat16(), X * 1.0001
    monkeypatch.setattr(judging, "_has_cuda_kernels", lambda: True)
    for kernels, word in ((device, "close"), (X, "wrong")):  # its kernels' own numbers, or others
        monkeypatch.setattr(judging, "_as_on_cuda", lambda _, of=kernels: (told(of), False))
        ((_, found, _),) = compared("out", runs(native, native), runs(*[device] * RUNS), {})
        assert found == word
    monkeypatch.setattr(judging, "_as_on_cuda", lambda _: (told(X + 1), False))
    ((_, found, _),) = compared("out", runs(native, native), runs(*[X + 1] * RUNS), {})
    assert found == "wrong"


@pytest.mark.parametrize("on_cuda", [False, True])
def test_a_half_is_no_fault_where_native_is_further_from_double_precision(on_cuda, monkeypatch):
    """On CUDA further anywhere: it is rounded in other places there."""
    monkeypatch.setattr(judging, "_has_cuda_kernels", lambda: on_cuda)
    monkeypatch.setattr(judging, "_as_on_cuda", lambda _: (told(exact), False))
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    off, near, other = (
        torch.tensor(each, dtype=torch.bfloat16)
        for each in ([1.0, 2.25], [1.0, 2.015625], [1.125, 2.0])
    )
    by_worst = "close" if on_cuda else "wrong"
    for native, device, word in (
        (off, near, "close"),
        (near, off, "wrong"),
        (off, other, by_worst),
        (near, other, "wrong"),
    ):
        ((_, found, _),) = compared(
            "out", runs(native, native), runs(*[device] * RUNS), {}, wider=lambda: exact
        )
        assert found == word
