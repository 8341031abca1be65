"""Torch's composites on host tensors as CUDA would take them apart: for a process that judges.

Natively such a composite asks its tensors whether they are on CUDA, and none of the host says so.
Within `AsOnCuda` each takes CUDA's branch, written from torch's sources and from nothing that
serves notebooks, whose results it judges; kernels and random numbers are those of `Eagerly`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, pad
from torch.optim import optimizer, swa_utils
from torch.utils import _foreach_utils

from jgpu.broker.executor.devices.onhost.eager import Eagerly
from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator, found_in
from jgpu.broker.executor.devices.onhost.kernels import KERNELS

__all__ = ["AsOnCuda"]

_aten: Any = torch.ops.aten
_has_kernel: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)
_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
#: types of the parameters of a batch norm that cuDNN has, by that of what is normed
_OF_NORM: Final = {
    torch.float32: (torch.float32,),
    torch.float64: (torch.float64,),
    torch.float16: (torch.float32,),
}
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
        branch = _BRANCHES.get(
            func.name().removeprefix("aten::")
        )  # in inference mode it arrives whole
        if branch is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:
            return branch(func, *args, **(kwargs or {}))


def _whole(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's composite in C++; `decompose` would take one in Python, of other bits."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


# -- each composite ------------------------------------------------------------------------------


def _dropout(op: Any, given: Tensor, chance: float, train: bool) -> Tensor:
    if not (train and 0 < chance < 1 and given.numel() and _entered[-1].draws(op, None)):
        made: Tensor = _whole(op, given, chance, train)
        return made
    dropped: Tensor = _aten.native_dropout(given, chance, True)[0]
    return dropped


def _softmax(op: Any, given: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    fused = given.dtype is torch.float16 and dtype is torch.float32
    kernel = getattr(_aten, f"_{op._schema.name[6:]}")
    made: Tensor = kernel(given, dim, True) if fused else _whole(op, given, dim, dtype)
    return made


def _batch_norm(op: Any, given: Tensor, *rest: Any) -> Any:
    weight, bias, mean, var, train, momentum, eps, enabled = rest
    channels = (weight, bias, mean, var)
    suits = (
        enabled
        and given.dim() >= 3
        and given.numel() > 0
        and weight is not None
        and bias is not None
        and (mean is None) == (var is None)
        and (train or mean is not None)
        and given.shape[0] <= (880801 if train else 65535)
        and (weight.dtype in _OF_NORM.get(given.dtype, ()))
    )
    if not suits:
        return _whole(op, given, *rest)
    given = given.contiguous(memory_format=torch._prims_common.suggest_memory_format(given))
    return (*_aten.cudnn_batch_norm(given, *channels, train, momentum, eps), 1)


def _attention(
    op: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
    dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    kernel = _aten._fused_sdp_choice(
        query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa
    )
    if mask is not None and mask.dtype is torch.bool:
        least = -65504.0 if kernel == _CUDNN else -math.inf
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, least)
    graded = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if kernel == _FLASH:
        width = query.shape[-1]
        filled = [pad(each, (0, -width % 8)) if width % 8 else each for each in (query, key, value)]
        scale = 1 / math.sqrt(width) if scale is None else scale
        made = _aten._scaled_dot_product_flash_attention(*filled, dropout, causal, scale=scale)
        return made[0] if width % 8 == 0 else made[0][..., :width]  # type: ignore[no-any-return]
    if kernel == _MATH:
        made = _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=enable_gqa
        )
    elif kernel == _CUDNN:
        made = _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, graded, dropout, causal, scale=scale
        )
    else:
        if mask is not None:
            mask = _in_rows_of_eight(mask).expand(*query.shape[:3], key.shape[2])
        made = _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, graded, dropout, causal, scale=scale
        )
    output: Tensor = made[0]
    return output


def _in_rows_of_eight(mask: Tensor) -> Tensor:
    """In memory whose rows begin at multiples of eight elements."""
    if mask.dim() and mask.stride(-1) == 1 and all(step % 8 == 0 for step in mask.stride()[:-1]):
        return mask
    width = mask.shape[-1]
    return pad(mask, (0, 8 - width % 8))[..., :width]


def _layers(op: Any, *args: Any) -> Any:
    mode = _MODES[op._schema.name[6:]]
    if op._schema.overload_name == "data":
        given, batches, states, weights, biased, layers, dropout, train, both = args
        sizes, batch_first = batches.tolist(), False
    else:
        given, states, weights, biased, layers, dropout, train, both, batch_first = args
        sizes = []
    if not given.numel() or not torch._C._get_cudnn_enabled():
        return _whole(op, *args)
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


def _singular_values(op: Any, given: Tensor, *, driver: str | None = None) -> Tensor:
    """As for any tensor: beneath a mode of dispatch torch would compute the vectors as well."""
    wanted = torch.is_grad_enabled() and given.requires_grad
    made: Tensor = _aten._linalg_svd(given, False, wanted, driver=driver)[1]
    return made


def _eigenvalues(op: Any, given: Tensor, half: str = "L") -> Tensor:
    wanted = torch.is_grad_enabled() and given.requires_grad
    made: Tensor = _aten._linalg_eigh(given, half, wanted)[0]
    return made


def _lstm_cell(op: Any, given: Tensor, states: list[Tensor], *weights: Any) -> Any:
    of_input, of_hidden, *biases = weights
    gates = linear(given, of_input), linear(states[0], of_hidden)
    return _aten._thnn_fused_lstm_cell(*gates, states[1], *biases)[:2]


def _gru_cell(op: Any, given: Tensor, hidden: Tensor, *weights: Any) -> Any:
    of_input, of_hidden, *biases = weights
    gates = linear(given, of_input), linear(hidden, of_hidden)
    return _aten._thnn_fused_gru_cell(*gates, hidden, *biases)[0]


class _RmsNorm(torch.autograd.Function):
    """CUDA's kernel, with its own for the gradient."""

    @staticmethod
    def forward(ctx: Any, given: Any, shape: Any, weight: Any, eps: Any) -> Any:
        made, rstd = KERNELS[_aten._fused_rms_norm.default](given, shape, weight, eps)
        ctx.save_for_backward(given, weight, rstd)
        ctx.shape = shape
        ctx.mark_non_differentiable(rstd)
        return made, rstd

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        given, weight, rstd = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_given, of_weight = KERNELS[_aten._fused_rms_norm_backward.default](
            grad, given, ctx.shape, rstd, weight, wanted
        )
        return of_given, None, of_weight, None


def _rms_norm(op: Any, given: Tensor, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    return _RmsNorm.apply(given, shape, weight, eps)


_BRANCHES: Final[dict[str, Callable[..., Any]]] = {
    "dropout": _dropout,
    "softmax.int": _softmax,
    "log_softmax.int": _softmax,
    "_batch_norm_impl_index": _batch_norm,
    "scaled_dot_product_attention": _attention,
    **{f"{name}.{kind}": _layers for name in _MODES for kind in ("input", "data")},
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "_fused_rms_norm": _rms_norm,
    "linalg_svdvals": _singular_values,
    "linalg_eigvalsh": _eigenvalues,
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
        return branch(op, *args, **kwargs) if _entered else _whole(op, *args, **kwargs)

    return call
