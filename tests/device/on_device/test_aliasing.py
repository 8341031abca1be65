"""Tensors that share storage behave as natively: growth, `set_`, `.data =`, `out=`, views."""

import copy
import os

import pytest
import torch
from aliases import play

#: sequences of the everyday run; others by JGPU_SEQUENCES and JGPU_FIRST
COUNT = int(os.environ.get("JGPU_SEQUENCES", "120"))
FIRST = int(os.environ.get("JGPU_FIRST", "0"))


@pytest.mark.timeout(6 * 3600 if COUNT > 1000 else 500)
def test_random_sequences_are_as_natively():
    differing = {seed: told for seed in range(FIRST, FIRST + COUNT) if (told := play(seed))}
    assert differing == {}


def test_a_tensor_that_grows_shares_its_storage_as_before():
    a = torch.arange(4.0, device="cuda")
    b = a.view(2, 2)
    a.resize_(8)
    a[:4] = 7
    assert b.tolist() == [[7, 7], [7, 7]]
    assert a.data_ptr() == b.data_ptr()
    assert b.untyped_storage().nbytes() == 32


def test_a_storage_grows_and_shrinks_under_its_tensors():
    x = torch.arange(3.0, device="cuda")
    x.untyped_storage().resize_(64)
    assert x.untyped_storage().nbytes() == 64
    assert x.tolist() == [0, 1, 2]
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() < 1 << 20
    x.untyped_storage().resize_(12)
    assert x.copy_(torch.ones(3)).tolist() == [1, 1, 1]


def test_a_grown_parameter_stays_resident():
    from jgpu.device import current

    layer = torch.nn.Linear(2, 2, device="cuda")
    layer.weight.data.resize_(4, 2)
    assert layer.weight._b.resident
    assert layer.weight._b.id in current.session.outbox._tags or not current.session.outbox._tags


def test_a_host_tensor_is_not_indexed_by_the_devices():
    message = r"either on cpu or on the same device as the indexed tensor \(cpu\)"
    with pytest.raises(RuntimeError, match=message):
        torch.arange(5)[torch.tensor([1], device="cuda")]
    assert torch.arange(5, device="cuda")[torch.tensor([1])].tolist() == [1]
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.zeros(5, device="cuda")[torch.tensor([1, 2])] = torch.ones(2)


def test_out_of_another_type_is_added_up_in_that_type():
    x = torch.tensor([[1 << 62], [1 << 62], [1 << 62]])
    out, native = torch.empty(3, device="cuda"), torch.empty(3)
    torch.sum(x, 0, out=native.resize_(1))
    with pytest.warns(UserWarning, match="resized"):
        torch.sum(x.cuda(), 0, out=out)
    assert torch.equal(out.cpu(), native)


def test_a_tensor_set_to_nothing_has_a_storage_of_its_own_and_gives_the_old_one_back():
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    x.set_()
    assert (x.shape, x.untyped_storage().nbytes()) == ((0,), 0)
    assert torch.cuda.memory_allocated() <= before - (4 << 20)


def test_set_to_a_part_of_a_tensor_counts_from_where_that_begins():
    x = torch.arange(10.0, device="cuda")
    assert torch.empty(0, device="cuda").set_(x[2:], 1, (3,), (2,)).tolist() == [3, 5, 7]
    with pytest.raises(RuntimeError, match="must be contiguous"):
        torch.empty(0, device="cuda").set_(x[::2], 0, (2,), (1,))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_typed_storage_is_shared_and_has_to_be_of_the_same_type():
    x = torch.arange(4.0, device="cuda")
    storage = x.storage()
    assert storage.dtype == torch.float32
    torch.empty(0, device="cuda").set_(storage).zero_()
    assert x.tolist() == [0, 0, 0, 0]
    with pytest.raises(RuntimeError, match="Expected a Storage of type"):
        torch.empty(0, dtype=torch.int64, device="cuda").set_(storage)


@pytest.mark.parametrize(
    "where", [((2,), (1,), -1), ((2,), (-1,), 0), ((-1,), (1,), 0), ((2,), (1, 1))]
)
def test_places_before_a_storage_are_refused_on_the_line(where):
    x = torch.arange(8.0, device="cuda")
    size, stride, *offset = where
    for call in (
        lambda: x.as_strided(*where),
        lambda: x.as_strided_(*where),
        lambda: x.set_(x.untyped_storage(), *(offset or [0]), size, stride),
    ):
        with pytest.raises(RuntimeError, match=r"offset|strides|length"):
            call()
    assert x.tolist() == list(range(8))


def test_resize_looks_at_a_memory_format_as_natively():
    with pytest.raises(RuntimeError, match="Unsupported memory format"):
        torch.ones(3, device="cuda").resize_(2, memory_format=torch.preserve_format)
    with pytest.raises(RuntimeError, match="required rank 4"):
        torch.ones(3, device="cuda").resize_(2, memory_format=torch.channels_last)
    x = torch.ones(2, 0, device="cuda").resize_(1, 2, 2, 3, memory_format=torch.channels_last)
    assert x.stride() == (12, 1, 6, 2)


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda x, out: torch.take(x, torch.tensor([1], device="cuda"), out=out), torch.float64),
        (lambda x, out: torch.any(x, 0, out=out), torch.int64),
        (lambda x, out: torch.amax(x, 0, out=out), torch.float64),
        (lambda x, out: torch.matmul(x, x, out=out), torch.float64),
    ],
    ids=["take", "any", "amax", "matmul"],
)  # fmt: skip
def test_an_out_of_a_type_that_an_op_does_not_fill_is_refused_on_the_line(call, dtype):
    x, out = torch.ones(2, 2, device="cuda"), torch.empty(0, dtype=dtype, device="cuda")
    with pytest.raises(RuntimeError, match=r"type|bool tensor"):
        call(x, out)
    assert out.shape == (0,)


