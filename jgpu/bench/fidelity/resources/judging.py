"""What a call gave, as plain host data, and the judgement of two such: one word and a sentence.

`equal`: the same bits, shapes, dtypes and strides, or the same error. `close`: within the
database's tolerance, or other strides only. `refused`: the shared device said that it cannot.
`wrong`: anything else that was returned. `error`: an error where natively there is none, or none
where there is one.

Natively means on the CPU. What draws is computed there once more where the device draws as CUDA
does: by the kernels that CUDA takes, from the same numbers. So is what raises there: an error in
the words of CUDA's kernels, such as cuDNN's in a backward of an evaluation, is `equal`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from precision import excused, has_halves, typed_as
from told import Told, tell
from torch.testing import assert_close

from jgpu import errors
from jgpu.bench.fidelity.cases import OUTCOMES
from jgpu.broker.executor.devices.onhost.branches import AsOnCuda
from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator
from jgpu.device import current

SEED = 20_250
#: how a program is refused that would read past a tensor's end for its numbers
_REFUSALS = ("may not run here", "random samples should be between 0 and 1")
#: on the device: step by step, compiled, and with small values told before they are asked for
RUNS = 3


class _AsOnCuda(AsOnCuda):
    """Seeded whenever a sample seeds; knows whether anything was drawn."""

    def __init__(self) -> None:
        super().__init__(PhiloxGenerator())
        self.drew = False
        self._seed = -1

    def draws(self, op: Any, generator: torch.Generator | None) -> bool:
        drawn = super().draws(op, generator)
        if drawn and self._seed != torch.initial_seed():
            self._seed = torch.initial_seed()
            self.generator.manual_seed(self._seed)
        self.drew |= drawn
        return drawn


#: what native runs are computed in while one is repeated as on CUDA
_on_cuda: _AsOnCuda | None = None


def as_there(device: str) -> AbstractContextManager[Any]:
    """Around what is the device's on either side, and no preparation of a sample."""
    if device != "cpu" or _on_cuda is None:
        return nullcontext()
    return _on_cuda.all_of_it()


def settle() -> str:
    """Wait until the device has nothing left to tell; what it told of earlier work."""
    late = ""
    for _ in range(20):
        try:
            torch.cuda.synchronize()
        except errors.JgpuError as error:
            late = late or sentence(error)
            continue
        break
    return late


