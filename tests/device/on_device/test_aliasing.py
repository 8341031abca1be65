"""Tensors that share storage behave as natively: growth, `set_`, `.data =`, `out=`, views."""

import os

import pytest
import torch
from aliases import play

#: sequences of the everyday run; more of them by JGPU_SEQUENCES
COUNT = int(os.environ.get("JGPU_SEQUENCES", "120"))


@pytest.mark.timeout(6 * 3600 if COUNT > 1000 else 120)
def test_random_sequences_are_as_natively():
    differing = {seed: told for seed in range(COUNT) if (told := play(seed))}
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
    assert layer.weight._b.id in current.session._tags or not current.session._tags


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
