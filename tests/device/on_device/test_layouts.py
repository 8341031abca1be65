"""Gradients of pictures laid out channels last: their bits are those of the executor's device."""

import pytest
import torch
from torch import nn


def gradients(device, make):
    """What a step leaves of a net's gradients, and of its input's."""
    torch.manual_seed(1)
    x = torch.randn(4, 16, 5, 5).to(memory_format=torch.channels_last)
    x = x.to(device).requires_grad_()
    net = make().to(device)
    for _ in range(3):
        net(x * 1.5).pow(2).sum().backward()
    return [x.grad.cpu(), *(p.grad.cpu() for p in net.parameters())]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GroupNorm(4, 16),
        lambda: nn.GroupNorm(4, 16, affine=False),
        lambda: nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 8, 3)
        ),
        lambda: nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
        lambda: nn.Sequential(nn.Conv2d(16, 16, 3), nn.InstanceNorm2d(16, affine=True)),
    ],
)
def test_norms_of_pictures_have_the_native_gradients(make):
    native, here = gradients("cpu", make), gradients("cuda", make)
    assert [torch.equal(a, b) for a, b in zip(native, here, strict=True)] == [True] * len(native)


def test_a_group_norm_with_weights_on_the_host_is_refused_as_ever():
    x = torch.randn(2, 16, 5, 5).to(memory_format=torch.channels_last).cuda()
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.GroupNorm(4, 16)(x.requires_grad_())
