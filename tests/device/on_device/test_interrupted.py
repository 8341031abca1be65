"""Ctrl-C at the wire steps of a notebook: a slice of them everyday, all of them again and again."""

import json
import os

import pytest
import torch
from interrupted import Steps, Walk, connecting

from jgpu.device import current

EVERY = int(os.environ.get("JGPU_EVERY", "20"))
ROUNDS = int(os.environ.get("JGPU_ROUNDS", "1"))


@pytest.mark.timeout(0 if EVERY == 1 else 120)
def test_an_interrupt_at_any_wire_step_costs_the_cell_and_nothing_else():
    with Steps().watched() as steps:
        walks = (Walk(steps, EVERY, number) for number in range(ROUNDS))
        found = [(walk.go(), walk.survived) for walk in walks]
    counts, survived = [count for count, _ in found], sum(each for _, each in found)
    assert counts[0] > 100 / EVERY
    assert survived <= sum(counts) // 10
    if "JGPU_FIGURES" in os.environ:
        with open(os.environ["JGPU_FIGURES"], "w") as file:
            json.dump({"steps": counts, "interrupts": sum(counts), "ignored": survived}, file)


def test_an_interrupt_while_the_connection_is_made_loses_no_seed():
    with Steps().watched() as steps:
        at = 1
        while connecting(steps, at):
            at += 1
    assert at > 5


@pytest.fixture
def after_a_piece(monkeypatch):
    """Ctrl-C behind the first piece of the next upload."""
    session = current.session
    pump = session._pump
    torch.cuda.synchronize()
    works = session._work

    def pump_and_strike(link, timeout_s=0.0):
        pump(link, timeout_s)
        if session._work > works:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(session, "_pump", pump_and_strike)


def test_an_interrupt_between_the_pieces_of_an_upload_leaves_nothing_behind(request):
    torch.ones(1, device="cuda").sum().item()
    host, before = torch.arange(3 << 20), current.session.memory().used
    request.getfixturevalue("after_a_piece")
    with pytest.raises(KeyboardInterrupt):
        host.cuda()
    assert current.session.memory().used == before


def test_a_tensor_whose_filling_was_interrupted_can_be_used(request):
    torch.ones(1, device="cuda").sum().item()
    host, generation = torch.arange(3 << 20), current.session.generation
    request.getfixturevalue("after_a_piece")
    target = torch.empty(3 << 20, dtype=torch.int64, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        target.copy_(host)
    target[:4] = 7
    assert target[:5].tolist() == [7, 7, 7, 7, 4]
    assert torch.equal(target.copy_(host).cpu(), host)
    assert current.session.generation == generation


def test_an_event_whose_wait_was_interrupted_is_over(monkeypatch):
    x = torch.randn(1000, 1000, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(30):
        x = x @ x
        x = x / x.norm()
    end.record()
    receive = type(current.session._link).receive

    def strike(link, timeout_s=0.0):
        if timeout_s:
            monkeypatch.undo()
            raise KeyboardInterrupt
        receive(link, timeout_s)

    monkeypatch.setattr(type(current.session._link), "receive", strike)
    with pytest.raises(KeyboardInterrupt):
        end.synchronize()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert torch.ones(2, device="cuda").tolist() == [1, 1]
