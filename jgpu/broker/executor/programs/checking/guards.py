"""Index values that kernels trust, looked at before the kernel runs.

On `cpu` public index ops (`index_select`, `gather`, `embedding`) look for themselves and raise;
backward ops do not: an index past the end makes them write past the end. On `cuda` an index that
is out of range ends the whole context, in public ops as well, so there every index is clamped and
a flag of the session notes the op (reference: CUDA's device-side assertions cannot be survived).
Which arguments are indices, and into how many rows, is said here; contracts say the rest.

Invariant: a guard acts before the op has touched anything.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import torch

from jgpu.broker.executor.programs.kinds import KINDS
from jgpu.wire.program import Geometry

__all__ = ["IndexGuard", "Look", "check_range", "clamped", "guards_of"]


@dataclass(frozen=True, slots=True)
class IndexGuard:
    """Argument `argument` (or its `place`-th tensor) is in [`low`, `high`), or `ignored`.

    `most`: the sum of each row (of lengths) is not larger. `first`, `last`: what stands there.
    `factored`: each row is as a factorization L D L^T leaves its pivots.
    """

    argument: str
    low: int
    high: int
    ignored: int | None = None
    place: int = -1
    most: int | None = None
    first: int | None = None
    last: int | None = None
    factored: bool = False

    @property
    def plain(self) -> bool:
        """Whether its bounds are all that it says."""
        others = self.most is None and self.first is None and self.last is None
        return others and not self.factored


def _outside(index: torch.Tensor, guard: IndexGuard) -> torch.Tensor:
    wrong = (index < guard.low) | (index >= guard.high)
    return wrong if guard.ignored is None else wrong & (index != guard.ignored)


def _wrong(index: torch.Tensor, guard: IndexGuard) -> torch.Tensor:
    wrong = _outside(index, guard)
    for place, value in ((0, guard.first), (-1, guard.last)):
        if value is not None:
            wrong[..., place] |= index[..., place] != value
    if guard.factored:
        return wrong | _unfactored(index)
    if guard.most is None:
        return wrong
    # a row that is too long is wrong as a whole; its sum is one of small numbers
    return wrong | (torch.where(wrong, 0, index).sum(-1, keepdim=True) > guard.most)


def _unfactored(pivots: torch.Tensor) -> torch.Tensor:
    """Where pivots are not those of LAPACK's `sytrf` and `hetrf` with the lower triangle.

    These count from 1. A row is exchanged with itself or a later one; two equal negative pivots
    stand for a block of two rows, of which the second is exchanged with itself or a later one. The
    solver walks by the signs, forwards and backwards, and past the end where a pair is torn.
    """
    pivots = pivots.to(torch.int64)
    own = _own_places(pivots)
    paired = pivots < 0
    negatives = paired.cumsum(-1)
    before = torch.where(paired, 0, negatives).cummax(-1).values
    opens = paired & ((negatives - before) % 2 == 1)
    nothing = pivots.new_zeros((*pivots.shape[:-1], 1))
    after = torch.cat([pivots[..., 1:], nothing], -1)
    torn = torch.where(opens, (after != pivots) | (-pivots <= own), pivots < own)
    closes = paired & ~opens  # looked at together with what opens the pair
    return torn & ~closes


def _own_places(pivots: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)


def check_range(name: str, index: torch.Tensor, guard: IndexGuard) -> None:
    """Raise IndexError where a value is out of the guard's range (waits for the device)."""
    if not index.numel() or index.is_meta:
        return
    low, high = (int(bound) for bound in torch.aminmax(index))
    if low >= guard.low and high < guard.high and guard.plain:
        return
    wrong = _outside(index, guard)
    if bool(wrong.any()):
        value, bounds = int(index[wrong][0]), f"[{guard.low}, {guard.high})"
        raise IndexError(f"{name}: {guard.argument} holds {value}, which is not in {bounds}.")
    if bool(_wrong(index, guard).any()):
        if guard.factored:
            raise IndexError(f"{name}: {guard.argument} are not those of a factorization.")
        if guard.most is None:
            raise IndexError(f"{name}: {guard.argument} begin or end at a wrong place.")
        raise IndexError(f"{name}: {guard.argument} sum up to more than {guard.most}.")


