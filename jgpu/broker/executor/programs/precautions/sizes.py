"""How many bytes an op takes whose result's size only the data tell, before it takes them.

The look is a reduction over the data that decide. What it says is what the kernel returns, or a
bound to it; results that are no larger than the arguments stand in `BY_GEOMETRY`. Where a rule
cannot tell, since the arguments do not fit, it says 0: the kernel raises.
"""

from collections.abc import Callable
from math import comb, prod
from typing import Final, TypeAlias

import torch

from jgpu.broker.executor.programs.precautions.language import Attempt

__all__ = ["BY_GEOMETRY", "SIZES", "Rule", "size_rule"]

Rule: TypeAlias = Callable[[Attempt], int]

_INDEX: Final = 8
#: By base name, without the trailing underscore of in-place variants.
SIZES: Final[dict[str, Rule]] = {}
#: Ops that no meta kernel foretells, with results of the order of their arguments' own size.
BY_GEOMETRY: Final = frozenset(
    """
    _dirichlet_grad _fused_adagrad _fused_adam _fused_adamw _fused_sgd _pack_padded_sequence
    _pack_padded_sequence_backward _sample_dirichlet _standard_gamma_grad adaptive_avg_pool2d
    adaptive_avg_pool3d batch_norm_gather_stats batch_norm_gather_stats_with_counts
    batch_norm_stats batch_norm_update_stats binomial geqrf glu_jvp linalg_lstsq meshgrid
    multi_margin_loss_backward multilabel_margin_loss_backward multilabel_margin_loss_forward
    narrow pad searchsorted
    """.split()  # noqa: SIM905 - a name a line would fill a page
)


def size_rule(base: str) -> Rule | None:
    """The rule for ops of this base name."""
    return SIZES.get(base.removesuffix("_"))


