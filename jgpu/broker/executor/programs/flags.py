"""Torch's global switches, as programs carry them.

Switches are global to the process, runs are not: on `cpu` two lanes run in two threads. A gate
therefore lets runs with equal flags pass together and makes others wait until those are through.
Whoever comes behind one that waits waits, too: runs that follow one another would else keep a lane
with other flags out for as long as there are more of them. Where what is inside does not end, those
that agree with it go on after a while.

The pump of a device whose ops run ahead does not wait here: it puts the run aside.

Invariant: no op of a program runs under another program's flags.
"""

import warnings
from collections import deque
from contextlib import suppress
from threading import Condition, Lock, get_ident
from time import monotonic
from typing import Any, Final

import torch

from jgpu.broker.executor.programs.attention_switches import apply_attention
from jgpu.errors import ProgramError
from jgpu.wire.switches import FLOAT32, Flags

__all__ = ["FlagGate", "check_flags", "gate"]


#: seconds for which runs that may come in let one before them that waits for other flags go first
_PATIENCE_S: Final = 2.0

_C: Any = torch._C
_DEFAULT_DTYPES: Final = {
    name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")
}
#: Words that a switch may have, by the field of `Flags`.
_WORDS: Final = {
    "matmul_precision": ("highest", "high", "medium"),
    "default_dtype": tuple(_DEFAULT_DTYPES),
    "blas": ("default", "cublas", "cublaslt", "ck"),
    "linalg": ("default", "cusolver", "magma"),
    "depthwise": ("auto", "cudnn", "native"),
}
#: Precisions of float32: of oneDNN; CUDA has none of bfloat16.
_PRECISIONS: Final = ("none", "ieee", "tf32", "bf16")


def check_flags(flags: Flags) -> None:
    """Raise `ProgramError` for values that torch does not know."""
    for field, words in _WORDS.items():
        word = getattr(flags, field)
        if word not in words:
            raise ProgramError(f"{word!r} can be no {field.replace('_', ' ')}: {', '.join(words)}.")
    if flags.float32 and len(flags.float32) != len(FLOAT32):
        raise ProgramError(f"Precisions of float32 are {len(FLOAT32)}, not {len(flags.float32)}.")
    for (library, _), word in zip(FLOAT32, flags.float32, strict=False):
        if word not in _PRECISIONS or (library, word) == ("cuda", "bf16"):
            raise ProgramError(f"{word!r} can be no precision of float32 for {library}.")
    for half in ("fp16", "bf16"):
        if getattr(flags, f"{half}_reduced_precision") and not getattr(flags, f"{half}_split_k"):
            raise ProgramError(f"Reduced precision of {half} comes with split-k.")
    order = flags.attention_order
    if order and sorted(order) != sorted(_C._get_sdp_priority_order()):
        raise ProgramError("An order of attention's kernels names each of them once.")


class FlagGate:
    """Lets runs through that agree on the flags; sets torch's switches when they change."""

    def __init__(self) -> None:
        # Not by way of the condition, whose own methods are Python's.
        self._lock = Lock()
        self._changed = Condition(self._lock)
        #: a place for each run that waits to come in, oldest first
        self._waiting: deque[_WaitingRun] = deque()
        #: flags that torch's switches have now; None before the first run
        self._current: Flags | None = None
        #: runs that are inside
        self._inside = 0
        #: flags of a run that may not wait here and comes again; others let it pass first
        self._awaited: Flags | None = None
        #: the thread that came in last without waiting
        self._at_once = 0

    def passing(self, flags: Flags) -> "_Passage":
        """A context that holds torch's switches at `flags`; waits for runs that hold others."""
        return _Passage(self, flags)

    def enter(self, flags: Flags) -> None:
        """Come in, alone or with runs of the same flags, behind those that wait already."""
        with self._lock:
            if self._current == flags and not self._waiting and self._awaited is None:
                self._inside += 1  # as nearly always
            elif self._inside and self._has(flags) and get_ident() == self._at_once:
                self._inside += 1  # it is inside, and would wait for itself
            else:
                self._wait_for(flags)

    def _wait_for(self, flags: Flags) -> None:
        place, waiting = _WaitingRun(), self._waiting
        waiting.append(place)
        try:
            while not self._is_due(place, flags):
                agrees = self._inside and not self._is_closed_to(flags)
                self._changed.wait(max(0.0, waiting[0].until - monotonic()) if agrees else None)
            self._come_in(flags)
        finally:
            waiting.remove(place)
            self._changed.notify_all()  # the next one may come in, too

    def _is_due(self, place: "_WaitingRun", flags: Flags) -> bool:
        if self._is_closed_to(flags):
            return False
        first = self._waiting[0]
        return first is place or (self._inside > 0 and monotonic() >= first.until)

    def enter_at_once(self, flags: Flags) -> bool:
        """Come in if nobody inside has other flags; else who comes next lets these pass first.

        For the one thread that may not wait. It may `enter` again, with the same flags, inside.
        """
        with self._lock:
            if self._inside and not self._has(flags):
                self._awaited = flags
                return False
            self._come_in(flags)
            self._at_once = get_ident()
            return True

    def _has(self, flags: Flags) -> bool:
        return self._current is flags or self._current == flags

    def _is_closed_to(self, flags: Flags) -> bool:
        gives_way = self._awaited is not None and self._awaited != flags
        return self._inside > 0 and (gives_way or not self._has(flags))

    def _come_in(self, flags: Flags) -> None:
        if not self._has(flags):
            self._current = None  # until all are set: what raises leaves some of each
            _apply(flags)
            self._current = flags
        # Whoever was awaited and has not come when the gate was empty is not waited for.
        self._awaited = None
        self._inside += 1

    def is_open_to(self, flags: Flags) -> bool:
        """Whether `enter_at_once` would let these pass now."""
        return not self._inside or self._has(flags)

    def leave(self) -> None:
        """Go out; the last one lets others in."""
        with self._lock:
            self._inside -= 1
            if self._waiting and not self._inside:
                self._changed.notify_all()