def clamped(
    name: str, index: torch.Tensor, guard: IndexGuard, flag: torch.Tensor | None, op: int
) -> torch.Tensor:
    """The index with values out of range replaced, without waiting for the device.

    `flag` (one integer on the device, 0 at first) keeps 1 + the number of the first op that had
    one; whoever waits for the device next reads it.
    """
    if not index.numel():
        return index
    if guard.high <= guard.low:
        raise IndexError(f"{name}: {guard.argument} looks into nothing.")
    wrong = _wrong(index, guard)
    if flag is not None:
        flag.copy_(torch.where((flag == 0) & wrong.any(), op + 1, flag))
    if guard.factored:  # no row changes its place
        return torch.where(wrong.any(-1, keepdim=True), _own_places(index), index)
    return torch.where(wrong, guard.low, index)


class Look:
    """A call's arguments by name, as the rules below see them: geometries and plain values."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def __contains__(self, name: str) -> bool:
        return isinstance(self._arguments.get(name), Geometry)

    def __getitem__(self, name: str) -> Any:
        """A geometry, a plain value or a list of them; None also for what only a run tells."""
        return self._arguments[name]

    @property
    def names(self) -> Collection[str]:
        """The parameters' names."""
        return self._arguments.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        found = self._arguments.get(name)
        return found.shape if isinstance(found, Geometry) else ()

    def tensors(self, name: str) -> list[Geometry | None]:
        """A list of tensors."""
        found = self._arguments.get(name)
        return found if isinstance(found, list) else []

    def integer(self, name: str) -> int | None:
        """A plain integer, if it is one."""
        found = self._arguments.get(name)
        return found if isinstance(found, int) else None

    def sizes(self, name: str) -> list[int]:
        """A list of integers."""
        found = self._arguments.get(name)
        return found if isinstance(found, list) else []


_Rule: TypeAlias = Callable[[Look], list[IndexGuard]]


def _classes(look: Look) -> list[IndexGuard]:
    shape = look.shape("self")
    classes = (1, *shape)[-1] if len(shape) < 2 else shape[1]
    return [IndexGuard("target", 0, classes, look.integer("ignore_index"))]


def _margins(look: Look) -> list[IndexGuard]:
    return [IndexGuard("target", -1, (1, *look.shape("self"))[-1])]


def _plane(dims: int) -> _Rule:
    """Flat positions within the last `dims` dimensions of `self`."""
    return lambda look: [IndexGuard("indices", 0, prod(look.shape("self")[-dims:]))]


def _unpooled(look: Look) -> list[IndexGuard]:
    return [IndexGuard("indices", 0, prod(look.sizes("output_size")))]


def _rows(look: Look) -> list[IndexGuard]:
    # also where they are padding: counts of rows are taken of all indices
    return [IndexGuard("indices", 0, look.integer("num_weights") or 0)]


def _table(look: Look) -> list[IndexGuard]:
    return [IndexGuard("indices", 0, (look.shape("weight") or (1,))[0])]


def _bags(look: Look) -> list[IndexGuard]:
    """Bags' offsets lie within the indices; what was saved of them within the bags."""
    guards = []
    if "offsets" in look:
        count, offsets = (look.shape("indices") or (0,))[0], look.shape("offsets")
        made = "grad" in look and look.shape("offset2bag") == (0,)  # of offsets, by the kernel
        closed = made and offsets[:1] == ((look.shape("grad") or (0,))[0] + 1,)
        guards.append(
            IndexGuard(
                "offsets", 0, count + 1, first=0 if made else None, last=count if closed else None
            )
        )
    if "grad" in look:
        guards.append(IndexGuard("offset2bag", 0, (look.shape("grad") or (0,))[0]))
        if look.integer("mode") == 2:
            guards.append(IndexGuard("maximum_indices", -1, look.integer("num_weights") or 0))
        guards.extend(_table(look) if "weight" in look else _rows(look))
    return guards


def _forward_bags(look: Look) -> list[IndexGuard]:
    return _bags(look) + _table(look)


def _pivots(look: Look) -> list[IndexGuard]:
    argument = "pivots" if "pivots" in look else "LU_pivots"
    matrix = look.shape("LU") or look.shape("LU_data") or (0, 0)
    return [IndexGuard(argument, 1, matrix[-2] + 1)]


