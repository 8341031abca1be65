"""Storages of device tensors, untyped and typed, compared with what host storages do."""

import copy
import io

import pytest
import torch

X = torch.arange(4.0)


def on_device():
    return torch.arange(4.0, device="cuda")


def test_a_storage_is_one_of_torchs():
    d = on_device()
    storage = d.untyped_storage()
    assert isinstance(storage, torch.UntypedStorage)
    assert torch.is_storage(storage)
    assert torch.is_storage(d._typed_storage())
    assert storage is d.view(2, 2).untyped_storage()
    assert storage.device == torch.device("cuda:0")
    assert (len(storage), storage.nbytes(), storage.element_size()) == (16, 16, 1)
    assert storage.type() == "torch.cuda.UntypedStorage"
    assert repr(storage).endswith("[torch.storage.UntypedStorage(device=cuda:0) of size 16]")
    assert storage.share_memory_() is storage


@pytest.mark.parametrize(
    "look",
    [
        lambda t: t.untyped_storage().tolist(),
        lambda t: list(t.untyped_storage()),
        lambda t: t.untyped_storage()[6],
        lambda t: t.untyped_storage().clone().tolist(),
        lambda t: copy.deepcopy(t.untyped_storage()).tolist(),
        lambda t: t.untyped_storage().cpu().tolist(),
        lambda t: t.untyped_storage().float().tolist(),
        lambda t: t.clone().untyped_storage().fill_(3).tolist(),
        lambda t: t.clone().untyped_storage().copy_((X + 1).untyped_storage()).tolist(),
        lambda t: X.clone().untyped_storage().copy_((t + 1).untyped_storage()).tolist(),
        lambda t: t._typed_storage()._size(),
        lambda t: t[1:]._typed_storage().tolist(),
        lambda t: t._typed_storage()._getitem(2),
        lambda t: t.clone()._typed_storage().fill_(5).tolist(),
        lambda t: t._typed_storage().double().tolist(),
        lambda t: t._typed_storage().clone().tolist(),
        lambda t: t._typed_storage().cpu().tolist(),
        lambda t: torch.empty_like(t).set_(t._typed_storage()).tolist(),
        lambda t: torch.empty_like(t).set_(t.untyped_storage(), 1, (2,)).tolist(),
        lambda t: t._typed_storage()._data_ptr() == t.data_ptr(),
    ],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_its_bytes_are_as_natively(look):
    assert look(on_device()) == look(X)


def test_writing_through_a_storage_shows_in_its_tensors():
    d = on_device()
    d.untyped_storage()[6] = 64
    host = X.clone()
    host.untyped_storage()[6] = 64
    assert d.tolist() == host.tolist()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_go_to_the_device_and_back():
    moved = X.untyped_storage().cuda()
    assert moved.is_cuda
    assert moved.cuda() is moved
    assert torch.equal(torch.empty(0).set_(moved.cpu()), X)
    assert torch.equal(torch.empty(0, device="cuda").set_(moved).cpu(), X)
    assert X._typed_storage().cuda().tolist() == X.tolist()
    assert torch.cuda.FloatTensor(moved).tolist() == X.tolist()


def test_a_storage_of_the_other_side_is_no_storage_for_a_tensor():
    for target, source in ((torch.empty(0), on_device()), (torch.empty(0, device="cuda"), X)):
        for storage in (source.untyped_storage(), source._typed_storage()):
            with pytest.raises(RuntimeError, match="Attempted to set the storage of a tensor on"):
                target.set_(storage)


def test_a_part_of_a_storage_is_refused():
    with pytest.raises(RuntimeError, match="slice a tensor over it"):
        on_device().untyped_storage()[2:5]


@pytest.mark.parametrize("name", ["untyped_storage", "_typed_storage"])
def test_a_saved_storage_loads_on_a_machine_without_a_device(name):
    kept = io.BytesIO()
    torch.save(getattr(on_device(), name)(), kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=False, map_location="cpu")
    assert list(loaded) == list(getattr(X, name)())


# -- tensors of storages -----------------------------------------------------------------------

_MADE_OF_STORAGES = {
    "tensor": torch.tensor,
    "tensor with gradient": lambda s: torch.tensor(s, requires_grad=True).detach(),
    "tensor of bytes": lambda s: torch.tensor(s.untyped(), dtype=torch.float32),
    "as_tensor": torch.as_tensor,
    "as_tensor of another type": lambda s: torch.as_tensor(s.untyped(), dtype=torch.int16),
    "asarray": torch.asarray,
    "new_tensor": lambda s: torch.ones(1, device=s.device).new_tensor(s),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", _MADE_OF_STORAGES)
def test_a_constructor_takes_a_storage_and_shares_it_or_not_as_natively(name):
    found = []
    for device in ("cpu", "cuda"):
        storage = torch.arange(4.0, device=device).storage()
        made = _MADE_OF_STORAGES[name](storage)
        before = made.tolist()
        storage.fill_(7)
        found.append((made.dtype, before, made.tolist()))
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_tensor_on_the_host_is_made_of_a_device_storage():
    assert torch.equal(torch.tensor(on_device().storage(), device="cpu"), X)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_of_another_type_is_refused_as_natively():
    with pytest.raises(RuntimeError, match="Expected a Storage of type Long"):
        torch.tensor(on_device().storage(), dtype=torch.int64)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_without_data_is_not_copied_to_the_device():
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
        torch.TypedStorage([1, 2], device="meta", dtype=torch.float32).cuda()
