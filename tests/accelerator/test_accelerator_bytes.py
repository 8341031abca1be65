"""The bytes of a tensor's storage are the same by the library and by the plain form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jgpu.accelerator.loading import load
from jgpu.broker.executor.memory.hostbytes import bytes_of, quickest, tensor_of

NAMES = ("float32", "float64", "bfloat16", "int64", "int8", "bool", "complex64")
DTYPES = st.sampled_from([getattr(torch, name) for name in NAMES])


@pytest.fixture(scope="module")
def by_library():
    if load() is None:
        pytest.skip("the accelerator is not built here")
    return load().bytes_of


@given(DTYPES, st.integers(0, 40), st.integers(0, 9), st.integers(0, 100))
def test_both_forms_say_the_same_of_any_tensor(by_library, dtype, count, first, most):
    whole = torch.arange(count).to(dtype)
    part = whole[first:][::2]
    expected = bytes_of(whole, most)
    assert (expected is None) == (count * dtype.itemsize > most)
    for tensor in (whole, part, whole[:0]):
        assert by_library(tensor, most) == bytes_of(tensor, most) == expected
    if expected:
        assert torch.equal(torch.frombuffer(bytearray(expected), dtype=dtype), whole)


def test_what_is_not_on_the_host_has_none(by_library):
    elsewhere = torch.empty(1, device="meta")
    assert by_library(elsewhere, 100) is None
    assert bytes_of(elsewhere, 100) is None


def test_what_is_no_tensor_is_refused(by_library):
    for wrong in [(3, 4), (torch.ones(1),), (torch.ones(1), "many")]:
        with pytest.raises(TypeError):
            by_library(*wrong)


def test_the_library_is_used_where_it_is_there(by_library):
    assert quickest(bytes_of) is load().bytes_of
    assert quickest(tensor_of) is load().tensor_of