def sentence(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def judge(
    native: Told, device: Told, tolerance: dict[str, float], *, values: bool = True
) -> tuple[str, str]:
    """The word and the sentence; without `values` only shapes, strides and dtypes count."""
    if device.error is not None:
        return _judge_error(native, device.error)
    if native.error is not None:
        return "error", f"natively {sentence(native.error)}"
    if len(native.leaves) != len(device.leaves):
        return "wrong", f"{len(device.leaves)} results, natively {len(native.leaves)}"
    worst = ("equal", "")
    for expected, found in zip(native.leaves, device.leaves, strict=True):
        word, text = _judge_leaf(expected, found, tolerance, values)
        if word == "wrong":
            return word, text
        if word == "close":
            worst = word, text
    return worst


def _judge_error(native: Told, error: Exception) -> tuple[str, str]:
    said = sentence(error)
    if native.error is not None:
        kind = type(native.error)
        alike = isinstance(error, kind) or (
            kind.__name__ == "LinAlgError" and isinstance(error, RuntimeError)
        )
        return ("equal", "") if alike else ("error", f"{said}; natively {sentence(native.error)}")
    if isinstance(error, errors.NotSupported) or any(each in said for each in _REFUSALS):
        return "refused", said
    return "error", said


def _judge_leaf(
    expected: Any, found: Any, tolerance: dict[str, float], values: bool
) -> tuple[str, str]:
    if not (isinstance(expected, tuple) and isinstance(found, tuple)):
        same = type(expected) is type(found) and (
            expected == found or repr(expected) == repr(found) or isinstance(expected, torch.device)
        )
        return ("equal", "") if same else ("wrong", f"{found!r}, natively {expected!r}")
    (want, stride, grad), (have, has_stride, has_grad) = expected, found
    if want.dtype != have.dtype or want.shape != have.shape:
        return "wrong", f"{have.dtype} {tuple(have.shape)}, natively {want.dtype} {(*want.shape,)}"
    if grad != has_grad:
        return "wrong", f"requires_grad {has_grad}, natively {grad}"
    text = ""
    if values and not _same_bits(want, have):
        text = _difference(want, have)
        try:
            assert_close(
                have,
                want,
                rtol=tolerance.get("rtol"),
                atol=tolerance.get("atol"),
                equal_nan=True,
                check_stride=False,
            )
        except AssertionError:
            return "wrong", text
    if want.numel() and _meant(want.shape, stride) != _meant(want.shape, has_stride):
        text = text or f"strides {has_stride}, natively {stride}, shape {tuple(want.shape)}"
    return ("close", text) if text else ("equal", "")


def _meant(shape: Any, stride: Any) -> list[int]:
    """Strides of dimensions that are walked along."""
    return [step for size, step in zip(shape, stride, strict=True) if size > 1]


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0:
        return True
    if a.is_quantized or b.is_quantized:
        return torch.equal(a, b)
    mine, other = (_flat(t).view(torch.uint8) for t in (a, b))
    return torch.equal(mine, other)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements side by side; a view of one element may keep any stride."""
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))


def _difference(want: torch.Tensor, have: torch.Tensor) -> str:
    if want.dtype == torch.bool or not want.dtype.is_floating_point | want.dtype.is_complex:
        other = (want != have).sum().item()
        return f"{other} of {want.numel()} {want.dtype} other"
    wide = torch.complex128 if want.dtype.is_complex else torch.float64
    gap = (want.to(wide) - have.to(wide)).abs()
    return f"{want.dtype} differs by up to {gap.nan_to_num(0).max().item():.3g}"


def _has_cuda_kernels() -> bool:
    session = current.session
    return session is not None and session.used and session.device_facts().has_cuda_kernels


def _as_on_cuda(on_host: Callable[[], Any]) -> tuple[Told, bool]:
    """What a call gives so, and whether it drew."""
    global _on_cuda
    torch.manual_seed(SEED)
    _on_cuda = _AsOnCuda()
    try:
        return tell(on_host), _on_cuda.drew
    finally:
        _on_cuda = None


def compared(
    variant: str,
    on_host: Callable[[], Any],
    on_device: Callable[[], Any],
    tolerance: dict[str, float],
    *,
    values: bool = True,
    wider: Callable[[], Any] | None = None,
) -> Iterator[tuple[str, str, str]]:
    """Run both from the same seeds, natively first, on the device `RUNS` times; judge them all.

    What counts is the worst of the device's runs. Where they differ a second native run tells
    whether native results repeat at all; `wider`, the same natively in double precision, whether
    it is the native result that is far off: element by element, or at its worst where the device's
    bits are those of CUDA's kernels, or are halves, which composites take other ways with on CUDA.
    """
    torch.manual_seed(SEED)
    native = tell(on_host)
    found = []
    for _ in range(RUNS):
        torch.manual_seed(SEED)
        found.append(tell(on_device))
    word, text = _worst(native, found, tolerance, values)
    of_kernels = False
    if word in ("wrong", "error") and _has_cuda_kernels():
        on_cuda, drew = _as_on_cuda(on_host)
        if drew or raises_as_well(on_cuda, found):
            yield variant, *_worst(on_cuda, found, tolerance, values)
            return
        of_kernels = _worst(on_cuda, found, {}, values)[0] == "equal"
        if of_kernels and any(typed := [typed_as(native, told) for told in found]):
            found = [made or told for made, told in zip(typed, found, strict=True)]
            word, text = _worst(native, found, tolerance, values)
            word, text = max(word, "close", key=OUTCOMES.index), text or "CUDA's types are wider"
    if word == "wrong" and wider is not None:
        torch.manual_seed(SEED)
        exact = tell(wider)
        at_worst = of_kernels or (_has_cuda_kernels() and has_halves(native))
        left = [excused(exact, native, told, at_worst=at_worst) for told in found]
        if _worst(native, left, tolerance, values)[0] != "wrong":
            word, text = "close", f"native is no nearer to double precision; {text}"
    if word in ("close", "wrong"):
        torch.manual_seed(SEED)
        if judge(native, tell(on_host), tolerance)[0] != "equal":
            word, text = "close", f"native runs differ among themselves; {text}"
    yield variant, word, text


def raises_as_well(on_cuda: Told, found: list[Told]) -> bool:
    """Whether CUDA's kernels raise, in words that each of the device's errors has."""
    said = str(on_cuda.error or "")
    return bool(said) and all(told.error is not None and said in str(told.error) for told in found)


def _worst(
    native: Told, found: list[Told], tolerance: dict[str, float], values: bool
) -> tuple[str, str]:
    worst = ("equal", "")
    for run, told in enumerate(found, start=1):
        word, text = judge(native, told, tolerance, values=values)
        if OUTCOMES.index(word) > OUTCOMES.index(worst[0]):
            worst = word, text if run == 1 else f"in run {run}: {text}"
    return worst
