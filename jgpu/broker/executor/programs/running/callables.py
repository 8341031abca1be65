"""The quickest way to call an op from Python, and the state to call it in.

`torch.ops` matches arguments against the schema at each call; torch's generated Python bindings
parse the same arguments 0.3–0.5 µs faster. Which overload a binding reaches is up to its parser,
so a binding is used only where a trial on meta tensors was seen to reach exactly the op in
question, with exactly the arguments in question.

Torch's bindings have defaults of their own: those of some losses reduce otherwise than their schema
says. So what is left of a call after trimming is part of what was tried, and of the cache's key.

Invariant: a binding that was not seen to be the op, called as it will be called, is not called.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from operator import or_
from threading import Lock
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.programs.checking.arguments import (
    Const,
    Draw,
    Many,
    Node,
    NumberValue,
    Ref,
)
from jgpu.broker.executor.programs.checking.inference import META, scratch
from jgpu.broker.executor.programs.geometry import ViewSpec
from jgpu.broker.executor.programs.plan import PlanStep

__all__ = ["below_autograd", "quickest", "trimmed"]

_KEYS: Final = reduce(
    or_,
    (
        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        for key in (
            "ADInplaceOrView",
            "AutogradCPU",
            "AutogradCUDA",
            "AutogradMeta",
            "AutogradOther",
        )
    ),
)


class below_autograd:  # noqa: N801 - a context manager, named as one reads it
    """Ops in this context go straight to their kernels: no graph, no version counters.

    Grad mode is on all the same, for the few kernels that ask for it (the fused RNN layer makes
    the workspace of its backward only then).
    """

    __slots__ = ("_enabled", "_guard")

    def __enter__(self) -> None:
        self._enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)
        self._guard: Any = torch._C._ExcludeDispatchKeyGuard(_KEYS)
        self._guard.__enter__()

    def __exit__(self, *reason: object) -> None:
        self._guard.__exit__(None, None, None)
        torch._C._set_grad_enabled(self._enabled)


class _Seen(TorchDispatchMode):
    """Notes the one call that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.calls.append((func, args, kwargs or {}))
        raise _Enough


class _Enough(Exception):
    """The trial has seen what it wanted to see."""


_MOST: Final = 8192
#: characters of a key that is kept; longer ones are of lists of many tensors
_LONGEST_KEY: Final = 4096
_LOCK: Final = Lock()
_known: OrderedDict[tuple[Any, ...], Callable[..., Any] | None] = OrderedDict()


def quickest(step: PlanStep, views: Sequence[tuple[ViewSpec, int]]) -> Callable[..., Any]:
    """A callable that is the step's op for the step's arguments, as the compiler writes them."""
    args, named = trimmed(step, [_key_of(node, views) for node in step.bound])
    key = (step.info.name, tuple(args), tuple(named))
    with _LOCK:
        found = _known.get(key, key)
    if found is key:
        found = _find(step, views)
        with _LOCK:
            if len(repr(key)) <= _LONGEST_KEY:
                _known[key] = found
            while len(_known) > _MOST:
                _known.popitem(last=False)
    return found if callable(found) else step.info.call


def _key_of(node: Node, views: Sequence[tuple[ViewSpec, int]]) -> Any:
    """All of an argument that a parser may look at.

    Of a constant that is its value; of a tensor its dtype, and whether it could pass for a number;
    of a run parameter its type, for torch's parsers choose by types and sizes, never by values that
    differ from run to run.
    """
    if isinstance(node, Many):
        return Many, tuple(_key_of(leaf, views) for leaf in node.nodes)
    if isinstance(node, Const):
        return _constant_key(node.value)
    if isinstance(node, Ref):
        spec = views[node.view][0]
        return Ref, spec.dtype, len(spec.shape), prod(spec.shape) == 1
    return (type(node), node.kind, node.dtype) if isinstance(node, NumberValue) else type(node)


def _constant_key(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value), tuple(_constant_key(item) for item in value)
    # NaN is not equal to itself, and -0.0 is equal to 0.0.
    return type(value), repr(value) if isinstance(value, float | complex) else value


def _find(step: PlanStep, views: Sequence[tuple[ViewSpec, int]]) -> Callable[..., Any] | None:
    base = step.info.base
    holders = (torch._C.TensorBase,) if base.endswith("_") else ()
    for holder in (*holders, torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase):
        binding: Callable[..., Any] | None = getattr(holder, base, None)
        if binding is not None and _reaches(binding, step, views):
            return binding
    return None


#: What run parameters and generators are in a trial.
_VALUES: Final = {"float": 0.5, "int": 3, "bool": True, "complex": 1j}


def _reaches(
    binding: Callable[..., Any], step: PlanStep, views: Sequence[tuple[ViewSpec, int]]
) -> bool:
    generator = torch.Generator()

    def fill(node: Node) -> Any:
        if isinstance(node, Ref):
            return scratch(views[node.view][0].geometry, META)
        if isinstance(node, Many):
            return [fill(leaf) for leaf in node.nodes]
        if isinstance(node, NumberValue):
            return _VALUES[node.kind]
        return generator if isinstance(node, Draw) else node.value

    filled = [fill(node) for node in step.bound]
    args, named = trimmed(step, filled)
    try:
        with below_autograd(), _Seen() as seen:
            binding(*args, **dict(named))
    except _Enough:
        func, reached, kwargs = seen.calls[0]
    except Exception:  # it cannot be called so; the overload itself is called then
        return False
    else:
        return False
    if func is not step.info.overload:
        return False
    arrived = {
        **{a.name: a.default for a in step.info.arguments},
        **dict(zip((a.name for a in step.info.arguments), reached, strict=False)),
        **kwargs,
    }
    expected = {a.name: value for a, value in zip(step.info.arguments, filled, strict=True)}
    return all(_equal(arrived[name], value) for name, value in expected.items())


def trimmed(step: PlanStep, values: Sequence[Any]) -> tuple[list[Any], list[tuple[str, Any]]]:
    """Positional and named arguments for a call, trailing defaults left out.

    `values` stand for the bound arguments one by one (texts, tensors, ...).
    """
    positional: list[Any] = []
    named: list[tuple[str, Any]] = []
    given = 0
    for argument, node, value in zip(step.info.arguments, step.bound, values, strict=True):
        default = (
            isinstance(node, Const)
            and not argument.required
            and _same(node.value, argument.default)
        )
        if not argument.kwarg_only:
            positional.append(value)
            given = given if default else len(positional)
        elif not default:
            named.append((argument.name, value))
    return positional[:given], named


def _same(value: Any, default: Any) -> bool:
    return _constant_key(value) == _constant_key(default) and not isinstance(value, list)


def _equal(arrived: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor | torch.Generator):
        if isinstance(expected, torch.Generator):
            return isinstance(arrived, torch.Generator)
        return arrived is expected
    if isinstance(expected, list):
        same = isinstance(arrived, list | tuple) and len(arrived) == len(expected)
        return same and all(_equal(a, e) for a, e in zip(arrived, expected, strict=True))
    return bool(_constant_key(arrived) == _constant_key(expected))
