"""The cache of cast weights follows this torch, whose autocast on the host shows its rules."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

BRAIN, HALF = torch.bfloat16, torch.float16


class Region:
    """A weight of 1, an input of 1, and autocast on one device."""

    def __init__(self, device):
        self.device = device
        self.x = torch.ones(1, 1, device=device)
        self.weight = nn.Parameter(torch.ones(1, 1, device=device))

    def casting(self, dtype=BRAIN, **how):
        return torch.autocast(self.device, dtype=dtype, **how)

    def product(self):
        return self.x @ self.weight

    def change(self, factor=2.0):
        self.weight.data.mul_(factor)


def gradients_then_none(region):
    with region.casting():
        yield region.product()
        region.change()
        with torch.no_grad():
            yield region.product()
        yield region.product()


def no_gradients_then_some(region):
    with region.casting():
        with torch.no_grad():
            yield region.product()
        region.change()
        made = region.product()
        yield made
    made.sum().backward()
    yield region.weight.grad


def inference_then_gradients(region):
    with region.casting():
        with torch.inference_mode():
            yield region.product().item()
        region.change()
        yield region.product()
        region.change()
        with torch.inference_mode():
            yield region.product().item()
        with torch.no_grad():
            yield region.product()


def the_region_that_follows(region):
    with region.casting():
        yield region.product()
    region.change()
    with region.casting():
        yield region.product()


def a_nested_region(region):
    with region.casting():
        with region.casting():
            yield region.product()
        region.change()
        yield region.product()
        with region.casting(enabled=False):
            yield region.product()
        yield region.product()


def a_nested_region_of_another_dtype(region):
    with region.casting():
        yield region.product()
        with region.casting(HALF), pytest.raises(RuntimeError, match="same dtype"):
            region.product()


def a_region_without_a_cache(region):
    with region.casting():
        yield region.product()
        region.change()
        with region.casting(cache_enabled=False):
            yield region.product()
        yield region.product()
    with region.casting(cache_enabled=False):
        region.change()
        yield region.product()
        region.change()
        yield region.product()


def a_cache_that_is_cleared(region):
    with region.casting():
        yield region.product()
        region.change()
        torch.clear_autocast_cache()
        yield region.product()


def a_change_in_place(region):
    with region.casting():
        yield region.product()
        with torch.no_grad():
            region.weight.mul_(2)
        yield region.product()
        yield linear(region.x, region.weight)


def other_data(region):
    with region.casting():
        yield region.product()
        region.weight.data = torch.full((1, 1), 5.0, device=region.device)
        yield region.product()


def a_weight_in_the_place_of_another(region):
    layer = nn.Linear(1, 1, bias=False).to(region.device)
    with region.casting():
        layer.weight = region.weight
        yield layer(region.x)
        region.change()
        layer.weight = nn.Parameter(region.weight.detach().clone())
        yield layer(region.x)
        layer.weight = region.weight
        yield layer(region.x)


def another_dtype_for_a_while(region):
    layer = nn.Linear(1, 1, bias=False).to(region.device)
    layer.weight = region.weight
    with region.casting():
        yield layer(region.x)
        layer.double().float()
        region.change()
        yield layer(region.x)


def gradients_switched_off_for_a_while(region):
    with region.casting():
        yield region.product()
        region.weight.requires_grad_(False).mul_(2)
        yield region.product()
        region.weight.requires_grad_(True)
        yield region.product()


def a_deep_copy(region):
    with region.casting():
        yield region.product()
        copied = copy.deepcopy(region.weight)
        copied.data.mul_(3)
        yield region.x @ copied


def another_thread(region):
    found = []

    def run():
        found.append(region.product())
        with region.casting():
            found.append(region.product())
        found.append(region.product())

    with region.casting():
        yield region.product()
        region.change()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        yield from found
        yield region.product()


def a_transform(region):
    with region.casting():
        yield region.product()
        region.change()
        yield torch.func.grad(lambda weight: (region.x @ weight).square().sum())(region.weight)
        yield region.product()


CASES = [
    gradients_then_none, no_gradients_then_some, inference_then_gradients,
    the_region_that_follows, a_nested_region, a_nested_region_of_another_dtype,
    a_region_without_a_cache, a_cache_that_is_cleared, a_change_in_place, other_data,
    a_weight_in_the_place_of_another, another_dtype_for_a_while,
    gradients_switched_off_for_a_while, a_deep_copy, another_thread, a_transform,
]  # fmt: skip


def shown(made):
    """What is compared: the value, its dtype, and whether it has a graph."""
    if isinstance(made, float):
        return made
    return made.item(), made.dtype, made.requires_grad


@pytest.mark.parametrize("case", CASES)
def test_a_weight_is_cast_when_the_host_casts_it(case):
    found = [shown(made) for made in case(Region("cuda"))]
    assert found == [shown(made) for made in case(Region("cpu"))]
