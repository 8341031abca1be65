"""TorchScript modules: saved from the device and loaded onto it, as on a CUDA machine."""

import io

import pytest
import torch
from torch import nn

from jgpu.errors import NotSupported

# of TorchScript itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = torch.linspace(-1, 1, 6).view(2, 3)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU()).eval()


WAYS = {
    "scripted": torch.jit.script,
    "traced": lambda module: torch.jit.trace(module, example(module)),
}


def example(module):
    return X.to(next(module.parameters()).device)


def devices(module):
    return {each.device.type for each in (*module.parameters(), *module.buffers())}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_on_the_device_is_saved_with_its_values_and_its_place(way, tmp_path):
    expected = net()(X)
    module = WAYS[way](net().cuda())
    path = tmp_path / "module.pt"
    module.save(path)
    file = io.BytesIO(b"before")
    file.seek(6)
    torch.jit.save(module, file)
    for given in (path, file):
        for wanted, place in ((None, "cuda"), ("cuda:0", "cuda"), ("cpu", "cpu")):
            if given is file:
                file.seek(6)
            loaded = torch.jit.load(given, map_location=wanted)
            assert devices(loaded) == {place}
            assert torch.equal(loaded(X.to(place)).cpu(), expected)


@pytest.mark.parametrize("wanted", ["cuda", torch.device("cuda")])
def test_a_module_saved_on_the_host_is_loaded_onto_the_device(wanted, tmp_path):
    path = str(tmp_path / "module.pt")
    torch.jit.script(net()).save(path)
    loaded = torch.jit.load(path, map_location=wanted)
    assert devices(loaded) == {"cuda"}
    weight = next(loaded.parameters())
    assert torch.equal(weight.cpu(), net()[0].weight)
    loaded(X.cuda()).sum().backward()
    assert weight.grad is not None
    assert devices(torch.jit.load(path)) == {"cpu"}


def test_constants_on_the_device_are_refused_in_a_sentence():
    given = torch.ones(3, device="cuda")
    module = torch.jit.trace(lambda x: x + given, torch.ones(3, device="cuda"))
    with pytest.raises(NotSupported, match=r"module\.cpu\(\)"):
        module.save_to_buffer()