def _sized(*bases: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for base in bases:
            assert base not in SIZES, base
            SIZES[base] = rule
        return rule

    return register


def _count(mask: torch.Tensor) -> int:
    return int(mask.count_nonzero())


def _largest(values: torch.Tensor) -> int:
    return int(values.max()) if values.numel() and not values.is_floating_point() else -1


@_sized("nonzero", "argwhere", "nonzero_numpy")
def _places(attempt: Attempt) -> int:
    tensor: torch.Tensor = attempt["self"]
    return _count(tensor) * max(tensor.dim(), 1) * _INDEX


@_sized("where")
def _where(attempt: Attempt) -> int:
    condition: torch.Tensor = attempt["condition"]
    return _count(condition) * max(condition.dim(), 1) * _INDEX


@_sized("masked_select")
def _selected(attempt: Attempt) -> int:
    tensor: torch.Tensor = attempt["self"]
    mask: torch.Tensor = attempt["mask"]
    whole: int = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
    return _count(mask) * (whole // max(mask.numel(), 1)) * tensor.element_size()


@_sized("index")
def _indexed(attempt: Attempt) -> int:
    """A mask stands for as many places as it has ones, in place of all of its dimensions."""
    tensor: torch.Tensor = attempt["self"]
    shapes: list[tuple[int, ...]] = []
    taken = 0
    for index in attempt["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            shapes.append((_count(index),))
            taken += index.dim()
        else:
            shapes.append((tensor.shape[taken],) if index is None else tuple(index.shape))
            taken += 1
    whole = [shape[0] for shape, index in zip(shapes, attempt["indices"], strict=True)
             if index is None]  # fmt: skip
    chosen = [shape for shape, index in zip(shapes, attempt["indices"], strict=True)
              if index is not None]  # fmt: skip
    places: int = torch.broadcast_shapes(*chosen).numel()
    return places * prod(whole) * prod(tensor.shape[taken:]) * tensor.element_size()


@_sized("bincount")
def _bins(attempt: Attempt) -> int:
    least: int = attempt["minlength"]
    return max(_largest(attempt["self"]) + 1, least) * _INDEX


@_sized("one_hot")
def _one_hot(attempt: Attempt) -> int:
    tensor: torch.Tensor = attempt["self"]
    said: int = attempt["num_classes"]
    classes = _largest(tensor) + 1 if said == -1 else said
    return tensor.numel() * max(classes, 0) * _INDEX


@_sized("repeat_interleave")
def _repeated(attempt: Attempt) -> int:
    """An index for each repetition, and with `self` what lies there."""
    repeats = attempt["repeats"]
    if not isinstance(repeats, torch.Tensor):
        return 0  # foretold
    total = float(repeats.sum(dtype=torch.float64))
    if "self" not in attempt:
        return _bytes(total * _INDEX)
    tensor, dim = attempt["self"], attempt["dim"]
    length = tensor.numel() if dim is None else tensor.shape[dim]
    if repeats.numel() == 1:
        total *= length
    each = tensor.numel() // max(length, 1) * tensor.element_size()
    return _bytes(total * (each + _INDEX))


def _bytes(number: float) -> int:
    return int(min(max(number, 0), 1 << 62))


@_sized("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
def _unique(attempt: Attempt) -> int:
    """As if all were different."""
    tensor: torch.Tensor = attempt["self"]
    counts = "return_counts" in attempt and attempt["return_counts"]
    indices = _INDEX * (bool(attempt["return_inverse"]) + bool(counts))
    return tensor.numel() * (tensor.element_size() + indices)


@_sized("histogram", "histogramdd", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts")
def _histogram(attempt: Attempt) -> int:
    points: torch.Tensor = attempt["self"]
    bins: torch.Tensor | int | list[torch.Tensor | int] = attempt["bins"]
    if isinstance(bins, torch.Tensor):
        counts = [bins.numel()]
    elif isinstance(bins, int):
        own = attempt.base == "histogram"
        counts = [bins] * (1 if own or not points.dim() else points.shape[-1])
    else:
        counts = [b.numel() if isinstance(b, torch.Tensor) else b for b in bins]
    edges = sum(count + 1 for count in counts)
    cells = 0 if attempt.base.endswith("edges") else prod(counts)
    return max(cells + edges, 0) * points.element_size()


SIZES["_histogramdd_from_bin_tensors"] = _histogram


@_sized("combinations")
def _combinations(attempt: Attempt) -> int:
    """A grid with a dimension for each member and its mask; then the rows."""
    tensor: torch.Tensor = attempt["self"]
    r: int = attempt["r"]
    count = tensor.numel()
    rows = comb(count + r - 1, r) if attempt["with_replacement"] and count else comb(count, r)
    grid: int = count**r
    return min(grid + rows * r * tensor.element_size(), 1 << 62)


@_sized("range")
def _range(attempt: Attempt) -> int:
    start, end = attempt["start"], attempt["end"]
    step = attempt["step"] if "step" in attempt else 1  # noqa: SIM401 - it has no `get`
    length = float(end - start) / float(step) + 1 if step else 0.0
    return _bytes(length * attempt["out"].element_size()) if length == length else 0


@_sized("triu_indices", "tril_indices")
def _triangle(attempt: Attempt) -> int:
    rows, columns, offset = attempt["row"], attempt["col"], attempt["offset"]
    if attempt.base == "tril_indices":
        count = _below(rows, columns, offset)
    else:
        count = rows * columns - _below(rows, columns, offset - 1)
    return 2 * count * _INDEX


def _below(rows: int, columns: int, offset: int) -> int:
    """Places on and below a diagonal: rows that begin it, rows that it crosses, whole rows."""
    first = min(max(-offset, 0), rows)
    full = min(max(columns - offset - 1, first), rows)
    crossed = full - first
    return crossed * (first + 1 + offset) + crossed * (crossed - 1) // 2 + (rows - full) * columns


@_sized("cov", "corrcoef")
def _covariance(attempt: Attempt) -> int:
    tensor = attempt["self"]
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    return int(rows * rows * 2 * tensor.element_size())


@_sized("_ctc_loss", "ctc_loss")
def _ctc(attempt: Attempt) -> int:
    """A lattice over time and the longest target, with blanks between, and the losses."""
    lengths: torch.Tensor | list[int] = attempt["target_lengths"]
    longest = _largest(lengths) if isinstance(lengths, torch.Tensor) else max(lengths, default=0)
    losses: torch.Tensor = attempt["log_probs"]
    extents: tuple[int, ...] = (*losses.shape[:2], 1, 1)
    time, batch = extents[:2]
    return batch * max(time * (2 * longest + 1) + 1, 0) * losses.element_size()
