"""Values that are told unasked: right whatever is done to their buffers, and only while read."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jgpu import errors
from jgpu.device import current
from jgpu.wire import messages as m


@pytest.fixture
def asked(monkeypatch):
    """Downloads that were asked for."""
    sent = []
    queue = type(current.session.outbox.open()).queue

    def noting(self, message):
        if isinstance(message, m.Download):
            sent.append(message)
        queue(self, message)

    monkeypatch.setattr(type(current.session.outbox.open()), "queue", noting)
    return sent


def training():
    net = nn.Linear(8, 3).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    x, y = torch.randn(16, 8).cuda(), torch.randint(0, 3, (16,)).cuda()

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_a_loss_that_is_read_at_each_step_is_asked_for_once(asked):
    step = training()
    losses = [step().item() for _ in range(6)]
    asked.clear()
    trips = current.session.round_trips
    losses += [step().item() for _ in range(6)]
    assert asked == []
    assert current.session.round_trips == trips + 6
    assert losses == sorted(losses, reverse=True)
    kept = step()
    value = kept.item()
    for _ in range(3):
        step()
    assert kept.item() == value


def test_whoever_stops_reading_is_told_no_more():
    step = training()
    for _ in range(4):
        step().item()
    for _ in range(8):
        step()
    wanted = [cut.compiled.wanted for _, cut in current.session.outbox.runs][-8:]
    assert not any(wanted)
    assert current.session.buffers.reads._values == {}


def test_a_value_is_forgotten_when_its_buffer_is_written():
    x = torch.ones(4, device="cuda")
    for k in range(6):
        total = x.sum()
        assert total.item() == 4
        total += k
        assert total.item() == 4 + k
        total.mul_(2)
        total.view(1)[0] -= 1
        assert total.item() == 2 * (4 + k) - 1


def test_views_of_a_told_value(asked):
    x = torch.arange(6.0, device="cuda")
    for _ in range(4):
        y = x * 2
        assert y[3].item() == 6
        assert y[1:3].tolist() == [2, 4]
        assert y[5].item() == 10
    assert len(asked) < 12


def test_a_wanted_value_that_fails_raises_and_the_next_one_is_right():
    table = nn.Embedding(4, 1).cuda()
    good, bad = torch.tensor([1], device="cuda"), torch.tensor([9], device="cuda")
    value = table(good).sum().item()
    assert table(good).sum().item() == value
    with pytest.raises(IndexError):
        table(bad).sum().item()
    lost = table(bad).sum()
    with pytest.raises((IndexError, errors.PoisonedTensor)):
        lost.item()
    assert table(good).sum().item() == value
    assert table(good).sum().item() == value
