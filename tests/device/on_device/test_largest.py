"""What can never fit is refused where it is asked for; what fits is not."""

import gc
import random
import re
from contextlib import nullcontext

import pytest
import torch

from jgpu import errors
from jgpu.device import current
from jgpu.device.client.notebook import largest

MIB = 1 << 20


@pytest.fixture
def little():
    """A user who may have 64 MiB."""
    torch.ones(1, device="cuda").item()
    ready = current.session.connection.ready
    limit = type(ready)(ready.device, 64 * MIB)
    largest.watch(limit)
    yield 64 * MIB
    largest.watch(ready)


@pytest.fixture
def few():
    """A notebook that may have 400 tensors more than it has."""
    torch.ones(1, device="cuda").item()
    gc.collect()
    current.session.synchronize()
    ready = current.session.connection.ready
    largest.watch(ready, len(current.session.buffers.held) + 400)
    yield 400
    largest.watch(ready)


def full(mib):
    return torch.full((mib, MIB // 4), 1.0, device="cuda")


def fill(kept):
    while True:
        kept.append(torch.ones(4000, device="cuda"))


def test_the_line_that_asks_for_too_much_raises_and_nothing_is_sent(little):
    kept = full(40)
    kept.sum().item()
    works = current.session.outbox.work
    recorded = len(current.session.log)
    with pytest.raises(torch.OutOfMemoryError, match=r"allocate 40\.00 MiB.*no other user"):
        full(40)
    assert (current.session.outbox.work, len(current.session.log)) == (works, recorded)
    assert kept.sum().item() == 40 * MIB / 4
    del kept
    assert full(60).sum().item() == 60 * MIB / 4


def test_an_operation_counts_with_the_tensors_that_live(little):
    x = full(25)
    y = x * 2
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 25\.00 MiB"):
        x + y
    y.mul_(2)
    del x
    assert (y + y)[0, 0].item() == 8.0


def test_garbage_in_a_circle_is_collected_before_anything_is_refused(little):
    circle = [full(40)]
    circle.append(circle)
    del circle
    assert full(40)[0, 0].item() == 1.0


def test_activations_kept_for_backward_count_and_are_freed_with_the_graph(little):
    w = full(10).requires_grad_()
    loss = (w * 2).exp().sin().sum()
    with pytest.raises(torch.OutOfMemoryError):
        full(50)
    del loss
    full(50)


def test_small_tensors_count_and_are_refused_where_little_is_left(little):
    x = torch.ones(1000, device="cuda")
    kept = [full(16) for _ in range(3)]
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 16\.00 MiB"):
        kept.append(full(16))
    kept.append(full(15))
    with pytest.raises(torch.OutOfMemoryError, match=r"allocate 15\.62 KiB.*use (63\.9.|64\.00) M"):
        fill(kept)
    kept.append(torch.ones(10, device="cuda"))
    assert kept[-1].sum().item() == 10
    torch.cuda.synchronize()
    kept.clear()
    assert (x + 1).sum().item() == 2000
    assert x.sum().item() == 1000
    full(63).sum().item()


def test_memory_that_does_not_come_costs_only_what_was_to_have_it(little, monkeypatch):
    """The executor is asked for what this process does not know to be too much."""
    capacity = current.session.connection.ready.device.capacity
    monkeypatch.setattr(largest, "_limit", capacity << 2)
    x = torch.ones(1000, device="cuda")
    twice = x * 2
    large = torch.empty(capacity + 1, dtype=torch.uint8, device="cuda")
    again = x * 3
    x += 1
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        large[0].item()
    assert [each.sum().item() for each in (x, twice, again)] == [2000, 2000, 3000]
    with pytest.raises(errors.PoisonedTensor):
        large[0].item()


@pytest.mark.parametrize("seed", range(8))
def test_wherever_the_log_is_cut_older_tensors_survive_what_does_not_fit(seed, little, monkeypatch):
    """Random sums and updates around one tensor that is too large; the log is cut at random.

    The failure is told once: at the line behind it where it has come by then, or with the wait.
    """
    monkeypatch.setattr(largest, "_limit", 1 << 60)
    rng, session = random.Random(seed), current.session
    capacity = session.connection.ready.device.capacity
    native = [torch.arange(5.0) + k for k in range(4)]
    ours, large, told = [each.cuda() for each in native], None, False
    at = rng.randrange(30)
    for step in range(30):
        if step == at:
            large = torch.empty(capacity + 1, dtype=torch.uint8, device="cuda")
            try:
                spoilt = large[:5].float() + ours[0]
            except torch.OutOfMemoryError:
                spoilt, told = large, True
        one, other, made = (
            rng.randrange(len(native)),
            rng.randrange(len(native)),
            rng.random() < 0.3,
        )
        for tensors in (native, ours):
            if made:
                tensors.append(tensors[one] + tensors[other])
            else:
                tensors[one].add_(tensors[other]).mul_(0.5)
        if rng.random() < 0.2:
            session.cut()
    with nullcontext() if told else pytest.raises(torch.OutOfMemoryError):
        torch.cuda.synchronize()
    for mine, theirs in zip(ours, native, strict=True):
        assert torch.equal(mine.cpu(), theirs)
    for lost in (large, spoilt):
        with pytest.raises((errors.PoisonedTensor, torch.OutOfMemoryError)):
            lost[0].item()


def test_what_exists_is_readable_in_any_order_where_there_is_no_room_for_a_copy(little):
    host = torch.arange(40.0 * MIB / 4).reshape(40, -1)
    x = host.cuda()
    for view in (lambda t: t[::2], lambda t: t[:, 1:], lambda t: t[:, :3].T.expand(2, -1, -1)):
        assert torch.equal(view(x).cpu(), view(host))
    with pytest.raises(torch.OutOfMemoryError):
        x + 1
    torch.cuda.synchronize()


def test_the_message_names_the_variables_that_hold_the_most(little, monkeypatch):
    import __main__

    model = torch.nn.Linear(1024, 1024).cuda()
    data = full(29)
    hidden = data * 1
    monkeypatch.setattr(__main__, "model", model, raising=False)
    monkeypatch.setattr(__main__, "batches", {"train": [data]}, raising=False)
    monkeypatch.setattr(__main__, "Out", {3: model.weight[:1]}, raising=False)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        full(10)
    named = r"Largest: batches 29\.00 MiB, model 4\.00 MiB, 29\.0\d MiB without a name"
    assert re.search(named, str(caught.value))
    assert hidden.shape == data.shape


def test_the_line_that_makes_one_tensor_too_many_raises_and_all_others_stay(few):
    x, kept = torch.ones(3, device="cuda"), []

    def fill_up():
        while True:
            kept.append(x + len(kept))

    with pytest.raises(torch.OutOfMemoryError, match=r"tensors on the shared device.*the most"):
        fill_up()
    assert len(kept) == few - 1
    with pytest.raises(torch.OutOfMemoryError):
        torch.frexp(x)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(0, device="cuda")
    assert [each[0].item() for each in kept[::99]] == [1.0 + k for k in range(0, len(kept), 99)]
    kept[0].add_(1)
    assert kept[0].view(3, 1)[1].item() == 2.0
    del kept[:6]
    mantissa, exponent = torch.frexp(x)
    assert (mantissa * 2**exponent).tolist() == [1.0] * 3


def test_tensors_that_come_and_go_are_not_too_many(few):
    x = torch.ones(3, device="cuda")
    for _ in range(3 * few):
        x = x + 1
    assert x.tolist() == [1.0 + 3 * few] * 3


def test_tensors_in_a_circle_are_collected_before_one_is_too_many(few):
    x = torch.ones(3, device="cuda")
    circle = [x + k for k in range(few - 2)]
    circle.append(circle)
    del circle
    assert [(x + k).tolist() for k in range(5)] == [[1.0 + k] * 3 for k in range(5)]
