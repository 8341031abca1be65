"""Draws that are tried until one is taken: `poisson`, `binomial`, `_standard_gamma`, Dirichlet's.

Each element is a thread of its own. A launch moves the generator on by a fixed number of tries, so
that no two launches read the same numbers; whoever fails them all, one in more than 10 ** 15, gets
the distribution's mode. All is computed in float64, however wide the elements are.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.asserts import device_assert
from jgpu.broker.executor.devices.onhost.kernels.philox import (
    LANES,
    Philox,
    normals64,
    uniforms64,
)
from jgpu.broker.executor.devices.onhost.kernels.tables import drawing, into

__all__: list[str] = []

_TRIES: Final = 16
#: means from here on are drawn by rejection, those below by adding up probabilities
_SMALL: Final = 10.0
#: more terms than any mean below `_SMALL` needs for 53 bits
_TERMS: Final = 128


def _tried(mode: Tensor, attempt: Callable[[int, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """What the first try that is taken gives each element, or its mode.

    `attempt(turn, elements)` gives what these elements' try makes, and where that is taken.
    """
    found, left = mode.clone(), torch.arange(mode.numel())
    for turn in range(_TRIES):
        if not left.numel():
            break
        made, taken = attempt(turn, left)
        found[left[taken]] = made[taken]
        left = left[~taken]
    return found


def _pair(draw: Philox, threads: Tensor, turn: int) -> tuple[Tensor, Tensor]:
    first, second = uniforms64(draw.blocks(threads, turn)).unbind(-1)
    return first, second


def _counted(uniform: Tensor, none: Tensor, ratio: Any) -> Tensor:
    """The least k whose probabilities up to k add up to `uniform`.

    `none` is the probability of 0, and `ratio(k)` that of k + 1 over that of k.
    """
    found, term = torch.zeros_like(uniform), none.clone()
    left = uniform - term
    for k in range(_TERMS):
        going = left > 0
        if not bool(going.any()):
            break
        term = term * ratio(k)
        found += going
        left = left - term
    return found


# -- Poisson -------------------------------------------------------------------------------------


def _poisson_transformed(draw: Philox, rates: Tensor) -> Tensor:
    """Hoermann, "The transformed rejection method for generating Poisson random variables"
    (1993), algorithm PTRS."""

    def attempt(turn: int, elements: Tensor) -> tuple[Tensor, Tensor]:
        rate = rates[elements]
        width = 0.931 + 2.53 * rate.sqrt()
        a = -0.059 + 0.02483 * width
        inverse = 1.1239 + 1.1328 / (width - 3.4)
        first, second = _pair(draw, elements, 1 + turn)
        first = first - 0.5
        edge = 0.5 - first.abs()
        k = ((2 * a / edge + width) * first + rate + 0.43).floor()
        likely = -rate + k * rate.log() - (k.clamp_min(0) + 1).lgamma()
        taken = second.log() + inverse.log() - (a / (edge * edge) + width).log() <= likely
        taken &= (k >= 0) & ~((edge < 0.013) & (second > edge))
        taken |= (edge >= 0.07) & (second <= 0.9277 - 3.6224 / (width - 2))
        return k, taken

    return _tried(rates.floor(), attempt)


def _poisson_increment(*given: Any) -> int:
    return LANES * (_TRIES + 1) if given[0].numel() else 0


@drawing("poisson", increment=_poisson_increment)
def _poisson(draw: Philox, rates: Tensor, generator: Any) -> Tensor:
    torch.poisson(torch.empty(0, dtype=rates.dtype))  # raises for what is no type of it
    rate = rates.to(torch.float64).flatten()
    device_assert(rate >= 0, "lambda >= 0")
    threads = torch.arange(rate.numel())
    small = _counted(
        _pair(draw, threads, 0)[0], rate.neg().exp(), lambda k: rate.clamp_max(_SMALL) / (k + 1)
    )
    # what is not drawn by rejection is given a mean that is
    large = _poisson_transformed(draw, rate.clamp_min(_SMALL))
    return torch.where(rate < _SMALL, small, large).to(rates.dtype).view(rates.shape)


@drawing("poisson.out", increment=_poisson_increment)
def _poisson_out(draw: Philox, rates: Tensor, generator: Any, out: Tensor) -> Tensor:
    return into(out, _poisson(draw, rates, generator))


# -- binomial ------------------------------------------------------------------------------------


def _binomial_transformed(draw: Philox, counts: Tensor, chances: Tensor) -> Tensor:
    """Hoermann, "The generation of binomial random variates" (1993), algorithm BTRS."""
    modes = ((counts + 1) * chances).floor()

    def attempt(turn: int, elements: Tensor) -> tuple[Tensor, Tensor]:
        count, chance, mode = counts[elements], chances[elements], modes[elements]
        deviation = (count * chance * (1 - chance)).sqrt()
        width = 1.15 + 2.53 * deviation
        a = -0.0873 + 0.0248 * width + 0.01 * chance
        first, second = _pair(draw, elements, 1 + turn)
        first = first - 0.5
        edge = 0.5 - first.abs()
        k = ((2 * a / edge + width) * first + count * chance + 0.5).floor()
        inside = (k >= 0) & (k <= count)
        held = torch.where(inside, k, mode)
        likely = (held - mode) * (chance / (1 - chance)).log()
        likely += (mode + 1).lgamma() + (count - mode + 1).lgamma()
        likely -= (held + 1).lgamma() + (count - held + 1).lgamma()
        alpha = (2.83 + 5.1 / width) * deviation
        taken = (second * alpha / (a / (edge * edge) + width)).log() <= likely
        taken |= (edge >= 0.07) & (second <= 0.92 - 4.2 / width)
        return k, taken & inside

    return _tried(modes, attempt)


def _binomial_increment(count: Tensor, chance: Tensor, *rest: Any) -> int:
    shape = torch.broadcast_shapes(count.shape, chance.shape)
    return LANES * (_TRIES + 1) if shape.numel() else 0


@drawing("binomial", increment=_binomial_increment)
def _binomial(draw: Philox, counts: Tensor, chances: Tensor, generator: Any) -> Tensor:
    torch.binomial(torch.empty(0, dtype=counts.dtype), torch.empty(0, dtype=chances.dtype))
    count, chance = torch.broadcast_tensors(counts, chances)
    shape = count.shape
    count, chance = (each.to(torch.float64).flatten() for each in (count, chance))
    rare = torch.where(chance > 0.5, 1 - chance, chance).clamp(0, 0.5)
    most = count.nan_to_num(0, 0, 0).clamp_min(0)
    few = most * rare < _SMALL
    threads = torch.arange(count.numel())
    some = torch.where(few, most, 0)
    small = _counted(
        _pair(draw, threads, 0)[0],
        (some * (-rare).log1p()).exp(),
        lambda k: (some - k).clamp_min(0) / (k + 1) * (rare / (1 - rare)),
    )
    # what is not drawn by rejection is given parameters that are
    large = _binomial_transformed(draw, torch.where(few, 100.0, most), torch.where(few, 0.5, rare))
    found = torch.where(few, torch.minimum(small, some), large)
    found = torch.where(chance > 0.5, most - found, found)
    unknown = count.isnan() | chance.isnan()
    return found.masked_fill(unknown, torch.nan).to(counts.dtype).view(shape)


@drawing("binomial.out", increment=_binomial_increment)
def _binomial_out(
    draw: Philox, counts: Tensor, chances: Tensor, generator: Any, out: Tensor
) -> Tensor:
    return into(out, _binomial(draw, counts, chances, generator))


# -- gamma ---------------------------------------------------------------------------------------


def _gammas(draw: Philox, alphas: Tensor) -> Tensor:
    """Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), in float64."""
    given = alphas.to(torch.float64).flatten()
    d = torch.where(given < 1, given + 1, given) - 1 / 3

    def attempt(turn: int, elements: Tensor) -> tuple[Tensor, Tensor]:
        normal = normals64(draw.blocks(elements, 1 + 2 * turn))[..., 0]
        uniform, _ = _pair(draw, elements, 2 + 2 * turn)
        at = d[elements]
        v = (1 + normal / (9 * at).sqrt()) ** 3
        likely = 0.5 * normal * normal + at - at * v + at * v.clamp_min(0).log()
        return at * v, (v > 0) & (uniform.log() < likely)

    found = _tried(d, attempt)
    uniform, _ = _pair(draw, torch.arange(given.numel()), 0)
    return torch.where(given < 1, found * uniform ** (1 / given), found).view(alphas.shape)


def _gamma_increment(*given: Any) -> int:
    return LANES * (2 * _TRIES + 1) if given[0].numel() else 0


@drawing("_standard_gamma", increment=_gamma_increment)
def _standard_gamma(draw: Philox, alphas: Tensor, generator: Any) -> Tensor:
    return _gammas(draw, alphas).to(alphas.dtype).clamp_min_(torch.finfo(alphas.dtype).tiny)


@drawing("_standard_gamma.out", increment=_gamma_increment)
def _standard_gamma_out(draw: Philox, alphas: Tensor, generator: Any, out: Tensor) -> Tensor:
    return into(out, _standard_gamma(draw, alphas, generator))


@drawing("_sample_dirichlet", increment=_gamma_increment)
def _dirichlet(draw: Philox, alphas: Tensor, generator: Any) -> Tensor:
    limits = torch.finfo(alphas.dtype)
    found: Tensor = _standard_gamma(draw, alphas, generator)
    return (found / found.sum(-1, True)).clamp_(limits.tiny, 1 - limits.eps)


@drawing("_sample_dirichlet.out", increment=_gamma_increment)
def _dirichlet_out(draw: Philox, alphas: Tensor, generator: Any, out: Tensor) -> Tensor:
    return into(out, _dirichlet(draw, alphas, generator))
