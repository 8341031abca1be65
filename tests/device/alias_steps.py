"""The steps that random sequences of aliases are made of (`aliases.play`), by kind.

Each step is a name and a function of a world, a tensor of it, another one and the numbers that were
drawn, `d`; what it returns is kept. Steps leave nothing to chance: what natively has no defined
outcome is not drawn here (reading past the end of a storage that shrank, an `out` that is resized
while it is read).
"""

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch

__all__ = ["draw", "kinds_of_step"]

SIZES = [
    *[(), (0,), (1,), (4,), (6,), (12,), (2, 3), (3, 2), (2, 2), (1, 6), (2, 0), (3, 1)],
    *[(2, 3, 2), (1, 2, 2, 3)],
]
DTYPES = [
    *[torch.float32] * 4,
    *[torch.int64, torch.float64, torch.complex64, torch.bool, torch.uint8, torch.int32],
]


def draw(rng):
    """The numbers of one step."""
    size = rng.choice(SIZES)
    return SimpleNamespace(
        k=rng.randrange(99),
        j=rng.randrange(99),
        m=rng.randrange(99),
        a=rng.randrange(-3, 4),
        b=rng.randrange(-3, 4),
        first=rng.randrange(3),
        length=rng.randrange(4),
        step=rng.randrange(1, 3),
        count=rng.randrange(1, 7),
        value=rng.randrange(1, 9),
        size=size,
        strides=[rng.choice((0, 1, 1, 2, 3, 6, -1)) for _ in size],
        offset=rng.choice((0, 0, 1, 2, 5, -1)),
        nbytes=rng.randrange(14) * 8,
        dtype=rng.choice(DTYPES),
        indices=[rng.randrange(-2, 3) for _ in range(rng.randrange(4))],
        flags=[bool(rng.randrange(2)) for _ in range(rng.randrange(1, 5))],
        flag=bool(rng.randrange(2)),
        format=rng.choice(
            (torch.contiguous_format, torch.preserve_format, torch.channels_last, None)
        ),
    )


def _index(w, d):
    return torch.tensor(d.indices, dtype=torch.long, device=w.device)


def _host_index(w, d):
    return torch.tensor(d.indices, dtype=torch.long)


def _mask(w, d):
    return torch.tensor(d.flags, device=w.device)


def _count(size):
    return torch.Size(size).numel()


def _arange(w, size, dtype, start):
    return torch.arange(start, start + _count(size), device=w.device).to(dtype).reshape(size)


FRESH = {
    "fresh": lambda w, t, o, d: _arange(w, d.size, d.dtype, d.nbytes),
    "fresh inside": lambda w, t, o, d: _arange(w, (20,), d.dtype, 1)[d.first :][: _count(d.size)]
    .reshape(d.size),
    "fresh expanded": lambda w, t, o, d: _arange(w, (d.count, 1), d.dtype, 3).expand(-1, d.step),
    "fresh row": lambda w, t, o, d: torch.arange(12.0, device=w.device),
    "channels last": lambda w, t, o, d: _arange(w, (1, 2, 2, 3), torch.float32, 0).to(
        memory_format=torch.channels_last
    ),
}  # fmt: skip

