"""Random sequences that make tensors share storage, on native tensors and shared ones side by side.

`play(seed)` draws one sequence and carries it out twice, on the CPU and on `cuda`; it returns what
differs: errors, shapes, strides, offsets, sizes of storages, which tensors share a storage, values.
Bytes that nobody has written are zeroed on both sides, for natively they are whatever was there.
"""

import random
import warnings
from contextlib import suppress

import torch
from alias_steps import draw, kinds_of_step

__all__ = ["play"]

_MOST = 12
_KINDS = kinds_of_step()
_CANNOT_GROW = ("setStorage", "Trying to resize storage that is not resizable")
_NO_SIZE = "Dimension specified as 0 but tensor has no dimensions"
_WEIGHTS = [weight for *_, weight in _KINDS]


class World:
    """The tensors of one side."""

    def __init__(self, device):
        self.device = device
        self.native = device == "cpu"
        self.tensors = []
        #: rows in host memory, on both sides
        self.hosts = [torch.arange(20.0), torch.arange(20).flip(0)]

    def get(self, k):
        return self.tensors[k % len(self.tensors)]

    def pair(self, k, j):
        """Two tensors; where both show the same, one twice.

        To the device they are one, and torch takes tensors that are one object for overlapping in
        cases that it otherwise finds too hard to say.
        """
        one, other = self.get(k), self.get(j)
        same = one.untyped_storage()._cdata == other.untyped_storage()._cdata
        return one, one if same and _face(one) == _face(other) else other

    def keep(self, made):
        for tensor in made if isinstance(made, (list, tuple)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.tensors.append(tensor)
        del self.tensors[:-_MOST]


class Step:
    """One step, as it was drawn; the same for both worlds."""

    def __init__(self, rng, kind=None):
        kind, steps, _ = kind or rng.choices(_KINDS, _WEIGHTS)[0]
        self.kind = kind
        self.name = rng.choice(list(steps))
        self._call = steps[self.name]
        self._drawn = draw(rng)

    def written(self, count):
        """Numbers of the tensors, of so many, that it may have written before it failed."""
        if self.kind not in ("in place", "out", "storage") or not count:
            return set()
        return {self._drawn.k % count, self._drawn.j % count}

    def go(self, world):
        d = self._drawn
        tensors = world.pair(d.k, d.j)
        if self.name.startswith("set_") and (tensors[0].is_conj() or tensors[0].is_neg()):
            return  # natively some of these have a copy of it set
        if self.kind == "storage":
            _zeroing(world, lambda: self._call(world, *tensors, d))
            return
        made = self._call(world, *tensors, d)
        if self.kind not in ("in place", "out"):
            world.keep(made)


def _whole(tensor):
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())


def _zeroing(world, change):
    """Do `change`, then zero what any storage gained by it."""
    before = [(t, t.untyped_storage(), t.untyped_storage().nbytes()) for t in world.tensors]
    try:
        change()
    finally:
        for tensor, storage, nbytes in before:
            if storage.nbytes() > nbytes:
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                flat.set_(storage)[nbytes:].zero_()


def play(seed, steps=14):
    """What differs in the sequence of this seed, as sentences; none if all is as natively.

    Odd seeds wait for the device only where natively something fails, and at the end. A third of
    them read all there is after each step, so that what was read is asked for again and again.
    """
    rng = random.Random(seed)
    native, ours = worlds = World("cpu"), World("cuda")
    script = [*(Step(rng, _KINDS[0]) for _ in range(2)), *(Step(rng) for _ in range(steps))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, step in enumerate(script):
            for world in worlds if not native.tensors else ():
                world.keep(torch.arange(12.0, device=world.device))
            before = [_face(tensor) for tensor in native.tensors]
            expected = _attempt(step, native)
            found = _attempt(step, ours, waits=not seed % 2 or expected[0] != "done")
            if expected[0] not in found[:-1] and not _is_excused(expected, found):
                return [f"step {number}, {step.name}: natively {expected}, here {found}"]
            if "stride(-1) must be 1" in expected[-1] and found[0] == "done":
                return []  # of a dimension with one element, which leads nowhere
            if len(native.tensors) != len(ours.tensors):
                return [f"after step {number}, {step.name}: other tensors"]
            _forget(worlds, _undefined(step, native, before, expected))
            told = _shapes(*worlds) or ([] if seed % 3 else _values(*worlds))
            if told:
                return [f"after step {number}, {step.name}: {text}" for text in told]
        return _values(*worlds)


def _is_excused(expected, found):
    """Natively some storages do not grow, and of two errors the other comes first."""
    if expected[-1].startswith(_CANNOT_GROW) or "stride(-1) must be 1" in expected[-1]:
        return True
    # A sentence about sizes that fails natively as it is written: it asks for that of a scalar.
    if "size mismatch" in found[-1] and expected[-1] == _NO_SIZE:
        return True
    late = "single memory location" in expected[-1] or "index is out of bounds" in expected[-1]
    return late and found[0] != "done"


def _undefined(step, native, before, expected):
    """Tensors of which natively nobody can say what they are after the step."""
    tensors = native.tensors
    found = {k for k, tensor in enumerate(tensors) if _reaches_past_its_storage(tensor)}
    # what lies past the end is not looked at: there may be no memory at all
    found |= {k for k, tensor in enumerate(tensors) if k not in found and _is_no_bool(tensor)}
    if step.kind == "out":
        found |= _read_as_grown(step.written(len(tensors)), tensors, before)
    if expected[0] != "done":  # much is changed, and looked at then
        faces = enumerate(zip(tensors, before, strict=True))
        found |= {k for k, (tensor, face) in faces if _face(tensor) != face}
        found |= step.written(len(tensors))
    return found


def _read_as_grown(numbers, tensors, before):
    """Of an op's tensors those that show one storage that grew for its output.

    An input is then as large as the output, and shows what nobody wrote.
    """
    storages = {tensors[k].untyped_storage()._cdata for k in numbers}
    grown = any(_face(tensors[k]) != before[k] for k in numbers)
    return numbers if grown and len(storages) == 1 else set()


def _is_no_bool(tensor):
    """Truth values that are other bytes than 0 and 1: kernels copy them or make them 1."""
    return tensor.dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any())


