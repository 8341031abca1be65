"""Which arguments of which ops kernels trust, and what must hold of them.

Of indices: into how many rows. Contracts say of shapes what is to be said, `guards` does the look.
Which of CUDA's kernels trust a value was read in PyTorch's sources (`CUDA_KERNEL_ASSERT` in
`aten/src/ATen/native/cuda`, `_assert_async`, and indices that are not looked at).
"""

from collections.abc import Callable, Collection, Sequence
from itertools import zip_longest
from math import prod
from typing import Any, Final, TypeAlias

from jgpu.broker.executor.programs.checking.guards import (
    CountGuard,
    Guard,
    IndexGuard,
    MassGuard,
    RangeGuard,
)
from jgpu.broker.executor.programs.kinds import KINDS
from jgpu.wire.formulas.shapes import broadcast
from jgpu.wire.program import Geometry

__all__ = ["Look", "guards_of", "is_guarded"]


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


_Rule: TypeAlias = Callable[[Look], Sequence[Guard]]


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


def _advanced(look: Look) -> Sequence[Guard]:
    """One index tensor a dimension; a mask stands for as many dimensions as it has.

    They are broadcast before any of them is looked at: beside an empty one nothing is looked up.
    """
    shape, numbers, masks, dim = look.shape("self"), [], [], 0
    known: list[tuple[int, ...]] = [()]
    for place, index in enumerate(look.tensors("indices")):
        if index is not None and index.dtype in ("bool", "uint8"):
            dim += len(index.shape)
            known += [(0,)] if 0 in index.shape else []
            masks += [place] if index.shape else []  # without dimensions it stands for nothing
            continue
        if index is not None:
            known.append(index.shape)
            if dim < len(shape):
                numbers.append(IndexGuard("indices", -shape[dim], shape[dim], None, place))
        dim += 1
    if 0 in (broadcast(*known) or ()):
        return []
    within = [guard for guard in numbers if guard.high]
    if len(within) == len(numbers) or not masks:
        return numbers
    text = "index is out of bounds for dimension with size 0"  # unless the mask holds no place
    return [*within, CountGuard("indices", 0, text, masks[0], "IndexError")]


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


def _rows_of_self(look: Look) -> Sequence[Guard]:
    return [IndexGuard("indices", 0, (look.shape("self") or (0,))[0])]


def _drawn(look: Look) -> Sequence[Guard]:
    """Probabilities, in `p` where it is given, else in `self`."""
    argument = "p" if "p" in look.names else "self"
    text = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    return [RangeGuard(argument, text, high=1.0)] if argument in look else []


def _rates(look: Look) -> Sequence[Guard]:
    return [RangeGuard("self", "invalid Poisson rate, expected rate to be non-negative")]


def _weights(look: Look) -> Sequence[Guard]:
    return [
        RangeGuard("self", "probability tensor contains either `inf`, `nan` or element < 0"),
        MassGuard("self", "invalid multinomial distribution (sum of probabilities <= 0)"),
    ]


def _crossed(look: Look) -> Sequence[Guard]:
    names = {"self": "input", "target": "target"}
    return [
        RangeGuard(argument, f"all elements of {name} should be between 0 and 1", high=1.0)
        for argument, name in names.items()
    ]


def _regions(look: Look) -> Sequence[Guard]:
    return [RangeGuard("random_samples", "random samples should be between 0 and 1", high=1.0)]


def _scattered(look: Look) -> Sequence[Guard]:
    """A mask stands for as many places as it is expanded to."""
    mask, shape = look.shape("mask"), look.shape("self")
    count = prod(mask)
    fits = all(
        1 in pair or pair[0] == pair[1] for pair in zip(mask[::-1], shape[::-1], strict=False)
    )
    if not count or not fits:  # the op has words for it
        return []
    longest = zip_longest(mask[::-1], shape[::-1], fillvalue=1)
    whole = prod(max(pair) if 0 not in pair else 0 for pair in longest)
    each = max(whole // count, 1)
    text = "Number of elements of source < number of ones in mask"
    return [CountGuard("mask", prod(look.shape("source")) // each, text)]


#: Ops that look for themselves on cpu and end the context on cuda.
_TRUSTING: Final[dict[str, _Rule]] = {
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
    "embedding_renorm": _rows_of_self,
    "multinomial": _weights,
    "bernoulli": _drawn,
    "poisson": _rates,
    "binary_cross_entropy": _crossed,
    "masked_scatter": _scattered,
    "fractional_max_pool2d": _regions,
    "fractional_max_pool3d": _regions,
    "_embedding_bag": _forward_bags,
    "_embedding_bag_forward_only": _forward_bags,
}


def is_guarded(base: str, device: str) -> bool:
    """Whether kernels of this base name trust a value on a device of this kind."""
    base = base.removesuffix("_")
    return base in _RULES or (KINDS[device].trusts_values and base in _TRUSTING)


def guards_of(base: str, look: Look, device: str) -> tuple[Guard, ...]:
    """What to look at before the op of this base name runs on a device of this kind."""
    base = base.removesuffix("_")
    rule = _RULES.get(base)
    if KINDS[device].trusts_values:
        rule = _TRUSTING.get(base, rule)
    return tuple(rule(look)) if rule is not None else ()
