"""The models that the GPU's cases time are what their names say."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F

from jgpu.gpucheck.stand import RESOURCES

SPEC = importlib.util.spec_from_file_location("gpucheck_models", RESOURCES / "models.py")
models = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(models)


def test_the_network_of_residual_blocks_has_the_published_number_of_weights():
    net, examples = models.resnet50()
    # torchvision's resnet50: 25,557,032, of which its 1,000 classes have 2,049,000
    assert sum(each.numel() for each in net[:-1].parameters()) == 23_508_032
    x, y = examples(1)
    assert x.shape == (1, 3, 224, 224)
    assert y.shape == (1,)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_every_other_model_gives_each_example_a_loss_and_each_weight_a_gradient(name):
    net, examples = models.MODELS[name]()
    x, y = examples(2)
    loss = F.cross_entropy(net(x), y)
    assert loss.shape == torch.Size([])
    loss.backward()
    assert all(each.grad is not None for each in net.parameters())
