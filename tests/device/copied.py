"""Objects that hold tensors, copied and pickled in every way, described as plain data.

    python copied.py OUT

writes the description of each copy on the host as a pickled dict by (object, operation). A
description holds values, types, flags, attributes, gradients, hooks, and which tensors are the same
object or share memory, before and after a write into the copy. It names no device and no address,
so descriptions of two devices are equal where the copies are.
"""

import copy
import dataclasses
import io
import pickle
import re
import sys
import types
import warnings
import weakref
from pathlib import Path

import torch
from copied_objects import OBJECTS
from torch import nn

#: how this package marks a parameter and keeps the parts of tensors, without the accelerator
_HIDDEN = {"_is_param", "_b", "_g", "_o", "_i", "_v", "_c", "_p"}


def _numbers(generator):
    return torch.rand(3, generator=generator, device=generator.device).tolist()


#: the part of a description that has a generator's state
drawn = _numbers


def draws_before(generator):
    """How often a generator drew before: for devices that draw different numbers."""
    numbers = _numbers(generator)
    for first in ([], [5]):
        fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
        for count in first:
            torch.rand(count, generator=fresh, device=fresh.device)
        for times in range(20):
            if _numbers(fresh) == numbers:
                return len(first) + times
    raise AssertionError(f"no numbers of seed {generator.initial_seed()}: {numbers}")


class Description:
    """Plain data of a graph of objects; `walk` adds one root at a time."""

    def __init__(self, device):
        self.device = device
        self.seen = {}
        #: types of the devices of all tensors and storages that were met
        self.places = set()
        self.storages = {}
        self.kept = []
        #: every strided tensor that was met, for writing
        self.tensors = []

    def walk(self, value):
        """The value as plain data; an object met before is given by its number."""
        if isinstance(value, str):
            return "device" if value == self.device else value
        if value is None or isinstance(value, bool | int | bytes | complex):
            return value
        if isinstance(value, float):
            return value.hex()
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, torch.SymInt):
            return "symbol"
        if isinstance(value, torch.dtype | torch.layout | torch.Size | torch.memory_format):
            return str(value)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return "named", value.__qualname__
        if id(value) in self.seen:
            return "again", self.seen[id(value)]
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        return self._fresh(value)

    def _fresh(self, value):
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.TypedStorage):
            return "typed storage", str(value.dtype), self.walk(value._untyped_storage)
        if isinstance(value, torch.UntypedStorage):
            self.places.add(value.device.type)
            return "storage", value.tolist(), self._storage(value)
        if isinstance(value, torch._C.Generator):
            self.places.add(value.device.type)
            return "generator", value.initial_seed(), drawn(value)
        if isinstance(value, dict | types.MappingProxyType):
            items = [(self.walk(k), self.walk(v)) for k, v in value.items()]
            return type(value).__name__, items, self._attributes(value)
        if isinstance(value, list | tuple):
            return type(value).__name__, [self.walk(v) for v in value], self._attributes(value)
        if isinstance(value, set | frozenset):
            return type(value).__name__, sorted(map(repr, map(self.walk, value)))
        if isinstance(value, weakref.ReferenceType):
            return "weak reference", self.walk(value())
        if isinstance(value, types.MethodType):
            return "method", value.__func__.__qualname__, self.walk(value.__self__)
        return "object", type(value).__qualname__, self._attributes(value)

    def _attributes(self, value):
        found = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if hasattr(value, name):
                    found[name] = getattr(value, name)
        return [(name, self.walk(each)) for name, each in found.items()]

    def _storage(self, storage):
        # an empty storage has no address
        key = storage._cdata if storage.nbytes() else ("empty", len(self.kept))
        self.kept.append(storage)
        return self.storages.setdefault(key, len(self.storages)), storage.nbytes()

    def _tensor(self, t):
        kind = (
            "parameter"
            if isinstance(t, nn.Parameter)
            else "buffer"
            if isinstance(t, nn.Buffer)
            else "tensor"
        )
        self.places.add(t.device.type)
        if nn.parameter.is_lazy(t):
            return kind, type(t).__name__, str(t.dtype), t.requires_grad
        told = [kind, str(t.layout), str(t.dtype), t.dim() if t.is_nested else tuple(t.shape)]
        told += [t.requires_grad, t.is_leaf, t.grad_fn is None, t.is_inference(), t._is_view()]
        told += [hooks and len(hooks) for hooks in (t._backward_hooks,)]
        told += [hooks and len(hooks) for hooks in (getattr(t, "_post_accumulate_grad_hooks", 0),)]
        told += [self._values(t), self.walk(t.grad if t.is_leaf else None)]
        told += [
            [(name, self.walk(value)) for name, value in t.__dict__.items() if name not in _HIDDEN]
        ]
        return told

    def _values(self, t):
        if t.is_nested:
            return [self.walk(part) for part in (t.values(), t.offsets())]
        if t.layout is not torch.strided:
            dense = t.detach().to_dense()
            return t.is_coalesced() if t.is_sparse else None, dense.cpu().tolist()
        self.tensors.append(t)
        told = [t.stride(), t.storage_offset(), t.is_conj(), t.is_neg()]
        host = t.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = host.flatten().view(torch.uint8).numpy().tobytes()
        return told, flat.hex(), self._storage(t.untyped_storage())


