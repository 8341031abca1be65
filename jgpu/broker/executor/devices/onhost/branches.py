"""Torch's composites on host tensors as CUDA would take them apart: for a process that judges.

Natively such a composite asks its tensors whether they are on CUDA, and none of the host says so.
Within `AsOnCuda` each takes CUDA's branch, written from torch's sources and from nothing that
serves notebooks, whose results it judges; kernels and random numbers are those of `Eagerly`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import optimizer, swa_utils
from torch.utils import _foreach_utils

from jgpu.broker.executor.devices.onhost.composites import COMPOSITES, whole
from jgpu.broker.executor.devices.onhost.eager import Eagerly
from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator, found_in
from jgpu.broker.executor.programs.lazybits import lazy_bits

__all__ = ["AsOnCuda"]

_aten: Any = torch.ops.aten
_has_kernel: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
#: the contexts that the process is in, the innermost last
_entered: Final[list["AsOnCuda"]] = []
_library: Any = None


class AsOnCuda(Eagerly):
    """What the ops inside return is what a CUDA that computes by the host's kernels returns.

    Random numbers are drawn from `generator` within `drawing`, and from torch's own of the host
    elsewhere, as a program does that makes its data there. From the first use on, the process's
    optimizers step all parameters together, as on CUDA.
    """

    def __init__(self, generator: PhiloxGenerator | None = None) -> None:
        super().__init__(generator)
        self._drawing = False
        #: what cuDNN's dropout between layers draws from, made at its first use
        self.dropout_state: Tensor | None = None
        _install()

    def __enter__(self) -> "AsOnCuda":
        super().__enter__()
        _entered.append(self)
        return self

    def __exit__(self, *raised: Any) -> None:
        _entered.remove(self)
        super().__exit__(*raised)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Random ops inside are the device's."""
        before, self._drawing = self._drawing, True
        try:
            yield
        finally:
            self._drawing = before

    @contextmanager
    def all_of_it(self) -> Iterator[None]:
        """Whatever is inside is the device's: kernels and random numbers."""
        with self, self.drawing():
            yield

    def draws(self, op: Any, generator: torch.Generator | None) -> bool:
        """Within `drawing`, with a generator of the device, or by a kernel that CUDA alone has."""
        if generator is None:
            return self._drawing or not _has_kernel(op.name(), "CPU")
        return found_in([generator]) is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        branch = _BRANCHES.get(func.name().removeprefix("aten::"))
        if branch is None:  # else it is in inference mode, where composites arrive whole
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self, lazy_bits():
            return branch(func, *args, **(kwargs or {}))


# -- each composite ------------------------------------------------------------------------------


def _dropout(op: Any, given: Tensor, chance: float, train: bool) -> Tensor:
    if not (train and 0 < chance < 1 and given.numel() and _entered[-1].draws(op, None)):
        made: Tensor = whole(op, given, chance, train)
        return made
    dropped: Tensor = _aten.native_dropout(given, chance, True)[0]
    return dropped


def _layers(op: Any, *args: Any) -> Any:
    mode = _MODES[op._schema.name[6:]]
    if op._schema.overload_name == "data":
        given, batches, states, weights, biased, layers, dropout, train, both = args
        sizes, batch_first = batches.tolist(), False
    else:
        given, states, weights, biased, layers, dropout, train, both, batch_first = args
        sizes = []
    if not given.numel() or not torch._C._get_cudnn_enabled():
        return whole(op, *args)
    hx, cx = states if mode == _MODES["lstm"] else (states, None)
    hidden = (hx if cx is None else cx).shape[2]
    projected = hx.shape[2] if hx.shape[2] != hidden else 0
    each = (4 if biased else 2) + bool(projected)
    made = _aten._cudnn_rnn(
        given, weights, each, None, hx, cx, mode, hidden, projected, layers, batch_first, dropout,
        train, both, sizes, _state(dropout) if train and dropout else None,
    )  # fmt: skip
    return made[:3] if cx is not None else made[:2]


def _state(dropout: float) -> Tensor:
    """Made once: its seed is drawn as the device's other random numbers are."""
    judge = _entered[-1]
    if judge.dropout_state is None:
        with torch.no_grad():
            seed = int(torch.empty((), dtype=torch.int64).random_())
            judge.dropout_state = _aten._cudnn_init_dropout_state(
                dropout, True, seed, dtype=torch.uint8, device="cpu"
            )
    return judge.dropout_state


_BRANCHES: Final[dict[str, Callable[..., Any]]] = {
    "dropout": _dropout,
    **{f"{name}.{kind}": _layers for name in _MODES for kind in ("input", "data")},
    **COMPOSITES,
}


def _install() -> None:
    """Register the branches, once in a process; outside of a context nothing is changed."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    for name, branch in _BRANCHES.items():
        base, _, overload = name.partition(".")
        op = getattr(getattr(_aten, base), overload or "default")
        _library.impl(name, _branching(op, branch), "AutogradCPU")
    listed = _foreach_utils._get_foreach_kernels_supported_devices
    patched: Any
    for patched in (_foreach_utils, optimizer, swa_utils):
        patched._get_foreach_kernels_supported_devices = lambda: [*listed(), "cpu"]


def _branching(op: Any, branch: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return branch(op, *args, **kwargs) if _entered else whole(op, *args, **kwargs)

    return call
