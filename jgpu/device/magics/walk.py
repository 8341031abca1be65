"""From a notebook's names to the tensors that they hold, by way of everything in between.

Breadth first, so that a tensor has the shortest of its names. Goes through containers, modules,
optimizers, functions, generators, errors and people's own objects; not through libraries that hold
none of the device's tensors, Jupyter's own among them. Runs no code of the notebook's: attributes
are read from the objects' dictionaries.
"""

import contextlib
import functools
import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from jgpu.device.magics.reading import (
    attributes_of,
    dictionary_of,
    following_of,
    items_of,
    members_of,
    module_of,
    sequence_of,
)
from jgpu.device.sparse.pattern import Pattern
from jgpu.device.tensor import BufferHandle, DeviceTensor

__all__ = ["FoundStorage", "Walk", "is_closed", "locals_of"]

#: objects after which a walk ends
_MOST_OBJECTS: Final = 200_000
_LONGEST_NAME: Final = 60
_LONGEST_KEY: Final = 30
#: packages whose objects and frames are not looked into
_CLOSED: Final = frozenset({
    "IPython", "PIL", "_asyncio", "asyncio", "concurrent", "debugpy", "ipykernel", "jgpu",
    "logging", "matplotlib", "numpy", "pandas", "scipy", "selectors", "sklearn", "tornado",
    "traitlets", "zmq",
})  # fmt: skip
_ATOMS: Final = (
    types.FrameType,
    bool, bytes, bytearray, complex, float, int, memoryview, str, type(None), type(...),
    types.CodeType, types.BuiltinFunctionType, types.GetSetDescriptorType, torch.device,
    torch.dtype, torch.Generator, torch.Size,
)  # fmt: skip
#: what is of this package and holds storages
_OURS: Final = (BufferHandle, Pattern, torch.UntypedStorage)
#: to a frame's copy of its variables: its own, ours, and that of whoever counts
_REFERENCES: Final = 3
_GENERATORS: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class FoundStorage(NamedTuple):
    """A storage, and a tensor over it or None, by a name."""

    buffer: BufferHandle
    tensor: DeviceTensor | None
    name: str


class Walk:
    """One walk, from whatever roots it is given; what it has seen is not looked into again."""

    def __init__(self, closed: Iterable[object] = ()) -> None:
        #: by id; kept, so that an id is nobody else's meanwhile
        self._seen: dict[int, object] = {id(each): each for each in closed}
        self._waiting: deque[tuple[str, Any]] = deque()
        self._optimizers: list[tuple[str, Any]] = []
        #: by id of a tensor, its first name
        self._tensors: dict[int, str] = {}

    def from_roots(self, roots: Iterable[tuple[str, Any]]) -> Iterator[FoundStorage]:
        """Every storage that the roots hold, once for each tensor over it."""
        self._push(roots)
        while self._waiting or self._optimizers:
            if not self._waiting:  # by now their parameters have names
                optimizers, self._optimizers = self._optimizers, []
                for name, optimizer in optimizers:
                    self._push(self._of_optimizer(optimizer, name))
                continue
            name, value = self._waiting.popleft()
            if issubclass(type(value), DeviceTensor):
                self._tensors[id(value)] = name
                yield FoundStorage(value._b, value, name)
            elif issubclass(type(value), BufferHandle):
                yield FoundStorage(value, None, name)
            elif issubclass(type(value), torch.optim.Optimizer):
                self._optimizers.append((name, value))
                continue
            self._push(_parts_of_any(value, name))

    def _push(self, named: Iterable[tuple[str, Any]]) -> None:
        for name, value in named:
            if id(value) in self._seen or not _is_looked_into(type(value)):
                continue
            if len(self._seen) >= _MOST_OBJECTS:
                return
            self._seen[id(value)] = value
            self._waiting.append((_shortened(name), value))

    def _of_optimizer(self, optimizer: Any, name: str) -> Iterator[tuple[str, Any]]:
        members = dictionary_of(optimizer)
        for number, (param, state) in enumerate(items_of(members.get("state", {}))):
            whose = self._tensors.get(id(param), f"parameter {number} of {name}")
            for key, value in items_of(state) if isinstance(state, dict) else ():
                yield f"{key} of {whose}, in {name}", value
        for key, value in items_of(members):
            if key != "state":
                yield f"{name}.{key}", value


def _is_looked_into(kind: type) -> bool:
    if issubclass(kind, _OURS):
        return True
    return not (issubclass(kind, _ATOMS) or is_closed(module_of(kind)))


def is_closed(module: object) -> bool:
    """Whether what comes from this module is not looked into."""
    return isinstance(module, str) and module.partition(".")[0] in _CLOSED


