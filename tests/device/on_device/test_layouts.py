"""Gradients of pictures laid out channels last: their bits are those of the executor's device."""

import pytest
import torch
import torch.nn.functional as F
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


def pictures(device):
    return torch.linspace(-1, 1, 2 * 4 * 6 * 6, device=device).view(2, 6, 6, 4).permute(0, 3, 1, 2)


def volumes(device):
    return torch.linspace(-1, 1, 2 * 64, device=device).view(1, 4, 4, 4, 2).permute(0, 4, 1, 2, 3)


def one(x):
    return torch.ones((), device=x.device).expand(x.shape)


#: ops whose results natively lie as what is given lies, which their meta kernels do not know
KEEP = {
    "reflection": lambda d: F.pad(pictures(d), (1, 1, 1, 1), mode="reflect"),
    "reflected volumes": lambda d: F.pad(volumes(d), (1,) * 6, mode="reflect"),
    "replicated volumes": lambda d: F.pad(volumes(d), (1,) * 6, mode="replicate"),
    "maxima": lambda d: F.max_pool3d(volumes(d), 2),
    "logaddexp": lambda d: torch.logaddexp(one(pictures(d)), pictures(d)),
    "xlogy": lambda d: torch.xlogy(one(pictures(d)), pictures(d)),
    "xlog1py": lambda d: torch.special.xlog1py(one(pictures(d)), pictures(d)),
    "logical_and": lambda d: torch.logical_and(one(pictures(d)), pictures(d)),
    "heaviside": lambda d: torch.heaviside(one(pictures(d)), pictures(d)),
}


@pytest.mark.parametrize("name", KEEP)
def test_results_lie_as_natively_from_the_first_call_on(name):
    expected = KEEP[name]("cpu")
    for _ in range(3):
        found = KEEP[name]("cuda")
        assert (found.shape, found.stride()) == (expected.shape, expected.stride())
        assert torch.equal(found.cpu(), expected) or torch.isnan(expected).any()


@pytest.mark.parametrize(
    "name", ["reflection", "reflected volumes", "replicated volumes", "maxima"]
)
def test_gradients_lie_as_natively_from_the_first_call_on(name):
    def strides(device):
        make = pictures if name == "reflection" else volumes
        x = make(device).clone(memory_format=torch.preserve_format).requires_grad_()
        pad = {"reflection": (4, "reflect"), "reflected volumes": (6, "reflect")}
        count, mode = pad.get(name, (6, "replicate"))
        y = F.max_pool3d(x, 2) if name == "maxima" else F.pad(x, (1,) * count, mode=mode)
        (grad,) = torch.autograd.grad((y * y).sum(), x)
        return grad.stride()

    assert [strides("cuda") for _ in range(3)] == [strides("cpu")] * 3