def test_an_out_that_a_meta_kernel_alone_would_refuse_is_filled():
    x = torch.tensor([3 + 4j, 0, 1j], device="cuda")
    for size in (3, 0):
        out = torch.empty(size, dtype=torch.complex64, device="cuda")
        assert torch.abs(x, out=out) is out
        assert out.tolist() == [5, 0, 1]


def test_an_empty_out_has_no_two_elements_in_one_place():
    out = torch.empty(1, device="cuda").expand(2, 1)[:, :0]
    torch.index_select(torch.arange(3.0, device="cuda"), 0, torch.tensor([2, 1]).cuda(), out=out)
    assert out.tolist() == [2, 1]


@pytest.mark.parametrize("op", [torch.abs, torch.angle])
def test_a_real_part_is_written_when_its_out_has_been_resized(op):
    x = torch.tensor([[1.0, 0], [1j, 0], [-1, 0]], device="cuda")
    out = torch.zeros(1, 12, device="cuda").expand(2, 12)
    with pytest.warns(UserWarning, match="resized"):
        op(x, out=out)
    assert torch.equal(out.cpu(), op(x.cpu()))
    for refused in (x.real, x):
        expanded = torch.zeros(1, 2, device="cuda").expand(3 if refused is x else 4, 2)
        with pytest.raises(RuntimeError, match="single memory location"):
            op(refused, out=expanded)


@pytest.mark.parametrize("op", [torch.arange, lambda n, out: torch.linspace(0, 1, n, out=out)])
def test_a_row_of_a_type_that_there_is_none_of_is_refused_before_its_place(op):
    for dtype, message in ((torch.bool, "not implemented for 'Bool'"), (torch.int64, "single")):
        out = torch.zeros(1, 2, dtype=dtype, device="cuda").expand(2, 2)
        with pytest.raises(RuntimeError, match=message):
            op(4, out=out)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.flip(0),
        torch.empty_like,
        torch.zeros_like,
        lambda x: torch.full_like(x, 2),
        lambda x: x.sort(0)[0],
        lambda x: x.nan_to_num(),
        lambda x: x + 1,
        lambda x: x > 1,
        lambda x: x.exp(),
        lambda x: x.relu(),
        lambda x: x.log_softmax(0),
        lambda x: x.masked_fill(x > 1, 0),
    ],
)
@pytest.mark.parametrize(
    "where",
    [((1,), (2,)), ((1, 3), (7, 1)), ((3, 1), (1, 5)), ((2, 1, 3), (3, 9, 1))],
    ids=str,
)
def test_a_dimension_with_one_element_has_the_stride_that_torch_gives_it(op, where):
    host = torch.arange(30.0)
    native, ours = op(host.as_strided(*where)), op(host.cuda().as_strided(*where))
    assert ours.stride() == native.stride()
    assert ours[-1:].storage_offset() == native[-1:].storage_offset()
    assert ours[9:].resize_(2).untyped_storage().nbytes() == (
        native[9:].resize_(2).untyped_storage().nbytes()
    )


def test_stacked_images_lie_row_by_row_in_an_out_that_is_resized():
    x = torch.ones(1, 2, 2, 3, device="cuda").to(memory_format=torch.channels_last)
    out = torch.stack([x, x], out=torch.empty(0, device="cuda"))
    assert out.stride() == (12, 12, 6, 3, 1)


def test_what_is_copied_deeply_shares_nothing_with_what_it_was_copied_from():
    empty, conj = torch.empty(0, device="cuda"), torch.tensor([1j, 2], device="cuda").conj()
    copied, other = copy.deepcopy([empty, conj])
    assert copied.untyped_storage()._cdata != empty.untyped_storage()._cdata
    assert (other.is_conj(), other.tolist()) == (False, [-1j, 2])


def test_data_may_be_what_is_seen_conjugated_or_negated():
    x, y = torch.ones(2, device="cuda"), torch.tensor([1j, 2j], device="cuda").conj()
    negative = y.imag
    x.data = negative
    assert (x.is_neg(), x.tolist()) == (True, [-1, -2])
    x.set_()
    assert x.is_neg()
    x.data = torch.zeros(3, device="cuda")
    assert (x.is_neg(), x.tolist()) == (False, [0, 0, 0])


def test_data_of_a_real_tensor_may_be_what_is_seen_conjugated():
    x, y = torch.ones(3, device="cuda"), torch.tensor([1j, 2j], device="cuda").conj()
    shown = y.data_ptr()
    x.data, y.data = y.data, x.data
    assert (x.is_conj(), x.tolist(), x.data_ptr()) == (True, [-1j, -2j], shown)
    assert (y.is_conj(), y.tolist()) == (False, [1, 1, 1])
    weight = torch.ones(3, device="cuda", requires_grad=True)
    weight.data = x.data
    assert (weight.is_conj(), weight.requires_grad) == (True, True)
    assert (weight.detach().tolist(), weight._version) == ([-1j, -2j], 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.as_strided((2, 2), (1, 6)),
        lambda x: x[:3, None].expand(3, 4),
        lambda x: x[::2],
        lambda x: x[:6].unfold(0, 3, 1),
        lambda x: x.reshape(2, 3, 4).permute(2, 0, 1)[::2],
        lambda x: x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)[:, :, ::2],
    ],
)
def test_a_copy_on_the_host_has_the_strides_that_torch_gives_it(make):
    host = torch.arange(24.0)
    native, ours = make(host).to("cpu", copy=True), make(host.cuda()).cpu()
    assert torch.equal(native, ours)
    assert native.stride() == ours.stride()
