"""Values that the executor sends early are right after any write, and stop when unread."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jgpu import errors
from jgpu.device import current
from jgpu.wire import messages as m


@pytest.fixture
def asked(monkeypatch):
    """The downloads that the client requests."""
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
    kept = set(current.session.buffers.reads._values)  # of tensors that other files of tests keep
    step = training()
    for _ in range(4):
        step().item()
    for _ in range(8):
        step()
    wanted = [cut.compiled.wanted for _, cut in current.session.outbox.runs][-8:]
    assert not any(wanted)
    assert set(current.session.buffers.reads._values) <= kept


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


def test_what_was_read_is_read_again_without_asking(asked):
    x = torch.arange(3.0, device="cuda") * 7
    assert x.tolist() == [0, 7, 14]
    asked.clear()
    trips = current.session.round_trips
    y = x + 1  # something is recorded meanwhile, and stays so
    assert x.tolist() == x.cpu().tolist() == [0, 7, 14]
    assert (x[1].item(), bool(x[0]), float(x[2])) == (7, False, 14)
    assert asked == []
    assert current.session.round_trips == trips
    assert len(current.session.log.entries) == 1
    assert y.tolist() == [1, 8, 15]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x.detach().view(4)[1:].zero_(),
        lambda x: x.data.mul_(2),
        lambda x: x.copy_(torch.ones(2, 2)),
        lambda x: x.fill_(5).sqrt_(),
        lambda x: torch.mul(x, 3, out=x),
        lambda x: x.__setitem__(0, 9.0),
        lambda x: torch._foreach_add_([x], 4),
        lambda x: x.uniform_().round_().sub_(8),
        lambda x: x.index_put_((torch.tensor([1], device="cuda"),), torch.tensor(6.0).cuda()),
    ],
)
@pytest.mark.parametrize("sent", [False, True])
def test_what_was_read_is_asked_for_anew_once_it_was_written(write, sent):
    x, host = torch.ones(2, 2, device="cuda") * 3, torch.ones(2, 2) * 3
    for _ in range(3):
        assert torch.equal(x.cpu(), x.cpu())
        torch.manual_seed(4)
        write(x)
        if sent:
            current.session.cut()
        after = (x + 0).cpu()  # of another buffer
        assert torch.equal(x.cpu(), after)
    assert not torch.equal(host, x.cpu())


def test_what_a_kernel_writes_in_silence_is_asked_for_anew():
    x, y = torch.randn(8, 4).cuda(), torch.ones(4).cuda()
    for k in range(4):
        mean = x.mean(0) * (k + 2)
        before = mean.tolist()
        torch.ops.aten.native_batch_norm(x, None, None, mean, y, True, 0.5, 1e-5)
        assert mean.tolist() == (mean + 0).tolist() != before


def test_only_a_few_small_values_are_kept():
    reads = current.session.buffers.reads
    many = [torch.full((4,), float(k), device="cuda") for k in range(300)]
    assert [each[0].item() for each in many] == list(range(300))
    assert [each.tolist()[3] for each in many] == list(range(300))
    assert len(reads._kept) <= 256
    large = torch.ones(4096, device="cuda")
    assert large.sum().item() == large.cpu().sum().item() == 4096
    assert large._b.id not in reads._kept
    del many, large
    torch.cuda.synchronize()
    assert [each.tolist() for each in [torch.zeros(2, device="cuda")]] == [[0, 0]]


def wrong_writes(at):
    """Ops in place that fail after the first element, on a tensor that the same program made."""
    ones = torch.ones(2, device="cuda")
    return {
        "scatter_": lambda x: x.scatter_(0, at, ones),
        "index_add_": lambda x: x.index_add_(0, at, ones),
        "index_copy_": lambda x: x.index_copy_(0, at, ones),
        "index_put_": lambda x: x.index_put_((at,), ones),
        "put_": lambda x: x.put_(at, ones),
    }


@pytest.mark.parametrize("name", wrong_writes(None))
def test_what_a_failed_write_left_is_not_told_before_its_error(name):
    for _ in range(60):  # what arrives in one read, and what in two, is up to the threads
        write = wrong_writes(torch.tensor([0, 9], device="cuda"))[name]
        with pytest.raises((RuntimeError, IndexError)):
            write(torch.zeros(4, device="cuda")).tolist()
        assert torch.ones(2, device="cuda").sum().item() == 2
