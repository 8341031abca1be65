"""Index values that kernels trust, looked at before the kernel runs.

Public index ops (`index_select`, `gather`, `embedding`) look for themselves on `cpu` and raise.
Backward ops do not: an index past the end makes them write past the end. Which of their arguments
are indices, and into how many rows, is said here; contracts say the rest.

The rule that must not be broken: a guard raises before the op has touched anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

__all__ = ["Guard", "check_range", "guards_of"]

#: Shapes of the op's tensors by name, and its plain arguments by name.
Shapes: TypeAlias = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Guard:
    """Argument `argument` holds values in [`low`, `high`), or `ignored`."""

    argument: str
    low: int
    high: int
    ignored: int | None = None


def check_range(name: str, index: torch.Tensor, guard: Guard) -> None:
    """Raise IndexError where a value is out of the guard's range."""
    if not index.numel() or index.is_meta:
        return
    low, high = (int(bound) for bound in torch.aminmax(index))
    if low >= guard.low and high < guard.high:
        return
    wrong = (index < guard.low) | (index >= guard.high)
    if guard.ignored is not None:
        wrong &= index != guard.ignored
    if bool(wrong.any()):
        value = int(index[wrong][0])
        raise IndexError(
            f"{name}: {guard.argument} holds {value}, which is not in [{guard.low}, {guard.high})."
        )


def _classes(argument: str = "target") -> "_Rule":
    def rule(shapes: Shapes, plain: dict[str, object]) -> list[Guard]:
        shape = shapes["self"]
        classes = (1, *shape)[-1] if len(shape) < 2 else shape[1]
        ignored = plain.get("ignore_index")
        return [Guard(argument, 0, classes, ignored if isinstance(ignored, int) else None)]

    return rule


def _plane(dims: int, low: int = 0) -> "_Rule":
    """Flat positions within the last `dims` dimensions of `self`."""

    def rule(shapes: Shapes, plain: dict[str, object]) -> list[Guard]:
        plane = 1
        for size in shapes["self"][-dims:]:
            plane *= size
        return [Guard("indices", low, plane)]

    return rule


def _rows(argument: str, count: str, ignored: str) -> "_Rule":
    def rule(shapes: Shapes, plain: dict[str, object]) -> list[Guard]:
        rows, skip = plain.get(count), plain.get(ignored)
        high = rows if isinstance(rows, int) else 0
        return [Guard(argument, 0, high, skip if isinstance(skip, int) else None)]

    return rule


def _pivots(shapes: Shapes, plain: dict[str, object]) -> list[Guard]:
    argument = "pivots" if "pivots" in shapes else "LU_pivots"
    matrix = shapes.get("LU", shapes.get("LU_data", (0, 0)))
    return [Guard(argument, 1, matrix[-2] + 1)]


def _margins(shapes: Shapes, plain: dict[str, object]) -> list[Guard]:
    return [Guard("target", -1, shapes["self"][-1] if shapes["self"] else 1)]


def _bags(shapes: Shapes, plain: dict[str, object]) -> list[Guard]:
    """Bags' offsets lie within the indices; what was saved of them within the bags."""
    count = shapes["indices"][0] if shapes["indices"] else 0
    guards = [Guard("offsets", 0, count + 1)] if "offsets" in shapes else []
    if "grad" in shapes:
        guards.append(Guard("offset2bag", 0, shapes["grad"][0]))
        guards.extend(_rows("indices", "num_weights", "padding_idx")(shapes, plain))
    return guards


def _ctc(shapes: Shapes, plain: dict[str, object]) -> list[Guard]:
    return [Guard("targets", 0, shapes["log_probs"][-1])]


_Rule: TypeAlias = Callable[[Shapes, dict[str, object]], list[Guard]]
_RULES: Final[dict[str, _Rule]] = {
    "nll_loss_backward": _classes(),
    "nll_loss2d_backward": _classes(),
    "multi_margin_loss_backward": _classes(),
    "multilabel_margin_loss_backward": _margins,
    "max_pool2d_with_indices_backward": _plane(2),
    "max_pool3d_with_indices_backward": _plane(3),
    "adaptive_max_pool2d_backward": _plane(2),
    "adaptive_max_pool3d_backward": _plane(3),
    "fractional_max_pool2d_backward": _plane(2),
    "fractional_max_pool3d_backward": _plane(3),
    "embedding_dense_backward": _rows("indices", "num_weights", "padding_idx"),
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _bags,
    "_embedding_bag_dense_backward": _bags,
    "linalg_lu_solve": _pivots,
    "lu_solve": _pivots,
    "lu_unpack": _pivots,
    "_ctc_loss": _ctc,
    "_ctc_loss_backward": _ctc,
}


def guards_of(base: str, shapes: Shapes, plain: dict[str, object]) -> tuple[Guard, ...]:
    """What to look at before the op of this base name runs on tensors of these shapes."""
    rule = _RULES.get(base)
    return tuple(rule(shapes, plain)) if rule is not None else ()