VIEWS = {
    "view": lambda w, t, o, d: t.view(d.size),
    "view as": lambda w, t, o, d: t.view_as(o),
    "reshape": lambda w, t, o, d: t.reshape(d.size),
    "row": lambda w, t, o, d: t.reshape(-1),
    "transpose": lambda w, t, o, d: t.transpose(d.a, d.b),
    "mT": lambda w, t, o, d: t.mT,
    "slice": lambda w, t, o, d: t[d.first : d.first + d.length : d.step],
    "slice inside": lambda w, t, o, d: t[..., d.first :: d.step],
    "select": lambda w, t, o, d: t.select(d.a, d.first),
    "narrow": lambda w, t, o, d: t.narrow(d.a, d.first, d.length),
    "unsqueeze": lambda w, t, o, d: t.unsqueeze(d.a),
    "squeeze": lambda w, t, o, d: t.squeeze(),
    "squeeze one": lambda w, t, o, d: t.squeeze(d.a),
    "expand": lambda w, t, o, d: t.expand(2, *t.shape),
    "expand as": lambda w, t, o, d: t.expand_as(o),
    "together": lambda w, t, o, d: torch.broadcast_tensors(t, o),
    "diagonal": lambda w, t, o, d: t.diagonal(d.first - 1),
    "unfold": lambda w, t, o, d: t.unfold(d.a, d.length, d.step),
    "unflatten": lambda w, t, o, d: t.unflatten(d.a, (-1, d.step)),
    "split": lambda w, t, o, d: t.split(d.step),
    "chunk": lambda w, t, o, d: t.chunk(d.step + 1, d.a),
    "tensor split": lambda w, t, o, d: t.tensor_split(d.count, d.a),
    "unbind": lambda w, t, o, d: t.unbind(d.a),
    "detach": lambda w, t, o, d: t.detach(),
    "alias": lambda w, t, o, d: torch.ops.aten.alias(t),
    "data": lambda w, t, o, d: t.data,
    "as_strided": lambda w, t, o, d: t.as_strided((d.length, 2), (d.step, 1), d.first),
    "as_strided far": lambda w, t, o, d: t.as_strided(d.size, d.strides, d.offset),
    "as_strided here": lambda w, t, o, d: t.as_strided(d.size, d.strides),
    "dtype": lambda w, t, o, d: t.view(d.dtype),
    "flatten": lambda w, t, o, d: t.flatten(),
    "movedim": lambda w, t, o, d: t.movedim(d.a, d.b),
    "real": lambda w, t, o, d: t.real,
    "imag": lambda w, t, o, d: t.imag,
    "conj": lambda w, t, o, d: t.conj(),
    "imag of conj": lambda w, t, o, d: t.conj().imag,
    "resolved": lambda w, t, o, d: t.resolve_conj(),
    "view as real": lambda w, t, o, d: torch.view_as_real(t),
    "view as complex": lambda w, t, o, d: torch.view_as_complex(t),
    "to own type": lambda w, t, o, d: t.to(d.dtype),
    "to where it is": lambda w, t, o, d: t.to(w.device),
    "to like": lambda w, t, o, d: t.to(o),
    "as tensor": lambda w, t, o, d: torch.as_tensor(t),
    "at least": lambda w, t, o, d: torch.atleast_2d(t),
    "contiguous": lambda w, t, o, d: t.contiguous(),
    "shared": lambda w, t, o, d: t if w.native else t.share_memory_(),
}

COPIES = {
    "clone": lambda w, t, o, d: t.clone(),
    "clone as": lambda w, t, o, d: t.clone(memory_format=d.format or torch.preserve_format),
    "flip": lambda w, t, o, d: t.flip(0),
    "host index": lambda w, t, o, d: t[_host_index(w, d)],
    "own index": lambda w, t, o, d: t[_index(w, d)],
    "index inside": lambda w, t, o, d: t[..., _index(w, d)],
    "two indices": lambda w, t, o, d: t[_index(w, d), _host_index(w, d)],
    "list": lambda w, t, o, d: t[d.indices],
    "mask": lambda w, t, o, d: t[t > 3],
    "own mask": lambda w, t, o, d: t[_mask(w, d)],
    "host mask": lambda w, t, o, d: t[torch.tensor(d.flags)],
    "gathered": lambda w, t, o, d: t.flatten().take(_index(w, d)),
    "to host and back": lambda w, t, o, d: t.to("cpu", copy=True).to(w.device),
    "copied deeply": lambda w, t, o, d: copy.deepcopy([t, o]),
    "saved": lambda w, t, o, d: _saved(w, [t, o]),
}


def _saved(w, tensors):
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    return torch.load(file, map_location=w.device, weights_only=True)


def _put_number(w, t, o, d):
    t.index_put_((_index(w, d),), torch.tensor(d.value).to(t.dtype))


def _other(target, tensor):
    """Whether a tensor overlaps with itself torch knows by the object, which a program has not."""
    return tensor.clone() if tensor is target or not tensor.numel() else tensor


def _into_host(w, t, o, d):
    host = w.hosts[d.j % len(w.hosts)]
    host[: t.numel()].copy_(t.reshape(-1)[: host.numel()])