def locals_of(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    """The variables of a function that may be running; of one that is traced, none.

    Until Python 3.13 a frame keeps the copy of its variables that was asked for, and with it what
    the function itself may have given up; so the copy is emptied, unless the function has it, too.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED or frame.f_trace is not None:
        return
    found = frame.f_locals
    members = items_of(found)
    if isinstance(found, dict) and sys.getrefcount(found) <= _REFERENCES:
        found.clear()
    where = _called(frame.f_code.co_qualname)
    yield from ((f"{name} of {where}", value) for name, value in members)


def _parts_of_any(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The same; of an object that cannot be looked at, as far as it can."""
    with contextlib.suppress(Exception):
        yield from _parts(value, name)


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What a value is made of, with a name for each part."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            gradient, node = value.grad if value.is_leaf else None, value.grad_fn
        yield f"{name}.grad", gradient
        yield f"the graph of {name}", node
        yield from (
            part
            for part in attributes_of(value, name)
            if not issubclass(type(part[1]), BufferHandle)
        )
    elif issubclass(kind, nn.Module):
        yield from _of_module(value, name)
    elif issubclass(kind, dict):
        for key, each in items_of(value):
            plain = type(key) is int or (type(key) is str and len(key) <= _LONGEST_KEY)
            yield f"{name}[{key!r}]" if plain else f"a value in {name}", each
            yield f"a key in {name}", key
    elif (base := sequence_of(kind)) is not None:
        fields = getattr(kind, "_fields", ()) if type(kind) is type else ()
        for number, each in enumerate(members_of(value, base.__iter__)):
            inside = issubclass(kind, set | frozenset)
            field = f".{fields[number]}" if number < len(fields) else f"[{number}]"
            yield f"an element of {name}" if inside else f"{name}{field}", each
        yield from attributes_of(value, name)
    elif issubclass(kind, BaseException | types.TracebackType):
        yield from _of_error(value, name)
    elif (following := following_of(kind)) is not None:
        yield from attributes_of(value, name)  # what a function of people's keeps by itself
        for node, _ in following.__get__(value):
            yield name, node
    elif issubclass(kind, type | types.ModuleType):
        what = "__name__" if issubclass(kind, types.ModuleType) else "__module__"
        if _is_peoples(dictionary_of(value).get(what)):
            yield from attributes_of(value, name)
    else:
        yield from _of_callable(value, name)


def _of_callable(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What a function, a generator or any other object holds."""
    kind = type(value)
    if kind is types.FunctionType:
        for variable, cell in zip(
            value.__code__.co_freevars, value.__closure__ or (), strict=False
        ):
            for content in gc.get_referents(cell):
                yield f"{variable} in the closure of {name}", content
        yield f"a default of {name}", value.__defaults__
        yield f"a default of {name}", value.__kwdefaults__
        yield from attributes_of(value, name)
    elif kind is types.MethodType:
        yield name, value.__self__
        yield name, value.__func__
    elif issubclass(kind, functools.partial):
        yield f"an argument in {name}", (value.func, value.args, value.keywords)
    elif kind in _GENERATORS:
        for each in gc.get_referents(value):
            yield f"a local variable of {name}", each
    else:
        yield from attributes_of(value, name)
        attributes = dictionary_of(value)
        for each in gc.get_referents(value):  # of a container or an iterator that is written in C
            if each is not attributes and not isinstance(each, type | types.ModuleType):
                yield f"inside {name}", each


def _of_module(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    members = dictionary_of(module)
    for group in ("_parameters", "_buffers", "_modules"):
        for key, value in items_of(members.get(group) or {}):
            yield f"{name}[{key}]" if key.isdigit() else f"{name}.{key}", value
    for key, value in items_of(members):
        if key not in ("_parameters", "_buffers", "_modules"):
            yield f"{name}.{key}", value


def _of_error(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The variables of the frames that an error went through, and those of its causes."""
    if isinstance(value, BaseException):
        for part in (value.__traceback__, value.__cause__, value.__context__):
            yield name, part
        yield f"an argument of {name}", value.args
        yield from attributes_of(value, name)
        return
    traceback: types.TracebackType | None = value
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name != "<module>" and not is_closed(frame.f_globals.get("__name__")):
            for variable, each in items_of(frame.f_locals):
                yield f"{variable} of {_called(frame.f_code.co_name)} in {name}", each
        traceback = traceback.tb_next


def _is_peoples(module: object) -> bool:
    """Whether a module was written by whoever works here, and is no library."""
    if module == "__main__":
        return True
    found = sys.modules.get(module) if isinstance(module, str) else None
    file = getattr(found, "__file__", None) or ""
    libraries = (sys.prefix, sys.base_prefix)
    return bool(file) and not file.startswith(libraries) and not is_closed(module)


def _called(name: str) -> str:
    return f"{name.rpartition('.')[2].strip('<>')}()"


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
