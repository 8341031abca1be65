"""Tensors over storages are the same by the library and by the plain form."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from jgpu.accelerator.loading import load
from jgpu.broker.executor.memory.hostbytes import bytes_of, tensor_of
from jgpu.broker.executor.programs.geometry import laid_over

NAMES = ("uint8", "bool", "int16", "float32", "bfloat16", "float64", "complex64", "float8_e4m3fn")
DTYPES = st.sampled_from([getattr(torch, name) for name in NAMES])
EXTENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=4)


@pytest.fixture(scope="module")
def library():
    if load() is None:
        pytest.skip("the accelerator is not built here")
    return load()


@pytest.fixture(autouse=True)
def without_grad():
    with torch.no_grad():
        yield


def shown(tensor):
    """All that is known of a tensor and of its storage."""
    return (
        type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(),
        tensor.storage_offset(), tensor.is_conj(), tensor.is_neg(), tensor.requires_grad,
        tensor.is_inference(), tensor.layout, torch._C._dispatch_keys(tensor),
        tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes(),
    )  # fmt: skip


def outcome(form, *given):
    try:
        return shown(form(*given))
    except RuntimeError as error:
        return str(error).splitlines()[0]


@given(DTYPES, DTYPES, EXTENTS, st.integers(-1, 9), st.integers(0, 40))
def test_both_forms_lay_the_same_over_a_storage(library, mine, other, extents, offset, count):
    base = torch.zeros(count, dtype=torch.uint8).view(torch.uint8)
    assume(count % mine.itemsize == 0)
    base = base.view(mine) if count else torch.empty(0, dtype=mine)
    shape, stride = tuple(n for n, _ in extents), tuple(k for _, k in extents)
    needed = offset + sum((n - 1) * k for n, k in extents) + 1
    fits = 0 not in shape and offset >= 0 and needed * other.itemsize <= count
    given = base, other, shape, stride, offset
    if not fits:  # what is too small may be made larger: each form has a storage of its own
        plain = outcome(laid_over, base.clone(), *given[1:])
        ours = outcome(library.laid_over, base.clone(), *given[1:])
        assert (plain if isinstance(plain, str) else plain[:12]) == (
            ours if isinstance(ours, str) else ours[:12]
        )
        return
    assert outcome(library.laid_over, *given) == outcome(laid_over, *given)


def test_what_is_written_through_one_is_seen_through_the_other(library):
    base = torch.zeros(16, dtype=torch.uint8)
    made = library.laid_over(base, torch.float32, (2, 2), (2, 1), 0)
    made.fill_(1.0)
    assert torch.equal(base.view(torch.float32), torch.ones(4))
    del base
    assert torch.equal(made, torch.ones(2, 2))


def test_conjugates_negatives_and_modes_are_dealt_with_by_torch(library):
    number = torch.tensor([1 + 2j, 3 - 1j])
    for base in (number.conj(), torch.conj(number).imag, number):
        for dtype in (torch.complex64, torch.float32):
            given = base, dtype, (2,), (1,), 0
            assert outcome(library.laid_over, *given) == outcome(laid_over, *given)
    base = torch.zeros(8, dtype=torch.uint8)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for form in (library.laid_over, laid_over):
            with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
                form(base, torch.float32, (2,), (1,), 0)


@given(st.binary(max_size=5000))
def test_both_forms_make_the_same_tensor_of_bytes(library, data):
    ours, plain = library.tensor_of(data), tensor_of(data)
    assert shown(ours)[:12] == shown(plain)[:12]
    assert ours.untyped_storage().nbytes() == plain.untyped_storage().nbytes() == len(data)
    assert bytes_of(ours, 5000) == bytes_of(plain, 5000) == data
    assert torch.equal(ours, plain)


def test_what_is_no_tensor_or_no_bytes_is_refused(library):
    base = torch.zeros(4)
    for wrong in [(), (base,), (base, "float32", (1,), (1,), 0), (base, torch.int8, [1], [1], 0)]:
        with pytest.raises(TypeError):
            library.laid_over(*wrong)
    for wrong in (None, "text", bytearray(3)):
        with pytest.raises(TypeError):
            library.tensor_of(wrong)