def _set(t, where, value):
    # the CPU alone takes a tensor without dimensions for a number, which overlaps with nothing
    t[where] = value.clone() if isinstance(value, torch.Tensor) and not value.dim() else value


def _in_inference_mode(tensor, value):
    with torch.inference_mode():
        tensor.add_(value)


def _by_another_thread(call):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


IN_PLACE = {
    "add_": lambda w, t, o, d: t.add_(d.value),
    "mul_": lambda w, t, o, d: t.mul_(d.value),
    "fill_": lambda w, t, o, d: t.fill_(d.value),
    "zero_": lambda w, t, o, d: t.zero_(),
    "copy_": lambda w, t, o, d: t.copy_(o),
    "add tensor": lambda w, t, o, d: t.add_(o),
    "div tensor": lambda w, t, o, d: t.div_(o),
    "clamp_": lambda w, t, o, d: t.clamp_(max=d.value),
    "cumsum_": lambda w, t, o, d: t.cumsum_(d.a),
    "set item": lambda w, t, o, d: _set(t, slice(0, 2), d.value),
    "set row": lambda w, t, o, d: _set(t, 0, o),
    "set part": lambda w, t, o, d: _set(t, (..., slice(d.first, None, d.step)), o),
    "index put": _put_number,
    "index put tensor": lambda w, t, o, d: t.index_put_((_index(w, d),), _other(t, o)),
    "index put more": lambda w, t, o, d: t.index_put_(
        (_index(w, d),), _other(t, o), accumulate=True
    ),
    "put by host": lambda w, t, o, d: _set(t, _host_index(w, d), d.value),
    "put by own": lambda w, t, o, d: _set(t, _index(w, d), _other(t, o)),
    "put by mask": lambda w, t, o, d: _set(t, _mask(w, d), d.value),
    "put by host mask": lambda w, t, o, d: _set(t, torch.tensor(d.flags), d.value),
    "put tensor by mask": lambda w, t, o, d: _set(t, _mask(w, d), _other(t, o)),
    "put_": lambda w, t, o, d: t.put_(_index(w, d), o.flatten()[: len(d.indices)].clone()),
    "put more": lambda w, t, o, d: t.put_(
        _index(w, d), o.flatten()[: len(d.indices)].clone(), accumulate=True
    ),
    "index_add_": lambda w, t, o, d: t.index_add_(d.a, _index(w, d).abs(), _other(t, o)),
    "index_copy_": lambda w, t, o, d: t.index_copy_(d.a, _index(w, d).abs(), _other(t, o)),
    "index_fill_": lambda w, t, o, d: t.index_fill_(d.a, _index(w, d), d.value),
    "scatter_": lambda w, t, o, d: t.scatter_(0, _index(w, d).abs(), d.value),
    "masked": lambda w, t, o, d: t.masked_fill_(t > d.value, 0),
    "masked scatter": lambda w, t, o, d: t.masked_scatter_(t > d.value, _other(t, o)),
    "fill diagonal": lambda w, t, o, d: t.fill_diagonal_(d.value),
    "diagonal of it": lambda w, t, o, d: t.diagonal().fill_(d.value),
    "transposed add": lambda w, t, o, d: t.mT.add_(t),
    "shifted": lambda w, t, o, d: t[1:].copy_(t[:-1]),
    "shifted add": lambda w, t, o, d: t[1:].add_(t[:-1]),
    "rows exchanged": lambda w, t, o, d: _set(t, [0, 1], t[[1, 0]]),
    "from host": lambda w, t, o, d: t.copy_(w.hosts[d.j % len(w.hosts)][: t.numel()].view(t.shape)),
    "item from host": lambda w, t, o, d: _set(t, d.first, w.hosts[0][d.value]),
    "into host": _into_host,
    "foreach": lambda w, t, o, d: torch._foreach_add_([t, o], [1, 2]),
    "add by data": lambda w, t, o, d: t.data.add_(d.value),
    "add in inference mode": lambda w, t, o, d: _in_inference_mode(t, d.value),
    "add by another thread": lambda w, t, o, d: _by_another_thread(lambda: t.add_(d.value)),
    "conj in place": lambda w, t, o, d: t.conj_physical_(),
    "transpose_": lambda w, t, o, d: t.transpose_(d.a, d.b),
    "t_": lambda w, t, o, d: t.t_(),
    "unsqueeze_": lambda w, t, o, d: t.unsqueeze_(d.a),
    "squeeze_": lambda w, t, o, d: t.squeeze_(),
    "squeeze one_": lambda w, t, o, d: t.squeeze_(d.a),
    "as_strided_": lambda w, t, o, d: t.as_strided_((2,), (1,)),
    "as_strided_ far": lambda w, t, o, d: t.as_strided_(d.size, d.strides, d.offset),
    "swapdims_": lambda w, t, o, d: t.swapdims_(d.a, d.b),
    "detach_": lambda w, t, o, d: t.detach_(),
}


