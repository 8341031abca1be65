"""Batches: an index of numbers says by its sizes what is returned, so nobody waits for it."""

import pytest
import torch

from jgpu.device import current


def test_batches_by_shuffled_rows_wait_for_nothing_and_have_native_bits():
    x, y = torch.randn(50, 3), torch.arange(50)
    rows = torch.randperm(50)
    shared = x.cuda(), y.cuda(), rows.cuda()
    before = current.session.round_trips
    found = []
    for at in range(0, 50, 20):
        some = shared[2][at : at + 20]
        found.append((shared[0][some], shared[1][some], shared[0][rows[at : at + 20]]))
    assert current.session.round_trips == before
    for at, (inputs, labels, again) in zip(range(0, 50, 20), found, strict=True):
        some = rows[at : at + 20]
        assert torch.equal(inputs.cpu(), x[some])
        assert torch.equal(labels.cpu(), y[some])
        assert torch.equal(again.cpu(), x[some])


ROWS, PAIR = torch.tensor([2, 0, 1]), torch.tensor([[0, 1], [1, 0]])


@pytest.mark.parametrize(
    "index",
    [
        lambda rows, pair: (rows,),
        lambda rows, pair: (slice(None), pair),
        lambda rows, pair: (rows, rows),
        lambda rows, pair: (rows[:2], slice(None), pair),
        lambda rows, pair: (pair, None, rows[:2]),
        lambda rows, pair: (rows[:0],),
        lambda rows, pair: (rows.int(), -1),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_an_index_of_numbers_lies_as_natively_from_the_first_run_on(index, order):
    whole = torch.arange(36.0).view(3, 3, 4).requires_grad_()
    shared = whole.detach().cuda().requires_grad_()
    native = whole.permute(order)[:3, :3, :3][index(ROWS, PAIR)]
    found = shared.permute(order)[:3, :3, :3][index(ROWS.cuda(), PAIR.cuda())]
    assert found.stride() == native.stride()
    assert torch.equal(found.detach().cpu(), native.detach())
    native.pow(2).sum().backward()
    found.pow(2).sum().backward()
    assert torch.equal(shared.grad.cpu(), whole.grad)


def test_an_index_that_is_not_there_is_told_of_with_its_op():
    x = torch.arange(3.0, device="cuda")
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3"):
        x[torch.tensor([0, 5], device="cuda")].sum().item()
    assert x[torch.tensor([0, 2], device="cuda")].tolist() == [0.0, 2.0]


def test_a_mask_waits_for_its_size():
    x = torch.arange(4.0, device="cuda")
    assert x[x > 1].shape == (2,)
    assert x.view(2, 2)[torch.tensor([True, False], device="cuda")].tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[:, :, :3].permute(1, 2, 0),
        lambda x: x[:, 1:, ::2],
        lambda x: x[:1].expand(4, 3, 4).transpose(0, 2),
        lambda x: x[0, 0, :2].expand(2, 2),
        lambda x: x.as_strided((3, 2, 2), (1, 2, 1)),
        lambda x: x[:, :0].permute(2, 0, 1),
    ],
)
def test_what_has_gaps_on_the_host_lies_on_the_device_as_its_copy_does(make):
    x = make(torch.arange(36.0).view(3, 3, 4))
    shared, native = x.cuda(), x.to("cpu", copy=True)
    assert shared.stride() == native.stride()
    assert torch.equal(shared.cpu(), native)