def _factored(look: Look) -> list[IndexGuard]:
    rows = (1, 1, *look.shape("LD"))[-2]
    return [IndexGuard("pivots", -rows, rows + 1, factored=True)]


def _ctc(look: Look) -> list[IndexGuard]:
    return [IndexGuard("targets", 0, look.shape("log_probs")[-1])]


def _segments(look: Look) -> list[IndexGuard]:
    """Lengths of segments, or their bounds, along one dimension of `data`."""
    name = "lengths" if "lengths" in look else "offsets"
    size = (*look.shape("data"), 0)[max(look.integer("axis") or 0, 0)]
    return [IndexGuard(name, 0, size + 1, most=size if name == "lengths" else None)]


def _along(look: Look) -> list[IndexGuard]:
    """Positions along dimension `dim` of `self`."""
    shape, dim = look.shape("self") or (1,), look.integer("dim") or 0
    return [IndexGuard("index", 0, shape[dim] if -len(shape) <= dim < len(shape) else 0)]


def _anywhere(look: Look) -> list[IndexGuard]:
    count = prod(look.shape("self"))
    return [IndexGuard("index", -count, count)]


def _advanced(look: Look) -> list[IndexGuard]:
    """One index tensor a dimension; a mask stands for as many dimensions as it has."""
    shape, guards, dim = look.shape("self"), [], 0
    for place, index in enumerate(look.tensors("indices")):
        if index is not None and index.dtype in ("bool", "uint8"):
            dim += len(index.shape)
            continue
        if index is not None and dim < len(shape):
            guards.append(IndexGuard("indices", -shape[dim], shape[dim], None, place))
        dim += 1
    return guards


#: Ops that trust indices on every device.
_RULES: Final[dict[str, _Rule]] = {
    "nll_loss_backward": _classes,
    "nll_loss2d_backward": _classes,
    "multi_margin_loss_backward": _classes,
    "multilabel_margin_loss_backward": _margins,
    "max_pool2d_with_indices_backward": _plane(2),
    "max_pool3d_with_indices_backward": _plane(3),
    "adaptive_max_pool2d_backward": _plane(2),
    "adaptive_max_pool3d_backward": _plane(3),
    "fractional_max_pool2d_backward": _plane(2),
    "fractional_max_pool3d_backward": _plane(3),
    "embedding_dense_backward": _rows,
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _bags,
    "_embedding_bag_dense_backward": _bags,
    "_embedding_bag_per_sample_weights_backward": _bags,
    "linalg_lu_solve": _pivots,
    "linalg_ldl_solve": _factored,
    "lu_solve": _pivots,
    "lu_unpack": _pivots,
    "_ctc_loss": _ctc,
    "_ctc_loss_backward": _ctc,
    "segment_reduce": _segments,
    "_segment_reduce_backward": _segments,
}
#: Ops that look for themselves on cpu and end the context on cuda.
_ON_CUDA: Final[dict[str, _Rule]] = {
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss"), _classes),
    **dict.fromkeys(("index_select", "gather", "index_add", "index_copy", "index_fill"), _along),
    **dict.fromkeys(("index_reduce", "scatter", "scatter_add", "scatter_reduce"), _along),
    **dict.fromkeys(("take", "put"), _anywhere),
    **dict.fromkeys(("index", "index_put", "_unsafe_index", "_unsafe_index_put"), _advanced),
    "_index_put_impl": _advanced,
    "multilabel_margin_loss_forward": _margins,
    "max_unpool2d": _unpooled,
    "max_unpool3d": _unpooled,
    "embedding": _table,
    "_embedding_bag": _forward_bags,
    "_embedding_bag_forward_only": _forward_bags,
}


def guards_of(base: str, look: Look, device: str) -> tuple[IndexGuard, ...]:
    """What to look at before the op of this base name runs on a device of this kind."""
    base = base.removesuffix("_")
    rule = _RULES.get(base)
    if KINDS[device].has_cuda_kernels:
        rule = _ON_CUDA.get(base, rule)
    return tuple(rule(look)) if rule is not None else ()