def _forget(worlds, numbers):
    """Follow these no further, nor what shares a storage with them on either side."""
    gone = set()
    for world in worlds:
        storages = {world.tensors[k].untyped_storage()._cdata for k in numbers}
        shown = (tensor.untyped_storage()._cdata for tensor in world.tensors)
        gone |= {k for k, storage in enumerate(shown) if storage in storages}
    for world in worlds:
        world.tensors[:] = [t for k, t in enumerate(world.tensors) if k not in gone]


def _reaches_past_its_storage(tensor):
    reach = tensor.storage_offset() + sum(
        (n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    end = (reach + 1) * tensor.element_size() if tensor.numel() else 0
    return end > tensor.untyped_storage().nbytes()


def _values(native, ours):
    found, looked_at = [], set()
    for k, (a, b) in enumerate(zip(native.tensors, ours.tensors, strict=True)):
        if not torch.equal(_bits(a), _bits(b.cpu())):
            found.append(f"tensor {k}: natively {a}, here {b}")
        storage = a.untyped_storage()._cdata
        if storage not in looked_at and not torch.equal(_whole(a), _whole(b).cpu()):
            found.append(f"storage of tensor {k}: {_whole(a)}, here {_whole(b)}")
        looked_at.add(storage)
    hosts = zip(native.hosts, ours.hosts, strict=True)
    if not all(torch.equal(_bits(a), _bits(b)) for a, b in hosts):
        found.append(f"host tensors: {native.hosts}, here {ours.hosts}")
    return found


def _bits(tensor):
    plain = tensor.resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _attempt(step, world, waits=False):
    before = list(world.tensors)
    try:
        step.go(world)
        if waits:
            torch.cuda.synchronize()
    except Exception as error:
        world.tensors[:] = before
        with suppress(RuntimeError):  # what an op before it failed of
            torch.cuda.synchronize()
        kinds = [k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins"]
        return *kinds[:-3], str(error)[:200]
    return "done", ""


def _shapes(native, ours):
    if len(native.tensors) != len(ours.tensors):
        return [f"{len(native.tensors)} tensors natively, {len(ours.tensors)} here"]
    found = []
    for k, (a, b) in enumerate(zip(native.tensors, ours.tensors, strict=True)):
        told = [_face(t) for t in (a, b)]
        if told[0] != told[1]:
            found.append(f"tensor {k}: natively {told[0]}, here {told[1]}")
    shared = [_sharing(world.tensors) for world in (native, ours)]
    if shared[0] != shared[1]:
        found.append(f"shared: {shared[0]} natively, {shared[1]} here")
    return found


def _face(t):
    storage = t.untyped_storage().nbytes()
    lazy = (t.is_conj(), t.is_neg())
    return t.dtype, tuple(t.shape), _strides(t), t.storage_offset(), storage, lazy


def _strides(tensor):
    """Those that lead somewhere."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in pairs if size > 1] if tensor.numel() else None


def _sharing(tensors):
    """For each tensor the first that has its storage, and the first that begins where it does."""
    storages, places = {}, {}
    told = []
    for k, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        same = storages.setdefault(storage._cdata, k)
        empty = not storage.nbytes() or not tensor.numel()
        told.append((same, None if empty else places.setdefault(tensor.data_ptr(), k)))
    return told
