"""Random sequences that make tensors share storage, on native tensors and shared ones side by side.

`play(seed)` draws one sequence and carries it out twice, on the CPU and on `cuda`; it returns what
differs: errors, shapes, strides, offsets, sizes of storages, which tensors share a storage, values.
Bytes that nobody has written are zeroed on both sides, for natively they are whatever was there.
"""

import random
import warnings
from contextlib import suppress

import torch

__all__ = ["play"]

_SIZES = [(), (0,), (1,), (4,), (6,), (2, 3), (3, 2), (2, 2), (1, 6), (2, 0), (2, 3, 2), (12,)]
_DTYPES = [torch.float32, torch.float32, torch.float32, torch.int64, torch.float64]
_MOST = 12


class World:
    """The tensors of one side."""

    def __init__(self, device):
        self.device = device
        self.tensors = []

    def get(self, k):
        return self.tensors[k % len(self.tensors)]

    def keep(self, made):
        for tensor in made if isinstance(made, (list, tuple)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.tensors.append(tensor)
        del self.tensors[:-_MOST]


def _whole(tensor):
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())


def _drop(made):
    """The step gives nothing to keep."""


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


def _fresh(rng):
    size, dtype, start = rng.choice(_SIZES), rng.choice(_DTYPES), rng.randrange(50)
    count = 1
    for n in size:
        count *= n
    return "fresh", lambda w: w.keep(
        torch.arange(start, start + count, device=w.device).to(dtype).reshape(size)
    )


def _view(rng):
    k, a, b, size = (
        rng.randrange(99),
        rng.randrange(-3, 4),
        rng.randrange(-3, 4),
        rng.choice(_SIZES),
    )
    first, length, step = rng.randrange(3), rng.randrange(4), rng.randrange(1, 3)
    dtype = rng.choice([torch.int32, torch.int64, torch.float32, torch.uint8])
    kinds = {
        "view": lambda t: t.view(size),
        "reshape": lambda t: t.reshape(size),
        "transpose": lambda t: t.transpose(a, b),
        "slice": lambda t: t[first : first + length : step],
        "select": lambda t: t.select(a, first),
        "narrow": lambda t: t.narrow(a, first, length),
        "unsqueeze": lambda t: t.unsqueeze(a),
        "squeeze": lambda t: t.squeeze(),
        "expand": lambda t: t.expand(2, *t.shape),
        "diagonal": lambda t: t.diagonal(first - 1),
        "unfold": lambda t: t.unfold(a, length, step),
        "split": lambda t: t.split(step),
        "detach": lambda t: t.detach(),
        "data": lambda t: t.data,
        "as_strided": lambda t: t.as_strided((length, 2), (step, 1), first),
        "dtype": lambda t: t.view(dtype),
        "flatten": lambda t: t.flatten(),
        "movedim": lambda t: t.movedim(a, b),
        "clone": lambda t: t.clone(),
        "contiguous": lambda t: t.contiguous(),
        "flip": lambda t: t.flip(0),
    }
    name = rng.choice(list(kinds))
    call = kinds[name]
    return name, lambda w: w.keep(call(w.get(k)))


def _in_place(rng):
    k, j, value = rng.randrange(99), rng.randrange(99), rng.randrange(1, 9)
    a, b = rng.randrange(-2, 3), rng.randrange(-2, 3)
    indices = [rng.randrange(-2, 3) for _ in range(rng.randrange(3))]
    kinds = {
        "add_": lambda t, o, w: t.add_(value),
        "mul_": lambda t, o, w: t.mul_(value),
        "fill_": lambda t, o, w: t.fill_(value),
        "zero_": lambda t, o, w: t.zero_(),
        "copy_": lambda t, o, w: t.copy_(o),
        "add tensor": lambda t, o, w: t.add_(o),
        "set item": lambda t, o, w: t.__setitem__(slice(0, 2), value),
        "set row": lambda t, o, w: t.__setitem__(0, o),
        "index put": lambda t, o, w: t.index_put_(
            (torch.tensor(indices, device=w.device),), torch.tensor(value, dtype=t.dtype)
        ),
        "put by host": lambda t, o, w: t.__setitem__(
            torch.tensor(indices, dtype=torch.long), value
        ),
        "masked": lambda t, o, w: t.masked_fill_(t > value, 0),
        "transpose_": lambda t, o, w: t.transpose_(a, b),
        "t_": lambda t, o, w: t.t_(),
        "unsqueeze_": lambda t, o, w: t.unsqueeze_(a),
        "squeeze_": lambda t, o, w: t.squeeze_(),
        "as_strided_": lambda t, o, w: t.as_strided_((2,), (1,)),
        "swapdims_": lambda t, o, w: t.swapdims_(a, b),
        "detach_": lambda t, o, w: t.detach_(),
    }
    name = rng.choice(list(kinds))
    call = kinds[name]
    return name, lambda w: _drop(call(w.get(k), w.get(j), w))


def _storage(rng):
    k, j, size, nbytes = (
        rng.randrange(99),
        rng.randrange(99),
        rng.choice(_SIZES),
        rng.randrange(0, 14),
    )
    offset, step = rng.randrange(3), rng.randrange(1, 3)
    kinds = {
        "resize_": lambda t, o: t.resize_(size),
        "resize_as_": lambda t, o: t.resize_as_(o),
        "set_": lambda t, o: t.set_(o),
        "set_ strided": lambda t, o: t.set_(o.untyped_storage(), offset, (2,), (step,)),
        "set_ storage": lambda t, o: t.set_(_of_other_length(o, t)),
        "grow": lambda t, o: _grow(t, nbytes * 8),
        "data": lambda t, o: setattr(t, "data", o),
        "data of a view": lambda t, o: setattr(t, "data", o[:2]),
    }
    name = rng.choice(list(kinds))
    call = kinds[name]
    return name, lambda w: _zeroing(w, lambda: call(w.get(k), w.get(j)))