class _WaitingRun:
    """Of a run that waits to come in."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        #: when those that agree with what is inside wait behind it no longer
        self.until = monotonic() + _PATIENCE_S


class _Passage:
    """One run's time inside the gate (a generator-based context costs a microsecond more)."""

    __slots__ = ("_flags", "_gate")

    def __init__(self, gate: FlagGate, flags: Flags) -> None:
        self._gate = gate
        self._flags = flags

    def __enter__(self) -> None:
        self._gate.enter(self._flags)

    def __exit__(self, *reason: object) -> None:
        self._gate.leave()


def _apply(flags: Flags) -> None:
    """Set torch's switches.

    Two choices of a notebook stay out of the executor, which all notebooks share:

    - `cudnn.benchmark`: cuDNN's plan cache ignores it, so the engine that one user's measurement
      picks would also serve every other user's convolution of that shape, with other bits.
    - `CUBLAS_WORKSPACE_CONFIG`: torch reads it at each product. Set in a running process, torch
      passes cuBLAS the workspace that it allocated before under the new, larger size.
    """
    torch.use_deterministic_algorithms(flags.deterministic, warn_only=flags.deterministic_warn_only)
    _apply_precisions(flags)
    cudnn = torch.backends.cudnn
    cudnn.enabled = flags.cudnn_enabled
    cudnn.deterministic = flags.cudnn_deterministic
    _C._set_mkldnn_enabled(flags.mkldnn_enabled)
    _C._set_mkldnn_deterministic(flags.mkldnn_deterministic)
    _C._set_nnpack_enabled(flags.nnpack_enabled)
    torch.set_default_dtype(_DEFAULT_DTYPES[flags.default_dtype])
    apply_attention(flags)
    _apply_where_known(flags)


def _apply_where_known(flags: Flags) -> None:
    """Set what a version or build of torch may lack, and what warns whenever it is set.

    Where it is refused torch takes what it has, as it says of its preferred libraries.
    """
    values = (
        flags.fp16_accumulation,
        flags.depthwise,
        None if flags.carveout < 0 else flags.carveout,
        flags.cpu_fp16_reduced_precision,
        getattr(_C._BlasBackend, flags.blas.capitalize()),
        getattr(_C._LinalgBackend, flags.linalg.capitalize()),
    )
    before, _Rare.values = _Rare.values, (_UNKNOWN,) * len(values)
    for name, value, last in zip(_Rare.setters, values, before, strict=True):
        setter = getattr(_C, name, None)
        if setter is None or value == last:
            continue
        with suppress(RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            setter(value)
    _Rare.values = values


#: what equals no value: a switch that may or may not have been set
_UNKNOWN: Final = object()


class _Rare:
    """Switches that are set when they change alone."""

    setters: Final = (
        "_set_cublas_allow_fp16_accumulation",
        "_set_cudnn_depthwise_kernel",
        "_set_sm_carveout_experimental",
        "_set_cpu_allow_fp16_reduced_precision_reduction",
        "_set_blas_preferred_backend",
        "_set_linalg_preferred_backend",
    )
    #: what they were set to last; at first torch's own
    values: tuple[Any, ...] = (
        *(False, "auto", None, False),
        *(_C._BlasBackend.Default, _C._LinalgBackend.Default),
    )


def _apply_precisions(flags: Flags) -> None:
    """The older switches first: each sets some precisions, too."""
    torch.set_float32_matmul_precision(flags.matmul_precision)
    torch.backends.cudnn.allow_tf32 = flags.cudnn_tf32
    for half in ("fp16", "bf16"):
        setter = getattr(_C, f"_set_cublas_allow_{half}_reduced_precision_reduction")
        allowed = getattr(flags, f"{half}_reduced_precision")
        setter(*((allowed, getattr(flags, f"{half}_split_k")) if _SPLITS else (allowed,)))
    if flags.float32:
        for (library, kind), precision in zip(FLOAT32, flags.float32, strict=True):
            _C._set_fp32_precision_setter(library, kind, precision)
        return
    for kind in ("conv", "rnn"):  # which no older switch sets
        _C._set_fp32_precision_setter("mkldnn", kind, "none")
    is_tf32 = _C._get_fp32_precision_getter("cuda", "matmul") == "tf32"
    if is_tf32 is not flags.matmul_tf32:
        _C._set_fp32_precision_setter("cuda", "matmul", "tf32" if flags.matmul_tf32 else "ieee")


#: Whether torch's switches of reduced precision say of split-k, too.
_SPLITS: Final = isinstance(_C._get_cublas_allow_fp16_reduced_precision_reduction(), tuple)


#: The process's one gate.
gate = FlagGate()
