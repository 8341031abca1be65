"""`multinomial`, as CUDA samples: by exponential races, or by a search in the summed row."""

from typing import Any

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.asserts import device_assert
from jgpu.broker.executor.devices.onhost.kernels.drawing.fills import FILLS, fill_increment
from jgpu.broker.executor.devices.onhost.kernels.philox import LANES, Philox, uniforms
from jgpu.broker.executor.devices.onhost.kernels.tables import drawing, into

__all__: list[str] = []


def _races(count: int, replacement: bool) -> bool:
    """Whether every category draws once and the fastest are taken."""
    return not replacement or count == 1


def _increment(weights: Tensor, count: int, replacement: bool, *rest: Any) -> int:
    # by a search a thread draws one block for each distribution that it serves, here for one
    return fill_increment(weights) if _races(count, replacement) else LANES


def _outline(weights: Tensor, count: int, replacement: bool, **out: Tensor) -> None:
    """Raise what the op raises of sizes and types, in its own words."""
    generator = torch.Generator()
    torch.multinomial(torch.ones_like(weights), count, replacement, generator=generator, **out)


@drawing("multinomial", increment=_increment)
def _multinomial(
    draw: Philox, weights: Tensor, count: int, replacement: bool, generator: Any
) -> Tensor:
    _outline(weights, count, replacement)
    if not weights.numel():
        return torch.empty((*weights.shape[:-1], count), dtype=torch.int64)
    if _races(count, replacement):
        return _by_races(draw, weights, count)
    return _by_search(draw, weights, count)


def _by_races(draw: Philox, weights: Tensor, count: int) -> Tensor:
    """CUDA reads the smallest and largest weight here and raises on the host if they are wrong."""
    if not bool((weights.max() < torch.inf) & (weights.min() >= 0)):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if bool((weights.sum(-1) == 0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    times = FILLS["exponential_"][0](draw, torch.empty_like(weights), 1.0)
    speeds: Tensor = weights / times
    if count == 1:
        return speeds.argmax(-1, keepdim=True)
    return speeds.topk(count).indices


def _by_search(draw: Philox, weights: Tensor, count: int) -> Tensor:
    rows = weights.to(torch.float32 if weights.dtype is not torch.float64 else torch.float64)
    rows = rows.reshape(-1, weights.shape[-1])
    device_assert(~(rows < 0), "! (val < zero)")
    rows = rows / rows.sum(-1, True)
    summed = rows.cumsum(-1)
    device_assert(summed[:, -1] > 0, "cumdist[size - 1] > 0")
    threads = torch.arange(rows.shape[0] * count).view(-1, count)
    wanted = uniforms(draw.blocks(threads, 0))[..., 0].to(rows.dtype).contiguous()
    found = torch.searchsorted(summed, wanted)
    # past the end, or on a category without weight: the last one before that has some
    places = torch.arange(rows.shape[1]).expand_as(rows)
    before = torch.where(rows > 0, places, 0).cummax(-1).values
    found = before.gather(1, found.clamp_max(rows.shape[1] - 1))
    return found.view(*weights.shape[:-1], count)


@drawing("multinomial.out", increment=_increment)
def _multinomial_out(
    draw: Philox, weights: Tensor, count: int, replacement: bool, generator: Any, out: Tensor
) -> Tensor:
    _outline(weights, count, replacement, out=torch.empty(0, dtype=out.dtype))
    return into(out, _multinomial(draw, weights, count, replacement, generator))
