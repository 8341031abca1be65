"""Values that CUDA's kernels trust, and that are wrong: an error each, and the process goes on.

    python values.py shared WHICH

By name: the error's classes, whether its text has the op's line, and whether other tensors stayed.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import place
import torch
import torch.nn.functional as F
from torch import Tensor


def bad(value: int, *shape: int) -> Tensor:
    """Indices that are wrong, and not known before the device has them."""
    half = torch.full(shape or (3,), value // 2, device="cuda")
    return half + (value - value // 2)


def real(value: float, *shape: int) -> Tensor:
    """Numbers that are wrong, likewise."""
    return torch.full(shape or (3,), value, device="cuda") * 1.0


def grown(*shape: int) -> Tensor:
    """A tensor with gradients."""
    return torch.ones(*shape, device="cuda", requires_grad=True)


def backward(loss: Tensor, *leaves: Tensor) -> Tensor:
    """The sum of the gradients."""
    loss.sum().backward()
    return torch.stack([leaf.grad.sum() for leaf in leaves if leaf.grad is not None]).sum()


def set_by_index() -> Tensor:
    """An assignment."""
    x = torch.zeros(5, device="cuda")
    x[bad(5)] = 1.0
    return x


def renormed() -> Tensor:
    """An embedding that writes to its own weights."""
    return F.embedding(bad(7), torch.randn(5, 2, device="cuda"), max_norm=1.0)


def through_gather() -> Tensor:
    """A gradient that is scattered."""
    x = grown(5)
    return backward(x.gather(0, bad(6)), x)


def through_embedding() -> Tensor:
    """A gradient that is added to rows."""
    x = grown(5, 2)
    return backward(F.embedding(bad(5), x), x)


def through_cross_entropy() -> Tensor:
    """A gradient of logits."""
    x = grown(3, 4)
    return backward(F.cross_entropy(x, bad(4)), x)


def dense_backward() -> Tensor:
    """The op that autograd calls, by itself."""
    made: Tensor = torch.ops.aten.embedding_dense_backward(real(1.0, 3, 2), bad(5), 5, -1, False)
    return made


def zeros(*shape: int) -> Tensor:
    """Something to index."""
    return torch.zeros(*shape, device="cuda")


Wrong = Callable[[], Tensor]

INDICES: dict[str, Wrong] = {
    "cross_entropy": lambda: F.cross_entropy(zeros(3, 4), bad(4)),
    "cross_entropy of classes at each place": lambda: F.cross_entropy(zeros(2, 4, 3), bad(9, 2, 3)),
    "nll_loss": lambda: F.nll_loss(zeros(3, 4), bad(-1)),
    "embedding": lambda: F.embedding(bad(9), zeros(5, 2)),
    "embedding with max_norm": renormed,
    "embedding_bag": lambda: F.embedding_bag(bad(9, 2, 3), zeros(5, 2)),
    "x[index]": lambda: zeros(5)[bad(6)],
    "x[index] = 1": set_by_index,
    "index_select": lambda: zeros(5).index_select(0, bad(5)),
    "index_add": lambda: zeros(5).index_add(0, bad(5), real(1.0)),
    "index_copy": lambda: zeros(5).index_copy(0, bad(5), real(1.0)),
    "index_fill": lambda: zeros(5).index_fill(0, bad(5), 1.0),
    "gather": lambda: zeros(5).gather(0, bad(-1)),
    "scatter": lambda: zeros(5).scatter(0, bad(5), real(1.0)),
    "scatter_add": lambda: zeros(5).scatter_add(0, bad(5), real(1.0)),
    "scatter_reduce": lambda: zeros(5).scatter_reduce(0, bad(5), real(1.0), "amax"),
    "take": lambda: zeros(5).take(bad(5)),
    "put": lambda: zeros(5).put(bad(5), real(1.0)),
    "one_hot": lambda: F.one_hot(bad(5), 4),
    "multi_margin_loss": lambda: F.multi_margin_loss(zeros(3, 4), bad(4)),
    "max_unpool1d": lambda: F.max_unpool1d(zeros(1, 1, 3), bad(60, 1, 1, 3), [2]),
    "gather, backward": through_gather,
    "embedding, backward": through_embedding,
    "cross_entropy, backward": through_cross_entropy,
    "embedding_dense_backward": dense_backward,
}
ASSERTED: dict[str, Wrong] = {
    "multinomial of NaN": lambda: torch.multinomial(real(float("nan")), 1),
    "multinomial of negative numbers": lambda: torch.multinomial(real(-1.0), 1),
    "multinomial of nothing": lambda: torch.multinomial(real(0.0), 1),
    "bernoulli of 2": lambda: torch.bernoulli(real(2.0)),
    "poisson of -1": lambda: torch.poisson(real(-1.0)),
    "binary_cross_entropy of 2": lambda: F.binary_cross_entropy(real(2.0), real(1.0)),
    "masked_scatter of too little": lambda: zeros(5).masked_scatter(real(1.0, 5) > 0, real(1.0, 2)),
    "normal with a negative deviation": lambda: torch.normal(real(0.0), real(-1.0)),
    "repeat_interleave of -1": lambda: zeros(3).repeat_interleave(bad(-1)),
    "inverse of zeros": lambda: torch.linalg.inv(zeros(3, 3)),
    "cholesky of zeros": lambda: torch.linalg.cholesky(zeros(3, 3)),
    "solve by zeros": lambda: torch.linalg.solve(zeros(3, 3), real(1.0, 3, 1)),
}
WHICH = {"indices": INDICES, "asserted": ASSERTED}


# The loop stands here because an error names the line of the program that everything began at.
if __name__ == "__main__":
    _, how, which = sys.argv
    torch.set_num_threads(1)
    with place.computing(how) as device:
        kept, found = torch.arange(6.0, device=device), {}
        for name, wrong in WHICH[which].items():
            told: dict[str, Any] = {"errors": [], "text": "", "here": False}
            try:
                wrong().sum().item()
            except Exception as error:
                told["errors"] = [each.__name__ for each in type(error).__mro__]
                told["text"] = str(error)[:300]
                at_once = "on the shared device" not in str(error)
                told["here"] = at_once or "wrong().sum().item()" in str(error)
            try:
                told["kept"] = kept.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
            except Exception as error:
                told["kept"] = f"{type(error).__name__}: {error}"[:200]
            found[name] = told
    print(json.dumps(found))
