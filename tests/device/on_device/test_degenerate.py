"""Sizes of 0, empty lists of dimensions, indices into nothing: as in native PyTorch."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F

EMPTY = [(0,), (0, 3), (3, 0)]
DIMS = [None, (), [], 0, -1, [0, 1], (0, 0), 5]


def outcome(call, device):
    """The error on the line, or values and shapes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = call(device)
        except TypeError:  # what the argument parser refuses never reaches a kernel
            return TypeError
        except (RuntimeError, IndexError) as error:
            kind = IndexError if isinstance(error, IndexError) else RuntimeError
            return kind, str(error).partition("\n")[0]
    made = made if isinstance(made, tuple) else (made,)
    return [(each.shape, each.dtype, repr(each.tolist())) for each in made]


def differing(calls):
    return {
        name: (expected, made)
        for name, call in calls.items()
        if (made := outcome(call, "cuda")) != (expected := outcome(call, "cpu"))
    }


# -- reductions --------------------------------------------------------------------------------

REDUCTIONS = [
    "sum", "nansum", "mean", "nanmean", "amax", "amin", "any", "all", "prod", "std", "var",
    "var_mean", "logsumexp", "norm", "count_nonzero", "median", "nanmedian", "argmax", "argmin",
]  # fmt: skip


def reduced(name, shape, dim, keepdim, device):
    x = (torch.arange(torch.Size(shape).numel()) % 5 + 0.5).reshape(shape).to(device)
    return tuple_of(getattr(torch, name)(x, dim=dim, keepdim=keepdim))


def tuple_of(made):
    return tuple(made) if isinstance(made, tuple) else made


def into(name, shape, dim, out, device):
    x = torch.arange(6.0).reshape(2, 3).to(device)[tuple(map(slice, shape))]
    target = torch.full(out, 7.0, device=device)
    getattr(torch, name)(x, dim=dim, out=target)
    return target


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_take_unusual_dimensions_as_native_ones(name):
    calls = {
        (shape, repr(dim), keepdim): partial(reduced, name, shape, dim, keepdim)
        for shape in [(2, 3), (), *EMPTY]
        for dim in DIMS
        for keepdim in (False, True)
    }
    assert differing(calls) == {}


@pytest.mark.parametrize("name", ["sum", "nansum", "amax", "mean", "prod", "logsumexp"])
def test_reductions_into_a_tensor_take_unusual_dimensions_as_native_ones(name):
    calls = {
        (shape, repr(dim), out): partial(into, name, shape, dim, out)
        for shape in [(2, 3), (0, 3)]
        for dim in ((), [], 0, [0, 1])
        for out in ((), (0,), (2, 3))
    }
    assert differing(calls) == {}


# -- pictures ----------------------------------------------------------------------------------

MODES = {
    1: ("nearest", "nearest-exact", "linear", "area"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    3: ("nearest", "nearest-exact", "trilinear", "area"),
}


def pictures(shape, device):
    return (torch.arange(torch.Size(shape).numel()) % 7).float().reshape(shape).to(device)


def resized(shape, mode, device, **how):
    return F.interpolate(pictures(shape, device), mode=mode, **how)


@pytest.mark.parametrize("dims", MODES)
def test_pictures_are_resized_or_refused_as_natively(dims):
    ways = [{"scale_factor": scale} for scale in (0.1, 0.0, -1.0, 2.0)]
    ways += [{"size": size} for size in ((0,) * dims, (2,) * (dims - 1) + (0,), (-1,) * dims)]
    calls = {
        (mode, base, side, repr(how)): partial(resized, (*base, *(side,) * dims), mode, **how)
        for mode in MODES[dims]
        for base in ((1, 1), (0, 1), (1, 0))
        for side in (4, 0, 1)
        for how in ways
    }
    assert differing(calls) == {}


def test_enlarged_pictures_and_gradients_have_native_values_and_strides():
    for dims, modes in MODES.items():
        for mode in modes[:2]:
            found = []
            for device in ("cpu", "cuda"):
                x = pictures((2, 3, *(3, 5, 4)[:dims]), device)
                if dims == 2:
                    x = x.contiguous(memory_format=torch.channels_last)
                x.requires_grad_()
                made = F.interpolate(x, scale_factor=1.7, mode=mode)
                (made * made.detach()).sum().backward()
                found.append((made.tolist(), made.stride(), x.grad.tolist(), x.grad.stride()))
            assert found[0] == found[1], (dims, mode)


def test_pools_and_samplers_refuse_nothing_as_natively():
    shapes = [(1, 2, 4, 4), (1, 2, 0, 0), (0, 2, 4, 4), (1, 0, 4, 4), (2, 0, 0)]
    calls = {}
    for shape in shapes:
        for size in (0, 2, (2, -1)):
            for pool in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d):
                calls[pool.__name__, shape, size] = (
                    lambda device, pool=pool, shape=shape, size=size: pool(
                        pictures(shape, device), size
                    )
                )
        for grid in ((1, 0, 2, 2), (1, 2, 2, 2)):
            calls["grid_sample", shape, grid] = lambda device, shape=shape, grid=grid: (
                F.grid_sample(pictures(shape, device), pictures(grid, device), align_corners=False)
            )
    assert differing(calls) == {}


# -- indices -----------------------------------------------------------------------------------


def classes_of(values, count, device):
    return F.one_hot(torch.tensor(values, dtype=torch.int64, device=device), count)


@pytest.mark.parametrize(
    ("values", "count"),
    [([-1], -1), ([0, -3], -1), ([0, -3], 0), ([], -1), ([], 0), ([], 3), ([[0, 2]], -1), ([2], 0)],
)
def test_classes_are_counted_as_natively(values, count):
    assert differing({"one_hot": partial(classes_of, values, count)}) == {}


def test_an_index_into_nothing_is_an_error_on_its_line():
    index = torch.tensor([[3]], device="cuda")
    for call in (
        lambda x: x.scatter_(1, index, 1.0),
        lambda x: x.scatter_add_(1, index, torch.ones(1, 1, device="cuda")),
        lambda x: x.scatter(1, index, 1.0),
        lambda x: x.gather(1, index),
    ):
        with pytest.raises(RuntimeError, match="index 3 is out of bounds for dimension 1 with s"):
            call(torch.zeros(1, 0, device="cuda"))
    assert torch.zeros(1, 0, device="cuda").scatter_(1, index[:, :0], 1.0).shape == (1, 0)


# -- convolutions ------------------------------------------------------------------------------


def gradients(sizes, kernel, device):
    given = [torch.ones(each, device=device) for each in (sizes, kernel, kernel[:1])]
    for each in given:
        each.requires_grad_()
    made = F.conv1d(*given)
    made.sum().backward()
    return (made.detach(), *(each.grad for each in given))


def test_a_convolution_of_nothing_has_gradients_as_natively():
    calls = {
        sizes: partial(gradients, sizes, kernel)
        for sizes, kernel in [
            ((0, 4, 6), (5, 4, 3)), ((1, 0, 6), (5, 0, 3)), ((0, 0, 6), (5, 0, 3)),
        ]
    }  # fmt: skip
    assert differing(calls) == {}
