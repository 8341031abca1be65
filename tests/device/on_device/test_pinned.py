"""Pinned host memory: who says that it is pinned, and that pinning copies, as natively."""

import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.parametrize(
    "make",
    [
        lambda **p: torch.empty(3, **p),
        lambda **p: torch.empty((3,), dtype=torch.uint8, device="cpu", **p),
        lambda **p: torch.empty_strided((2, 3), (1, 2), **p),
        lambda **p: torch.zeros(2, 3, **p),
        lambda **p: torch.full((2,), 1.0, **p),
        lambda **p: torch.tensor([1.0, 2.0], **p),
        lambda **p: torch.arange(4, **p),
        lambda **p: torch.rand(3, **p),
        lambda **p: torch.empty_like(torch.ones(3), **p),
        lambda **p: torch.zeros_like(torch.ones(3, device="cuda"), device="cpu", **p),
        lambda **p: torch.ones(3).new_zeros(2, **p),
        lambda **p: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), check_invariants=True, **p),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are:UserWarning")  # torch 2.11, always
def test_what_is_made_pinned_says_so(make):
    assert make(pin_memory=True).is_pinned()
    assert not make(pin_memory=False).is_pinned()
    assert not make().is_pinned()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, device="cuda", pin_memory=True),
        lambda: torch.zeros_like(torch.ones(3, device="cuda"), pin_memory=True),
    ],
)
def test_device_memory_is_not_made_pinned(make):
    with pytest.raises(RuntimeError, match=r"^Only dense CPU tensors can be pinned$"):
        make()


def test_pinning_copies_and_what_is_pinned_stays():
    x = torch.arange(6.0).view(2, 3).t()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert not x.is_pinned()
    assert pinned.stride() == x.stride()
    pinned.zero_()
    assert x.sum() == 15
    assert pinned.pin_memory() is pinned
    assert pinned[1:].is_pinned()
    assert pinned.untyped_storage().is_pinned()
    assert not pinned.clone().is_pinned()
    assert not pickle.loads(pickle.dumps(pinned)).is_pinned()


def test_storages_and_torchs_own_ops_pin_as_well():
    x = torch.arange(4.0)
    assert x.untyped_storage().pin_memory().is_pinned()
    assert not x.untyped_storage().is_pinned()
    assert torch.ops.aten.pin_memory(x).is_pinned()
    assert torch.ops.aten.is_pinned(x.pin_memory())
    assert not torch.ops.aten.is_pinned(x)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ops.aten.pin_memory(x.cuda())


def test_gradients_pass_through_pinning():
    x = torch.arange(4.0, requires_grad=True)
    (x.pin_memory().cuda() * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 4


def test_a_subclass_stays_one_and_packed_sequences_pin():
    class Named(torch.Tensor):
        pass

    pinned = torch.arange(3.0).as_subclass(Named).pin_memory()
    assert type(pinned) is Named
    assert pinned.is_pinned()
    assert pack_sequence([torch.ones(3), torch.ones(2)]).pin_memory().is_pinned()


def test_a_buffer_that_a_library_fills_in_place_is_uploaded():
    """As libraries that read files do: a pinned tensor, written through its address, then `to`."""
    host = torch.empty(4, dtype=torch.float32, device="cpu", pin_memory=True)
    host.numpy()[:] = [1, 2, 3, 4]
    on_device = host.to("cuda", non_blocking=True)
    host.zero_()
    assert on_device.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_loader_pins_copies_of_what_a_data_set_holds():
    held = torch.zeros(4)
    for (batch,) in DataLoader(TensorDataset(held), batch_size=None, pin_memory=True):
        batch += 1
    assert held.tolist() == [0.0] * 4