def _grow(tensor, more):
    storage = tensor.untyped_storage()
    storage.resize_(storage.nbytes() + more)


def _shrink_and_grow(tensor, nbytes):
    """A storage that ends early for a while; what lay past that end is zeroed by who calls."""
    storage = tensor.untyped_storage()
    before = storage.nbytes()
    if before > nbytes:
        storage.resize_(nbytes)
        storage.resize_(before)
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        whole.set_(tensor.untyped_storage())[nbytes:].zero_()


def _set_data(tensor, value):
    tensor.data = value


STORAGE = {
    "resize_": lambda w, t, o, d: t.resize_(d.size),
    "resize_ of a view": lambda w, t, o, d: t[d.first :].resize_(d.size),
    "resize_ in a format": lambda w, t, o, d: t.resize_(d.size, memory_format=d.format),
    "resize_as_": lambda w, t, o, d: t.resize_as_(o),
    "resize_as_ kept": lambda w, t, o, d: t.resize_as_(o, memory_format=torch.preserve_format),
    "set_": lambda w, t, o, d: t.set_(o),
    "set_ to nothing": lambda w, t, o, d: t.set_(),
    "set_ strided": lambda w, t, o, d: t.set_(o.untyped_storage(), d.first, (2,), (d.step,)),
    "set_ far": lambda w, t, o, d: t.set_(o.untyped_storage(), d.offset, d.size, d.strides),
    "set_ in order": lambda w, t, o, d: t.set_(o.untyped_storage(), d.offset, d.size),
    "set_ from a tensor": lambda w, t, o, d: t.set_(o, d.offset, d.size, d.strides),
    "set_ storage": lambda w, t, o, d: t.set_(o.untyped_storage()),
    "set_ typed storage": lambda w, t, o, d: t.set_(o.storage()),
    "grow": lambda w, t, o, d: _grow(t, d.nbytes),
    "shrink and grow": lambda w, t, o, d: _shrink_and_grow(t, d.nbytes),
    "data": lambda w, t, o, d: _set_data(t, o),
    "data of a view": lambda w, t, o, d: _set_data(t, o[:2]),
    "data of another type": lambda w, t, o, d: _set_data(t, o.to(d.dtype)),
    "data exchanged": lambda w, t, o, d: _exchange_data(t, o),
}


def _exchange_data(one, other):
    one.data, other.data = other.data, one.data


def _matmul(x, y, out):
    # natively some products do not look whether elements of `out` share a place
    return torch.matmul(x, y, out=out.clone() if 0 in out.stride() else out)


