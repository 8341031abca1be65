"""Batches: sizes of a numeric index decide the result's shape, so nothing waits."""

import os
from contextlib import nullcontext
from itertools import islice, product

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


#: one in so many indices of empty tensors is tried
EVERY = int(os.environ.get("JGPU_EVERY", "1"))
EMPTY = [(0,), (0, 3), (3, 0), (0, 0), (0, 3, 0), (2, 0, 3), (1, 2)]
PUT = torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default
FORMS = {
    "get": lambda x, index: torch.ops.aten.index.Tensor(x, index),
    "get unsafe": lambda x, index: torch.ops.aten._unsafe_index.Tensor(x, index),
    "put unsafe": lambda x, index: torch.ops.aten._unsafe_index_put(x, index, x.new_ones(())),
    **{
        f"{put} {'added' if added else 'set'}": lambda x, index, put=put, added=added: put(
            x, index, x.new_ones(()), added
        )
        for put, added in product(PUT, (False, True))
    },
}


def indices(dimensions):
    """Up to so many numbers, shapes of them or none, of both types."""
    sizes, dtypes = [None, (), (0,), (1,), (2, 1)], [torch.int64, torch.int32, torch.int64]
    for count in range(1, dimensions + 1):
        for chosen in product(sizes, repeat=count):
            if any(size is not None for size in chosen):  # torch's kernels want one
                yield [
                    size if size is None else torch.zeros(size, dtype=dtype)
                    for size, dtype in zip(chosen, dtypes, strict=False)
                ]


def outcome(form, shape, index, where):
    """The shape of the result, or the error."""
    made = [each if each is None else each.to(where) for each in index]
    try:
        return form(torch.zeros(shape, device=where), made).shape
    except (IndexError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", FORMS)
def test_an_index_of_what_is_empty_is_told_on_the_line_as_natively_each_time(name):
    form, told = FORMS[name], 0
    for shape in EMPTY:
        for index in islice(indices(len(shape)), 0, None, EVERY):
            native = outcome(form, shape, index, "cpu")
            before = current.session.round_trips
            for _ in range(2):
                assert outcome(form, shape, index, "cuda") == native, (shape, index)
            assert current.session.round_trips == before
            told += native == (IndexError, "index is out of bounds for dimension with size 0")
    assert told > 100 // EVERY
    torch.cuda.synchronize()


def put_at(x, index, value):
    x[index] = value
    return x


TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
#: numbers that are written at indices
FILLS = [
    lambda x, i: put_at(x[:0], [0], 4),
    lambda x, i: put_at(x[:0], i, 4),
    lambda x, i: put_at(x[:, 3:], (slice(None), i), 4),
]


@pytest.mark.parametrize(
    "form",
    [
        *FILLS,
        lambda x, i: x[0, 3:][i],
        lambda x, i: x[:, 3:][:, i],
        lambda x, i: x[:, 3:].transpose(0, 2)[i, i, i],
        lambda x, i: x[:0][[0]],
        lambda x, i: put_at(x[:0], i, x.new_ones(5, 7)),
        lambda x, i: x[:0].index_put_((i,), x.new_ones(1, 3, 4).long()),
        lambda x, i: x[:0].index_put((i,), x.new_ones(0, 3, 4)),
        lambda x, i: torch.ops.aten.index_put.out(x[:0], [i], x.new_ones(()), out=x.new_ones(0)),
        lambda x, i: torch.ops.aten.index.Tensor_out(x[:0], [i.to(x.device)], out=x.new_ones(0)),
    ],
)
def test_every_way_to_write_an_index_of_what_is_empty(form):
    def said(where, place):
        index = torch.tensor([0], device=place)
        with pytest.raises((IndexError, RuntimeError)) as caught:
            form(torch.zeros(2, 3, 4, device=where), index)
        return caught.type, str(caught.value)

    kind, native = said("cpu", "cpu")
    before = current.session.round_trips
    told = [said("cuda", place) for place in ("cuda", "cpu", "cuda")]
    waited = current.session.round_trips - before
    if form in FILLS and TORCH >= (2, 15):  # that release fills, so the result is known
        assert waited
        if form is not FILLS[0]:  # but where the index is elsewhere it puts
            assert told.pop(1) == (IndexError, "index is out of bounds for dimension with size 0")
        assert all(issubclass(each, kind) for each, _ in told)
        assert {text.partition(" (in aten::index_fill")[0] for _, text in told} == {native}
    else:
        assert told == [(kind, native)] * 3
        assert not waited
    torch.cuda.synchronize()


def test_what_is_filled_where_nothing_is_says_so_on_its_line():
    """In the words of the device, which knows the number."""

    def said(where, shape, dim, index, value):
        index = torch.tensor(index, dtype=torch.int64, device=where)
        value = value if isinstance(value, float) else torch.tensor(1.0, device=where)
        try:
            return torch.zeros(shape, device=where).index_fill(dim, index, value).shape, ""
        except (IndexError, RuntimeError) as error:
            return isinstance(error, IndexError), str(error).partition(" (in aten::")[0]

    for case in (
        ((0, 3), 0, [0], 4.0), ((0, 3), 0, [5, 1], 4.0), ((2, 0, 3), -2, [1], None),
        ((0, 3), 1, [0], 4.0), ((0, 3), 0, [], 4.0), ((2, 0), 7, [0], 4.0), ((0, 3), 1, [3], None),
    ):  # fmt: skip
        native = said("cpu", *case)
        for _ in range(3):
            assert said("cuda", *case) == native, case
        torch.cuda.synchronize()


@pytest.mark.parametrize("masked", [False, True])
def test_a_mask_beside_an_index_of_what_is_empty_decides_by_what_it_holds(masked):
    x, rows = torch.zeros(0, 3, device="cuda"), torch.tensor([0], device="cuda")
    mask = torch.tensor([False, masked, False], device="cuda")
    with pytest.raises(IndexError) if masked else nullcontext():
        assert x[rows, mask].shape == (0,)
    with pytest.raises(IndexError) if masked else nullcontext():
        x[rows, mask] = 4
        torch.cuda.synchronize()
    assert x[:, mask].shape == (0, int(masked))
    assert x[mask[:0]].shape == (0, 3)
    assert x[mask[:0], 0:0].shape == (0, 0)


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


def test_values_of_a_wrong_shape_and_type_are_refused_for_their_shape_as_natively():
    found = []
    for device in ("cpu", "cuda"):
        index = torch.tensor([0, 1, 2], device=device)
        with pytest.raises(RuntimeError) as caught:
            torch.arange(4, device=device)[index] = torch.ones(2, device=device)
        found.append(str(caught.value))
    assert found[0] == found[1]