def _is_once(warning):
    """Whether torch gives this warning once in a process."""
    return str(warning.message).startswith(("TypedStorage is deprecated", "Sparse CSR tensor"))


def _plain(text):
    """The first line of a message, without addresses."""
    return re.sub("0x[0-9a-f]+", "0x", str(text).partition("\n")[0]).replace("torch.storage.", "")


def _files(value, old, weights_only, where=None):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not old)
    file.seek(0)
    return torch.load(file, weights_only=weights_only, map_location=where)


@dataclasses.dataclass
class Held:
    """Something that `dataclasses` copies."""

    first: object
    second: object


OPERATIONS = {
    "copy": lambda value, device: copy.copy(value),
    "deepcopy": lambda value, device: copy.deepcopy(value),
    "deepcopy of two": lambda value, device: copy.deepcopy([value, (value, {"k": value})]),
    "deepcopy of a copy": lambda value, device: copy.deepcopy(copy.copy(value)),
    "deepcopy with a memo": lambda value, device: copy.deepcopy([value], {id(value): "known"}),
    "asdict": lambda value, device: dataclasses.asdict(Held(value, [value])),
    "pickle": lambda value, device: pickle.loads(pickle.dumps(value)),
    "save": lambda value, device: _files(value, False, False),
    "save for weights": lambda value, device: _files(value, False, True),
    "save old": lambda value, device: _files(value, True, False),
    "save two": lambda value, device: _files([value, {"again": value}], False, False),
    "save to the host": lambda value, device: _files(value, False, False, "cpu"),
    "save to the device": lambda value, device: _files(value, False, False, device),
}

_GENERATORS = ("generator", "generator that drew", "generating")
#: not compared: torch fails by chance, or treats CUDA otherwise than the host
_LEFT_OUT = {
    *((name, "save old") for name in _GENERATORS),  # reads the state before its bytes
    *((name, "save to the host") for name in _GENERATORS),  # a generator stays where it is
    ("packed", "save to the device"),  # moves lengths that have to be on the host
    # torch cannot copy these on the host, and the device can
    *(("compressed", o) for o in OPERATIONS if o.startswith(("deepcopy", "asdict"))),
}
#: whose copies torch makes on the host
_LOSES_ITS_PLACE = (
    "lazy parameter",
    "lazy buffer",
    "lazy module",
    "moved lazy module",
    "lazy norm",
)


def pairs():
    """All (object, operation) that can be compared."""
    return [(n, o) for n in OBJECTS for o in OPERATIONS if (n, o) not in _LEFT_OUT]


def outcome(name, operation, device):
    """Describe an object before and after a write to the operation's result, or the error."""
    torch.manual_seed(5)
    torch.utils.hooks.RemovableHandle.next_id = 1000
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = OBJECTS[name](device)
        del caught[:]
        try:
            made = OPERATIONS[operation](value, device)
        except Exception as error:
            return "error", type(error).__name__, _plain(error)
        said = sorted({_plain(each.message) for each in caught if not _is_once(each)})
        before = Description(device).walk((value, made))
        kept = _keeps_places(value, made, name, operation, device)
        after = _written(value, made, device)
    return "ok", said, kept, before, after


def _keeps_places(value, made, name, operation, device):
    """Whether the copy is where it belongs."""
    if name in _LOSES_ITS_PLACE:
        return True
    original, copied = Description(device), Description(device)
    original.walk(value)
    copied.walk(made)
    wanted = {"save to the host": {"cpu"}, "save to the device": {device}}.get(operation)
    return copied.places <= (wanted or original.places)


def _written(value, made, device):
    """Write into every tensor of the copy; what both are then."""
    copied = Description(device)
    copied.walk(made)
    faults = []
    for tensor in copied.tensors:
        try:
            with torch.no_grad():
                tensor.zero_()
        except Exception as error:
            faults.append((type(error).__name__, _plain(error)))
    return faults, Description(device).walk((value, made))


def main(out):
    """Write all descriptions."""
    torch.set_num_threads(1)
    found = {(n, o): outcome(n, o, "cpu") for n, o in pairs()}
    Path(out).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