INTO = {
    "add": lambda w, o, x, y, d: torch.add(x, 1, out=o),
    "mul": lambda w, o, x, y, d: torch.mul(x, y, out=o),
    "div": lambda w, o, x, y, d: torch.div(x, y, out=o),
    "less": lambda w, o, x, y, d: torch.lt(x, y, out=o),
    "where": lambda w, o, x, y, d: torch.where(x > d.value, x, y, out=o),
    "cat": lambda w, o, x, y, d: torch.cat([x, y], out=o),
    "arange": lambda w, o, x, y, d: torch.arange(d.count, out=o),
    "linspace": lambda w, o, x, y, d: torch.linspace(0, 1, d.count, out=o),
    "sum": lambda w, o, x, y, d: torch.sum(x, 0, out=o),
    "amax": lambda w, o, x, y, d: torch.amax(x, d.a, out=o),
    "cumsum": lambda w, o, x, y, d: torch.cumsum(x, 0, out=o),
    "any": lambda w, o, x, y, d: torch.any(x, 0, out=o),
    "argmax": lambda w, o, x, y, d: torch.argmax(x, out=o),
    "index_select": lambda w, o, x, y, d: torch.index_select(
        x, 0, torch.zeros(d.count, dtype=torch.long, device=x.device), out=o
    ),
    "take": lambda w, o, x, y, d: torch.take(x, _index(w, d), out=o),
    "gather": lambda w, o, x, y, d: torch.gather(x, 0, _index(w, d).abs(), out=o),
    "stack": lambda w, o, x, y, d: torch.stack([x, x], out=o),
    "clamp": lambda w, o, x, y, d: torch.clamp(x, 1, 4, out=o),
    "zeros": lambda w, o, x, y, d: torch.zeros(d.count, out=o),
    "ones of a size": lambda w, o, x, y, d: torch.ones(d.size, out=o),
    "full": lambda w, o, x, y, d: torch.full((d.count, 2), 7, out=o),
    "nonzero": lambda w, o, x, y, d: torch.nonzero(x, out=o),
    "masked": lambda w, o, x, y, d: torch.masked_select(x, x > 2, out=o),
    "mm": lambda w, o, x, y, d: torch.mm(x, y.to(x.dtype), out=o),
    "matmul": lambda w, o, x, y, d: _matmul(x, y.to(x.dtype), o),
    "sort": lambda w, o, x, y, d: torch.sort(x, stable=True, out=(o, o.new_empty(0).long())),
    "max and place": lambda w, o, x, y, d: torch.max(x, 0, out=(o, o.new_empty(0).long())),
    "abs": lambda w, o, x, y, d: torch.abs(x, out=o),
    "real": lambda w, o, x, y, d: torch.sign(x, out=o),
    "pow": lambda w, o, x, y, d: torch.pow(x, 2, out=o),
    "eye": lambda w, o, x, y, d: torch.eye(d.count, out=o),
}
#: whose `out` may share storage with what is read, where it keeps its size: torch looks at it
OVERLAPPING = {
    "add": lambda w, o, x, y, d: torch.add(x, 1, out=o),
    "mul": lambda w, o, x, y, d: torch.mul(x, y if y.shape == x.shape else x, out=o),
    "clamp": lambda w, o, x, y, d: torch.clamp(x, 1, 4, out=o),
}


def _apart(argument, out):
    """What shares storage with an `out` that is resized is natively read while it is written."""
    same = argument.untyped_storage()._cdata == out.untyped_storage()._cdata
    return argument.clone() if same else argument


def _overlaps(tensor):
    """Whether elements of it share a place, where torch does not look so closely."""
    reach = sum((n - 1) * k for n, k in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if not tensor.numel() or 0 in tensor.stride():
        return False
    places = torch.arange(reach).as_strided(tensor.shape, tensor.stride())
    return places.unique().numel() < tensor.numel()


def _into(call, w, t, o, d):
    if _overlaps(t):
        return  # natively the last one written counts
    inputs = [_apart(x, t) for x in (o, w.get(d.m))]
    before, storage = t.untyped_storage().nbytes(), t.untyped_storage()
    call(w, t, *inputs, d)
    start = t.storage_offset() * t.element_size()
    if storage.nbytes() > before and start > before:  # nobody has written what lies before it
        whole = torch.empty(0, dtype=torch.uint8, device=t.device)
        whole.set_(storage)[before:start].zero_()


def _into_overlapping(call, w, t, o, d):
    if t.shape == o.shape:
        call(w, t, o, w.pair(d.k, d.m)[1] if d.flag else o, d)


def kinds_of_step():
    """Pairs of a kind and its steps by name, and how often each is drawn."""
    into = {
        name: lambda w, t, o, d, call=call: _into(call, w, t, o, d) for name, call in INTO.items()
    }
    over = {
        f"{name} overlapping": lambda w, t, o, d, call=call: _into_overlapping(call, w, t, o, d)
        for name, call in OVERLAPPING.items()
    }
    return [
        ("fresh", FRESH, 1),
        ("view", VIEWS, 3),
        ("copy", COPIES, 1),
        ("in place", IN_PLACE, 2),
        ("storage", STORAGE, 2),
        ("out", into | over, 1),
    ]
