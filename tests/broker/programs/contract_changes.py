"""What the fuzzer of contracts changes of a native call: shapes, strides, types, numbers, data."""

import torch
from msgspec import structs

from jgpu.broker.executor.programs.geometry import geometry_of


def fill(base, dtype, chance):
    """Small whole numbers, so that indices are often right."""
    if base.numel() == 0 or base.numel() % dtype.itemsize:
        base.zero_()
        return
    flat = torch.empty(base.numel() // dtype.itemsize, dtype=dtype)
    kind = chance.random()
    if dtype.is_floating_point or dtype.is_complex:
        flat.fill_(chance.choice((0.0, 0.5, 1.0, -2.0)))
    elif kind < 0.5:
        flat.zero_()
    elif kind < 0.65:  # rows that count up from 1, as pivots do
        flat.copy_(torch.arange(flat.numel()) % chance.randint(1, 4) + 1)
    else:
        values = [chance.choice((0, 1, 2, 1, 0, -1, 7)) for _ in range(min(flat.numel(), 16))]
        for k, value in enumerate(values):
            flat[k :: len(values)] = abs(value) if dtype in (torch.uint8, torch.bool) else value
    base.copy_(flat.view(torch.uint8))


def changed(geometry, chance):
    """Another shape, strides or type."""
    shape = list(geometry.shape)
    what = chance.randrange(10)
    if what < 5 and shape:
        k = chance.randrange(len(shape))
        shape[k] = max(0, chance.choice((
            shape[k] - 1, shape[k] + 1, shape[k] * 2, shape[k] // 2, 0, 1, shape[k] + 7,
        )))  # fmt: skip
    elif what == 5 and shape:
        del shape[chance.randrange(len(shape))]
    elif what == 6:
        shape.insert(chance.randrange(len(shape) + 1), chance.choice((1, 2, 3)))
    elif what == 7:
        dtype = chance.choice((
            "float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool",
            "complex64",
        ))  # fmt: skip
        return structs.replace(geometry, dtype=dtype)
    elif what == 8 and len(shape) > 1:
        order = chance.sample(range(len(shape)), len(shape))
        return structs.replace(
            geometry,
            shape=tuple(shape[k] for k in order),
            stride=tuple(geometry.stride[k] for k in order),
        )
    elif shape:
        factor = chance.choice((0, 2, 3))
        k = chance.randrange(len(shape))
        strides = list(geometry.stride)
        strides[k] *= factor
        return structs.replace(geometry, stride=tuple(strides))
    plain = geometry_of(torch.empty(shape, device="meta"))
    return structs.replace(plain, dtype=geometry.dtype)


def numbers(op):
    """Where its plain numbers stand: ("args" or "kwargs", key)."""
    both = (("args", op.args), ("kwargs", op.kwargs))
    return [(where, k) for where, args in both for k in _keys(args) if _is_number(args[k])]


def _keys(args):
    return args if isinstance(args, dict) else range(len(args))


def _is_number(value):
    if isinstance(value, tuple):
        return bool(value) and all(type(item) in (int, bool) for item in value)
    return type(value) in (int, bool, float)


def with_other_number(op, chance):
    """One number, or one of a list, is another."""
    where, k = chance.choice(numbers(op))
    args = getattr(op, where)
    value = args[k]
    if isinstance(value, tuple):
        items = list(value)
        if chance.random() < 0.2:
            items = items[:-1] if chance.random() < 0.5 else [*items, items[-1]]
        else:
            at = chance.randrange(len(items))
            items[at] = other(items[at], chance)
        new = tuple(items)
    else:
        new = other(value, chance)
    if where == "args":
        return structs.replace(op, args=(*args[:k], new, *args[k + 1 :]))
    return structs.replace(op, kwargs={**args, k: new})


def other(value, chance):
    """A number near this one, or an awkward one."""
    if type(value) is bool:
        return not value
    if type(value) is float:
        return chance.choice((0.0, -1.0, value * 2, 1e9, float("inf"), 0.5))
    return chance.choice((value - 1, value + 1, 0, 1, -1, 2, value * 2, 40))
