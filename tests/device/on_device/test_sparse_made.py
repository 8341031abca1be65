"""Constructors of sparse tensors: sizes, flags, checks, warnings and errors are native ones."""

import warnings

import pytest
import torch

from jgpu.device import current
from jgpu.errors import JgpuError

coo, csr = torch.sparse_coo_tensor, torch.sparse_csr_tensor
PLACES, BAD, NEGATIVE = torch.tensor([[0, 1]]), torch.tensor([[0, 9]]), torch.tensor([[0, -1]])
ONES = torch.ones(2)
#: by whether the device has CUDA's kernels, which get no index that the executor did not check
OUT_OF_RANGE = {False: r"out of range|bounds", True: r"holds a value that is not in \[0, 4\)"}


def none(*shape):
    return torch.zeros(shape, dtype=torch.long)


def compressed(make, ends, plain, values, *size, **keywords):
    def on(d):
        parts = [torch.tensor(part).to(d) for part in (ends, plain, values)]
        return make(*parts, *size, **keywords)

    return on


def with_checks(make):
    def on(d):
        with torch.sparse.check_sparse_tensor_invariants():
            return make(d)

    return on


BLOCK = [[[1.0, 2.0], [3.0, 4.0]]]
WAYS = {
    "more values than places": lambda d: coo([[0, 1]], torch.ones(3).to(d)),
    "more values than places, sized": lambda d: coo(PLACES.to(d), torch.ones(3).to(d), (4,)),
    "one number": lambda d: coo(PLACES.to(d), torch.tensor(3.0).to(d), (4,)),
    "one dimension of places": lambda d: coo(torch.tensor([0, 1]).to(d), ONES.to(d), (4,)),
    "one dimension, no size": lambda d: coo(torch.tensor([0, 1]).to(d), ONES.to(d)),
    "three dimensions": lambda d: coo(none(1, 1, 2).to(d), ONES.to(d), (4,)),
    "no size": lambda d: coo(torch.tensor([[0, 2], [1, 0]]).to(d), torch.ones(2, 3).to(d)),
    "no size, negative": lambda d: coo(NEGATIVE.to(d), ONES.to(d)),
    "too many sizes": lambda d: coo(PLACES.to(d), ONES.to(d), (4, 4)),
    "too few sizes": lambda d: coo(PLACES.to(d), torch.ones(2, 3).to(d), (4,)),
    "another dense size": lambda d: coo(PLACES.to(d), torch.ones(2, 3).to(d), (4, 5)),
    "negative size": lambda d: coo(PLACES.to(d), ONES.to(d), (-4,)),
    "size is a number": lambda d: coo(PLACES.to(d), ONES.to(d), 4),
    "unchecked": lambda d: coo(BAD.to(d), ONES.to(d), (4,)),
    "unchecked negative": lambda d: coo(NEGATIVE.to(d), ONES.to(d), (4,)),
    "checked": lambda d: coo(BAD.to(d), ONES.to(d), (4,), check_invariants=True),
    "checked negative": lambda d: coo(NEGATIVE.to(d), ONES.to(d), (4,), check_invariants=True),
    "checked by context": with_checks(lambda d: coo(BAD.to(d), ONES.to(d), (4,))),
    "of a size": lambda d: coo((2, 3), device=d),
    "of a size by name": lambda d: coo(size=(2, 3), dtype=torch.int64, device=d),
    "nothing": lambda d: coo(none(2, 0).to(d), torch.ones(0).to(d)),
    "nothing, hybrid": lambda d: coo(none(2, 0).to(d), torch.ones(0, 3).to(d)),
    "a scalar": lambda d: coo(none(0, 1).to(d), torch.ones(1).to(d), ()),
    "said to be coalesced": lambda d: coo(PLACES.to(d), ONES.to(d), (4,), is_coalesced=True),
    "coalesced, but not": lambda d: coo(
        PLACES.flip(1).to(d), ONES.to(d), (4,), is_coalesced=True, check_invariants=True
    ),
    "lists": lambda d: coo([[0, 1]], [1, 2], (4,), device=d),
    "lists of floats": lambda d: coo([[0.0, 1.0]], [1.0, 2.0], (4,), device=d),
    "dtype": lambda d: coo([[0, 1]], [1.0, 2.0], (4,), device=d, dtype=torch.float64),
    "by name": lambda d: coo(indices=PLACES.to(d), values=ONES.to(d), size=(4,)),
    "gradient of integers": lambda d: coo(
        PLACES.to(d), ONES.long().to(d), (4,), requires_grad=True
    ),
    "unknown keyword": lambda d: coo(PLACES.to(d), ONES.to(d), (4,), foo=1),
    "csr": compressed(csr, [0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "csr, no size": compressed(csr, [0, 1, 2], [0, 1], [1.0, 2.0]),
    "csr, more values": compressed(csr, [0, 1, 2], [0, 1], [1.0, 2.0, 3.0], (2, 2)),
    "csr, unchecked": compressed(csr, [0, 1, 2], [0, 7], [1.0, 2.0], (2, 2)),
    "csr, unchecked rows": compressed(csr, [0, 3, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "csr, checked": compressed(csr, [0, 1, 2], [0, 7], [1.0, 2.0], (2, 2), check_invariants=True),
    "csr, checked by context": with_checks(compressed(csr, [0, 1, 2], [0, 7], [1.0, 2.0], (2, 2))),
    "csr, other rows": compressed(csr, [0, 1, 2], [0, 1], [1.0, 2.0], (3, 2)),
    "csr, one size": compressed(csr, [0, 1, 2], [0, 1], [1.0, 2.0], (4,)),
    "csr, floats": compressed(csr, [0.0, 1.0, 2.0], [0, 1], [1.0, 2.0], (2, 2)),
    "csc": compressed(torch.sparse_csc_tensor, [0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "bsr": compressed(torch.sparse_bsr_tensor, [0, 1], [0], BLOCK, (2, 2)),
    "bsr, other size": compressed(torch.sparse_bsr_tensor, [0, 1], [0], BLOCK, (3, 2)),
    "bsc": compressed(torch.sparse_bsc_tensor, [0, 1], [0], BLOCK, (2, 2)),
    "no layout": compressed(torch.sparse_compressed_tensor, [0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
}


def seen(make, device):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make(device)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return type(error).__name__, str(error)
    host = made.cpu()
    values = host._values() if host.is_sparse else host.values()
    flag = made.is_coalesced() if host.is_sparse else None
    places = host._indices().tolist() if host.is_sparse else None
    return str(made.layout), tuple(made.shape), str(made.dtype), flag, places, values.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_constructor_does_what_the_native_one_does(way):
    native, shared = seen(WAYS[way], "cpu"), seen(WAYS[way], "cuda")
    assert shared[0] == native[0]
    assert shared[1:] == native[1:] or (native[0] == "TypeError" and len(shared) == 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("index", [9, -1, 10**12])
def test_an_unchecked_index_is_an_error_of_the_op_that_uses_it(index):
    on_cuda = current.session.device_facts().has_cuda_kernels

    def bad():
        return coo(torch.tensor([[0, index]]).cuda(), ONES.cuda(), (4,))

    for use in (
        lambda s: s.to_dense(),
        lambda s: s.coalesce().to_dense(),
        lambda s: torch.zeros(4).cuda() + s,
        lambda s: (s * ONES.cuda().repeat(2))._values(),
    ):
        with pytest.raises((JgpuError, RuntimeError, IndexError), match=OUT_OF_RANGE[on_cuda]):
            use(bad()).cpu()
    assert ONES.cuda().sum().item() == 2.0


@pytest.mark.parametrize("make", [torch.empty_like, torch.zeros_like])
def test_a_memory_format_is_refused_as_natively(make):
    with pytest.raises(RuntimeError, match="memory format option is only supported by strided"):
        make(torch.eye(3, device="cuda").to_sparse(), memory_format=torch.preserve_format)
