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


#: vectors of six channels, with gaps between their elements or all in one
APART = {
    "gaps": lambda x: x.repeat_interleave(2).contiguous()[::2],
    "one": lambda x: x[:1].expand(6),
}


def normed(where, lay, which, given, *, training):
    """Batch norm with one vector that lies apart, its gradients, and the statistics after it."""
    torch.manual_seed(2)
    vectors = [torch.rand(6).add(0.5) for _ in range(4)]
    vectors = [each.to(where) for each in vectors]
    vectors[which] = lay(vectors[which]).detach()
    x = given.to(where).requires_grad_()
    if which < 2:
        vectors[which].requires_grad_()
    mean, variance = vectors[2:]
    made = F.batch_norm(x, mean, variance, *vectors[:2], training)
    wanted = [x, vectors[which]] if which < 2 else [x]
    grads = torch.autograd.grad(made.square().sum(), wanted)
    return [each.cpu() for each in (made.detach(), *grads, mean, variance)]


@pytest.mark.parametrize("lay", APART)
@pytest.mark.parametrize(
    ("training", "which"), [(True, 0), (True, 1), (False, 0), (False, 1), (False, 2), (False, 3)]
)
def test_vectors_of_a_batch_norm_may_lie_apart(lay, training, which):
    picture = torch.linspace(-1, 1, 360).sin().view(4, 6, 3, 5)
    for given in (picture, picture.transpose(2, 3), picture[..., 0].contiguous()):
        native = normed("cpu", APART[lay], which, given, training=training)
        for _ in range(3):
            ours = normed("cuda", APART[lay], which, given, training=training)
            assert all(torch.equal(*pair) for pair in zip(native, ours, strict=True))


@pytest.mark.parametrize("lay", APART)
def test_batch_norms_of_channels_in_the_last_place_read_no_vector_by_the_wrong_steps(lay):
    # where natively the kernel of the gradients takes the weight for a contiguous one
    picture = torch.linspace(-1, 1, 360).sin().view(4, 6, 3, 5)
    for given in (picture[:, :, 0, 0], picture.contiguous(memory_format=torch.channels_last)):
        ours = normed("cuda", APART[lay], 0, given, training=True)
        native = normed("cpu", APART[lay], 0, given, training=True)
        dense = normed("cpu", lambda x: APART[lay](x).contiguous(), 0, given, training=True)
        assert torch.equal(ours[0], native[0])
        assert torch.allclose(ours[1], dense[1], atol=1e-5)
        assert torch.allclose(ours[2], dense[2], atol=1e-5)
