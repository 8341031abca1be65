"""Calls the form with `out` of every op that PyTorch's database reaches, into larger tensors.

    python outs_sweep.py

Prints as JSON how many such forms were called, and those that wrote beside their window although
the executor's precautions stood before them. A window has gaps, another order of dimensions, or
both. Forms of CUDA alone are not covered.
"""

import itertools
import json
import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from jgpu.broker.executor.programs.checking.ops import resolve
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.broker.executor.programs.precautions import precaution_of
from jgpu.errors import ProgramError

FILL = 77
SAMPLES, CALLS_PER_OP, LARGEST = 8, 5, 400


class Outs(TorchDispatchMode):
    """Calls the form with `out` of each op that passes by, in windows of a larger tensor."""

    def __init__(self):
        super().__init__()
        self.calls, self.strays = {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        overload = with_out(func) if func.namespace == "aten" else None
        if overload is not None:
            self.tried(overload, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def tried(self, overload, func, args, kwargs):
        calls = self.calls.setdefault(overload.name(), set())
        key = repr([geometry_of(x) if isinstance(x, torch.Tensor) else x for x in args])
        if key in calls or len(calls) >= CALLS_PER_OP:
            return
        calls.add(key)
        plain = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), args)
        made = func(*plain, **kwargs)
        made = made if isinstance(made, tuple) else (made,)
        if not all(isinstance(x, torch.Tensor) and x.numel() <= LARGEST for x in made):
            return
        for pattern in range(3):
            self.in_windows(overload, plain, kwargs, made, pattern)

    def in_windows(self, overload, args, kwargs, made, pattern):
        try:
            info = resolve(overload.name(), "cpu")
        except ProgramError:
            return
        names = [a.name for a in info.arguments if a.kwarg_only and a.written]
        if len(names) != len(made):
            return
        windows = [Window(x, pattern) for x in made]
        given = kwargs | dict(zip(names, (w.out for w in windows), strict=True))
        shown = dict(zip((a.name for a in info.arguments), args, strict=False)) | given
        look = Look(
            {k: geometry_of(x) if isinstance(x, torch.Tensor) else x for k, x in shown.items()}
        )
        call = precaution_of(info, look, "cpu") or info.call
        try:
            call(*tree_map_only(torch.Tensor, torch.clone, args), **given)
        except (RuntimeError, IndexError, NotImplementedError, TypeError):
            return
        if any(w.stray() for w in windows):
            self.strays.setdefault(overload.name(), (windows[0].shape, windows[0].strides))


class Window:
    """An `out` in the midst of a larger tensor: gaps, another order of dimensions, or both."""

    def __init__(self, like, pattern):
        self.shape = tuple(like.shape)
        order = range(like.dim()) if pattern else reversed(range(like.dim()))
        gap = 2 - pattern % 2
        strides, step = [0] * like.dim(), gap
        for k in order:
            strides[k] = step
            step *= max(self.shape[k], 1) * gap
        self.strides = tuple(strides)
        pad = 2 * step + 4 * LARGEST
        self.whole = torch.full((2 * pad + step,), 1 if like.dtype is torch.bool else FILL)
        self.whole = self.whole.to(like.dtype)
        self.before = self.whole.clone()
        self.out = self.whole[pad:].as_strided(self.shape, self.strides)
        self.own = torch.zeros(self.whole.shape, dtype=torch.bool)
        self.own[pad:].as_strided(self.shape, self.strides).fill_(True)

    def stray(self):
        """Whether anything beside it was written; not if torch has laid it out anew meanwhile."""
        moved = self.out.shape != self.shape or self.out.stride() != self.strides
        moved |= not self.shape
        return not moved and bool((self.whole != self.before)[~self.own].any())


def with_out(func):
    """The overload that writes what `func` returns, if the CPU has a kernel for it."""
    inputs = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        outs = [a for a in other._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if outs and rest == inputs and not any("List" in str(a.type) for a in outs):
            kernel = torch._C._dispatch_has_kernel_for_dispatch_key(other.name(), "CPU")
            return other if kernel else None
    return None


def differentiate(made):
    found = made if isinstance(made, (tuple, list)) else [made]
    outs = [x for x in found if isinstance(x, torch.Tensor) and x.requires_grad]
    if outs:
        torch.autograd.backward(outs, [torch.ones_like(x) for x in outs])


def main():
    """Go through all; what was found."""
    torch.set_num_threads(1)
    outs = Outs()
    warnings.simplefilter("ignore")
    for op in op_db:
        if torch.float32 not in op.dtypes:
            continue
        samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        for sample in itertools.islice(samples, SAMPLES):
            try:
                with outs:
                    differentiate(op(sample.input, *sample.args, **sample.kwargs))
            except Exception:  # samples of errors, and of what only CUDA has
                continue
    json.dump({"forms": len(outs.calls), "strays": outs.strays}, sys.stdout)


if __name__ == "__main__":
    main()