def _of_other_length(source, target):
    """A storage; of a target of the same length torch leaves strides that may lead past its end."""
    storage = source.untyped_storage()
    if target.shape == (storage.nbytes() // target.element_size(),):
        raise RuntimeError("not tried")
    return storage


def _grow(tensor, more):
    """Storages only grow here: what lies past the end of one is not to be read, natively either."""
    storage = tensor.untyped_storage()
    storage.resize_(storage.nbytes() + more)


def _into(rng):
    k, j, m, count = rng.randrange(99), rng.randrange(99), rng.randrange(99), rng.randrange(1, 7)
    kinds = {
        "add": lambda o, x, y: torch.add(x, 1, out=o),
        "mul": lambda o, x, y: torch.mul(x, y, out=o),
        "cat": lambda o, x, y: torch.cat([x, y], out=o),
        "arange": lambda o, x, y: torch.arange(count, out=o),
        "sum": lambda o, x, y: torch.sum(x, 0, out=o),
        "index_select": lambda o, x, y: torch.index_select(
            x, 0, torch.zeros(count, dtype=torch.long, device=x.device), out=o
        ),
        "stack": lambda o, x, y: torch.stack([x, x], out=o),
        "clamp": lambda o, x, y: torch.clamp(x, 1, 4, out=o),
        "zeros": lambda o, x, y: torch.zeros(count, out=o),
        "full": lambda o, x, y: torch.full((count, 2), 7, out=o),
        "nonzero": lambda o, x, y: torch.nonzero(x, out=o),
        "masked": lambda o, x, y: torch.masked_select(x, x > 2, out=o),
    }
    name = rng.choice(list(kinds))
    call = kinds[name]
    return f"out of {name}", lambda w: _drop(
        call(w.get(k), *(_apart(w.get(n), w.get(k)) for n in (j, m)))
    )


def _apart(argument, out):
    """What shares storage with an `out` that is resized is natively read while it is written."""
    same = argument.untyped_storage()._cdata == out.untyped_storage()._cdata
    return argument.clone() if same else argument


def _across(rng):
    k, indices = rng.randrange(99), [rng.randrange(-2, 3) for _ in range(rng.randrange(1, 4))]
    kinds = {
        "host index": lambda w, t: t[torch.tensor(indices)],
        "own index": lambda w, t: t[torch.tensor(indices, device=w.device)],
        "mask": lambda w, t: t[t > 3],
        "gathered": lambda w, t: t.flatten().take(torch.tensor(indices, device=w.device)),
        "to host and back": lambda w, t: t.to("cpu").clone().to(w.device),
    }
    name = rng.choice(list(kinds))
    call = kinds[name]
    return name, lambda w: w.keep(call(w, w.get(k)))


_STEPS = [_fresh, _view, _view, _view, _in_place, _in_place, _storage, _storage, _into, _across]


def play(seed, steps=14):
    """What differs in the sequence of this seed, as sentences; none if all is as natively."""
    rng = random.Random(seed)
    worlds = World("cpu"), World("cuda")
    script = [_fresh(rng), _fresh(rng), *(rng.choice(_STEPS)(rng) for _ in range(steps))]
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (name, step) in enumerate(script):
            native, ours = [_attempt(step, world) for world in worlds]
            if native[1].startswith("setStorage") and ours[0] == "done":
                return []  # natively some storages do not grow
            if native[0] not in ours[:-1]:
                return [f"step {number}, {name}: natively {native}, here {ours}"]
            if name.startswith("out of") and native[0] != "done":
                return []  # natively an `out` may have been resized before the error
            found = _shapes(*worlds)
            if found:
                return [f"after step {number}, {name}: {text}" for text in found]
    for k, (native, ours) in enumerate(zip(worlds[0].tensors, worlds[1].tensors, strict=True)):
        if not torch.equal(_bits(native), _bits(ours.cpu())):
            found.append(f"tensor {k}: natively {native}, here {ours}")
        unset = any(name.startswith("out of") for name, _ in script)  # before an offset, say
        if not unset and not torch.equal(_whole(native), _whole(ours).cpu()):
            found.append(f"storage of tensor {k}: {_whole(native)}, here {_whole(ours)}")
    return found


def _bits(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _attempt(step, world):
    before = list(world.tensors)
    try:
        step(world)
        if world.device == "cuda":
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
        told = [
            (t.dtype, tuple(t.shape), _strides(t), t.storage_offset(), t.untyped_storage().nbytes())
            for t in (a, b)
        ]
        if told[0] != told[1]:
            found.append(f"tensor {k}: natively {told[0]}, here {told[1]}")
        for j in range(k):
            shared = [_share(w.tensors[j], w.tensors[k]) for w in (native, ours)]
            if shared[0] != shared[1]:
                found.append(f"tensors {j} and {k}: shared {shared[0]} natively, {shared[1]} here")
    return found


def _strides(tensor):
    """Those that lead somewhere."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in pairs if size > 1] if tensor.numel() else None


def _share(a, b):
    """Whether two tensors share a storage, and begin at the same place of it."""
    one, other = a.untyped_storage(), b.untyped_storage()
    same = one._cdata == other._cdata
    return same, same and one.nbytes() > 0 and a.numel() > 0 and b.numel() > 0 and (
        a.data_ptr() == b.data_ptr()
    )
