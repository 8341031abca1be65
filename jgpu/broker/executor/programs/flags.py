"""Torch's global switches, as programs carry them.

Switches are global to the process, runs are not: on `cpu` two lanes run in two threads. A gate
therefore lets runs with equal flags pass together and makes others wait until those are through.

The pump of a device whose ops run ahead does not wait here: it puts the run aside.

Invariant: no op of a program runs under another program's flags.
"""

from threading import Condition
from typing import Final

import torch

from jgpu.errors import ProgramError
from jgpu.wire.program import Flags

__all__ = ["FlagGate", "check_flags", "gate"]


_DEFAULT_DTYPES: Final = {
    name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")
}


def check_flags(flags: Flags) -> None:
    """Raise `ProgramError` for values that torch does not know."""
    if flags.matmul_precision not in ("highest", "high", "medium"):
        raise ProgramError(f"Unknown matmul precision {flags.matmul_precision!r}.")
    if flags.default_dtype not in _DEFAULT_DTYPES:
        raise ProgramError(f"{flags.default_dtype!r} can be no default dtype.")


class FlagGate:
    """Lets runs through that agree on the flags; sets torch's switches when they change."""

    def __init__(self) -> None:
        self._changed = Condition()
        #: flags that torch's switches have now; None before the first run
        self._current: Flags | None = None
        #: runs that are inside
        self._inside = 0
        #: flags of a run that may not wait here and comes again; others let it pass first
        self._awaited: Flags | None = None

    def passing(self, flags: Flags) -> "_Passage":
        """A context that holds torch's switches at `flags`; waits for runs that hold others."""
        return _Passage(self, flags)

    def enter(self, flags: Flags) -> None:
        """Come in, alone or with runs of the same flags."""
        with self._changed:
            while self._inside and (not self._has(flags) or self._gives_way(flags)):
                self._changed.wait()
            self._come_in(flags)

    def enter_at_once(self, flags: Flags) -> bool:
        """Come in if nobody inside has other flags; else who comes next lets these pass first.

        For the one thread that may not wait. It may `enter` again, with the same flags, inside.
        """
        with self._changed:
            if self._inside and not self._has(flags):
                self._awaited = flags
                return False
            self._come_in(flags)
            return True

    def _has(self, flags: Flags) -> bool:
        return self._current is flags or self._current == flags

    def _gives_way(self, flags: Flags) -> bool:
        return self._awaited is not None and self._awaited != flags

    def _come_in(self, flags: Flags) -> None:
        if not self._has(flags):
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
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()


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
    torch.use_deterministic_algorithms(flags.deterministic, warn_only=flags.deterministic_warn_only)
    torch.set_float32_matmul_precision(flags.matmul_precision)
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    cuda.allow_fp16_reduced_precision_reduction = flags.fp16_reduced_precision
    cuda.allow_bf16_reduced_precision_reduction = flags.bf16_reduced_precision
    # the precision sets this too; torch reads badly what was set in both ways and differs
    if torch.cuda.is_available() and cuda.allow_tf32 != flags.matmul_tf32:
        cuda.allow_tf32 = flags.matmul_tf32
    cudnn.allow_tf32 = flags.cudnn_tf32
    cudnn.enabled = flags.cudnn_enabled
    cudnn.benchmark = flags.cudnn_benchmark
    cudnn.deterministic = flags.cudnn_deterministic
    torch._C._set_mkldnn_enabled(flags.mkldnn_enabled)
    torch.set_default_dtype(_DEFAULT_DTYPES[flags.default_dtype])


#: The process's one gate.
gate = FlagGate()
