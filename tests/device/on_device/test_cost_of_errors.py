"""What an error costs: what could not be computed, and nothing that was there before."""

import socket

import pytest
import torch

from jgpu import errors
from jgpu.device import current
from jgpu.device.errors import from_failure
from jgpu.wire import messages as m

#: what the executor says of bytes that it cannot bring back
UNREADABLE = "This tensor was kept in the spool file, which cannot be read; make the tensor again."


def failed(error, text, *buffers):
    return m.Failed(0, 0, "", error, text, buffers)


@pytest.mark.parametrize(
    ("error", "kind", "fault"),
    [
        ("BudgetExceeded", errors.BudgetExceeded, "the user's budget"),
        ("DeviceLost", errors.DeviceLost, "the broker or its device"),
        ("HeldOff", errors.HeldOff, "the user's programs"),
        ("IndexError", IndexError, "the notebook"),
        ("OutOfMemoryError", torch.OutOfMemoryError, "the notebook"),
        ("WorkCancelled", errors.WorkCancelled, "the notebook"),
    ],
)
def test_a_failure_says_whose_fault_it_is(error, kind, fault):
    made = from_failure(failed(error, "A sentence."), None, lambda: "")
    assert isinstance(made, kind)
    assert made.fault == fault


def test_what_the_device_has_lost_is_not_the_notebook_s_fault_however_often_it_is_used():
    lost, kept = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
    lost.sum().item()
    failure = failed("DeviceLost", UNREADABLE, lost._b.id)
    current.session.connection.handlers[m.Failed](failure)
    for use in (lost.cpu, lambda: lost + 1, lambda: lost.sum().item()):
        with pytest.raises(errors.DeviceLost) as caught:
            use()
        assert not isinstance(caught.value, errors.NotebookError)
        assert str(caught.value) == UNREADABLE
    torch.cuda.synchronize()  # it was told, once
    assert (kept + 1).tolist() == [2, 2, 2]


def test_answers_that_were_awaited_when_the_device_was_lost_are_not_taken_for_later_ones():
    x = torch.tensor([0.0, 1.0], device="cuda")
    x.sum().item()
    session = current.session
    session.connection.link._stream.shutdown(socket.SHUT_RDWR)
    with pytest.raises(errors.DeviceLost):
        x.nonzero()
    assert len(session.requests) == 0
    for length in range(1, 9):  # works are numbered anew
        mask = torch.ones(length, device="cuda")
        assert mask.nonzero().shape == (length, 1)
    with pytest.raises(errors.DeviceLost):
        x.cpu()
