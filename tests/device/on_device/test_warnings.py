"""Warnings name the user's line, with the text and frequency of native ones."""

import re
import warnings

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

FROZEN = numpy.arange(3.0)
FROZEN.flags.writeable = False


def x(where):
    return torch.arange(6.0, device=where)


def bytes_as_mask(where):
    return torch.tensor([1, 0, 1, 0, 0, 1], dtype=torch.uint8, device=where)


def expanded(where):
    return torch.zeros(1, device=where).expand(6)


def into(where, *sizes):
    return torch.zeros(sizes, device=where)


CALLS = {
    "a tensor of a tensor": lambda at: torch.tensor(x(at)),
    "a tensor of one of the host": lambda at: torch.tensor(torch.ones(2), device=at),
    "new_tensor": lambda at: x(at).new_tensor(x(at)),
    "arrays in a list": lambda at: torch.tensor([FROZEN, FROZEN], device=at),
    "an array that is not writable": lambda at: torch.as_tensor(FROZEN, device=at),
    "a buffer that is not writable": lambda at: torch.frombuffer(b"1234", dtype=torch.uint8).to(at),
    "range": lambda at: torch.range(0, 3, device=at),
    "mse_loss of two shapes": lambda at: F.mse_loss(x(at), x(at)[:, None]),
    "l1_loss of two shapes": lambda at: F.l1_loss(x(at), x(at)[:, None]),
    "huber_loss of two shapes": lambda at: F.huber_loss(x(at), x(at)[:, None]),
    "sum and out": lambda at: torch.add(x(at), 1, out=into(at, 2)),
    "mm and out": lambda at: torch.mm(x(at).view(2, 3), x(at).view(3, 2), out=into(at, 5)),
    "reduction and out": lambda at: torch.sum(x(at).view(2, 3), 0, out=into(at, 5)),
    "cat and out": lambda at: torch.cat([x(at), x(at)], out=into(at, 5)),
    "std of one": lambda at: x(at)[:1].std(),
    "var of one": lambda at: x(at)[:1].var(),
    "var_mean of rows of one": lambda at: torch.var_mean(x(at).view(6, 1), 1),
    "std of one, uncorrected": lambda at: x(at)[:1].std(correction=0),
    "complex as real": lambda at: torch.ones(2, dtype=torch.complex64, device=at).float(),
    "complex into real": lambda at: x(at).copy_(x(at).to(torch.complex64)),
    "a number at indices of an expanded tensor": lambda at: expanded(at).index_fill_(
        0, torch.tensor([2, 1], device=at), 1.0
    ),
    "values at indices of an expanded tensor": lambda at: expanded(at).index_put_(
        (torch.tensor([2, 1], device=at),), torch.zeros(2, device=at)
    ),
    "a number in an expanded tensor": lambda at: expanded(at).masked_fill_(x(at) > 2, 0.0),
    "two masks of bytes": lambda at: x(at).view(2, 3)[bytes_as_mask(at)[:2], bytes_as_mask(at)[3:]],
    "cholesky": lambda at: torch.cholesky(torch.eye(2, device=at)),
    "triangular_solve": lambda at: torch.triangular_solve(
        torch.eye(2, device=at), torch.eye(2, device=at)
    ),
    "bytes as mask": lambda at: x(at)[bytes_as_mask(at)],
    "bytes as condition": lambda at: torch.where(bytes_as_mask(at), x(at), 0.0),
    "T of three dimensions": lambda at: x(at).view(1, 2, 3).T,
    "grad of no leaf": lambda at: (x(at).requires_grad_() * 2).grad,
    "storage": lambda at: x(at).storage(),
    "the old dtype of autocast": lambda at: torch.get_autocast_gpu_dtype(),
    "scheduler first": lambda at: torch.optim.lr_scheduler.StepLR(
        torch.optim.SGD(nn.Linear(2, 2).to(at).parameters(), 0.1), 1
    ).step(),
    "parameters twice": lambda at: torch.optim.SGD(
        list(nn.Linear(2, 2).to(at).parameters()) * 2, 0.1
    ),
    "softmax of no dimension": lambda at: F.softmax(x(at).view(2, 3)),
    "affine_grid": lambda at: F.affine_grid(torch.zeros(1, 2, 3, device=at), (1, 1, 2, 2)),
    "meshgrid": lambda at: torch.meshgrid(x(at), x(at)),
    "create_graph": lambda at: (x(at).requires_grad_() ** 2).sum().backward(create_graph=True),
    "an old argument": lambda at: F.mse_loss(x(at), x(at), size_average=False),
}

if not hasattr(torch.ops.aten, "cholesky"):  # from torch 2.14 on it is an error
    del CALLS["cholesky"]


def said(call, where):
    """Texts and lines of the warnings of two calls from one line."""
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        for _ in range(2):
            call(where)
    return [
        (each.filename, each.lineno, each.category, re.sub(r" \(Trigg.*\)$", "", str(each.message)))
        for each in met
    ]


@pytest.fixture
def always():
    """Show warnings that torch shows once in a process each time."""
    torch.set_warn_always(True)
    torch.storage._set_always_warn_typed_storage_removal(True)
    yield
    torch.storage._set_always_warn_typed_storage_removal(False)
    torch.set_warn_always(False)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", CALLS)
def test_warnings_are_those_of_native_torch_at_the_same_line(name):
    natively = said(CALLS[name], "cpu")
    assert said(CALLS[name], "cuda") == natively


def test_most_of_these_do_warn():
    assert sum(bool(said(call, "cuda")) for call in CALLS.values()) > 25


def test_a_warning_is_shown_once_a_line():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("ignore")
        torch.tensor(torch.ones(2, device="cuda"))  # infers the first plan
        warnings.simplefilter("default")
        for _ in range(3):
            torch.tensor(torch.ones(2, device="cuda"))
        torch.tensor(torch.ones(2, device="cuda"))
    assert [each.filename for each in shown] == [__file__] * 2


def test_masks_of_bytes_are_masks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for where in ("cuda", "cpu"):
            mask, given = bytes_as_mask(where), x(where)
            assert given[mask].tolist() == [0.0, 2.0, 5.0]
            assert torch.where(mask, given, -1.0).tolist() == [0.0, -1.0, 2.0, -1.0, -1.0, 5.0]
            given[mask] = torch.tensor([7.0, 8.0, 9.0], device=where)
            assert given.tolist() == [7.0, 1.0, 8.0, 3.0, 4.0, 9.0]


def test_labels_may_be_bytes():
    found = []
    for where in ("cuda", "cpu"):
        given = torch.linspace(-1, 1, 12).view(4, 3).to(where).requires_grad_()
        labels = torch.tensor([0, 2, 1, 2], device=where)
        loss = F.cross_entropy(given, labels.byte())
        found.append((loss, *torch.autograd.grad(loss, given)))
        assert torch.equal(loss, F.cross_entropy(given, labels))
    torch.testing.assert_close(*found, rtol=0, atol=0, check_device=False)


def test_an_error_of_a_call_that_may_warn_shows_no_frame_of_ours():
    with pytest.raises(RuntimeError) as info:
        torch.tensor([object()], device="cuda")
    assert [entry.frame.code.path for entry in info.traceback][1:] == []
