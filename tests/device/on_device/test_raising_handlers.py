"""A signal's handler that raises costs the line that it struck, and nothing of the connection."""

import os

import pytest
import torch
from striking import Struck, striking

from jgpu.device import current
from jgpu.device.interrupts import quiet

EVERY = int(os.environ.get("JGPU_EVERY", "20"))


def speak(kept, size):
    """Each way of a small notebook to speak to the device; what came of it."""
    x = torch.arange(float(size)).cuda() + kept
    total = (x * 2).sum().item()
    torch.manual_seed(size)
    torch.rand(3, device="cuda")
    found = (x > 3).nonzero().tolist()
    torch.cuda.synchronize()
    return total, found


@pytest.mark.timeout(0 if EVERY == 1 else 120)
def test_a_handler_that_raises_at_any_instruction_loses_no_frame():
    kept = torch.ones(1, device="cuda")
    for size in (5, 6):  # modules are imported at the first use
        expected = speak(kept, size)
    session = current.session
    number, generation = session.connection.number, session.connection.generation
    at, struck, ignored = 1, 0, 0
    while True:
        found = None
        with striking(at) as counted:
            try:
                found = speak(kept, 6)
            except Struck:
                struck += 1
        if counted[0] < at:
            break
        ignored += found is not None
        assert torch.is_grad_enabled()
        assert found in (None, expected)
        assert speak(kept, 6) == expected
        assert (session.connection.number, session.connection.generation) == (number, generation)
        assert quiet.depth() == 0
        for part in (session.connection, session.requests, session.buffers):
            part.validate()
        at += EVERY
    assert found == expected
    assert struck > 2000 / EVERY
    assert ignored == 0
