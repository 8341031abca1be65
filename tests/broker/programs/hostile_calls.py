"""Calls of every op that a program may name, for the search with hostile values to begin with.

Most come from PyTorch's database of operators, forward and backward, as the dispatcher sees them.
An op that no sample reaches is called by its schema alone: arguments of the right kinds are drawn
until its checks and its kernel take them. Variants with `out` are called with what their plain
variants return.
"""

import random
import re
from collections import defaultdict

import torch
from contract_seeds import as_op, by_hand, from_databases
from msgspec import structs
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.programs import contracts
from jgpu.broker.executor.programs.checking import ops
from jgpu.broker.executor.programs.checking.arguments import bind, refs_of
from jgpu.broker.executor.programs.checking.check import check_op
from jgpu.broker.executor.programs.geometry import geometry_of, required_bytes
from jgpu.errors import ProgramError
from jgpu.wire.program import Dtype, GeneratorArg, Layout, MemoryFormat, Op, Slot

PER_OP = 6
#: draws of arguments for an op that no sample reaches
DRAWS = 250
SHAPES = ((3, 4), (4, 4), (4,), (2, 3, 4), (2, 3, 6, 8), (), (2, 2, 4, 4, 4), (1, 3), (3, 3, 3))
INDICES = re.compile(r".*(ind(ex|ices)|target|lengths|offsets|pivots|batch_sizes|repeats).*|ids")
WORDS = {
    "rounding_mode": ("trunc", "floor"), "reduce": ("sum", "prod", "mean", "amax"),
    "mode": ("reduced", "complete", "r"), "interpolation": ("linear", "nearest"),
    "indexing": ("ij", "xy"), "side": ("left", "right"), "approximate": ("none", "tanh"),
    "driver": ("gelsd", "gels"), "norm": ("forward", "ortho"), "padding_mode": ("zeros",),
    "padding": ("same", "valid"), "ord": ("fro", "nuc"), "UPLO": ("L", "U"), "uplo": ("L", "U"),
    "pad_mode": ("reflect", "constant"), "equation": ("ij,jk->ik",),
}  # fmt: skip


def accepted():
    """Every overload that a program may name on the cpu device, in order of names."""
    found = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            full = name if "." in name else f"{name}.default"
            try:
                info = ops.resolve(full, "cpu")
                contracts.require_contract(info)
            except ProgramError:
                continue
            found[full] = info
    return found


class Noted(TorchDispatchMode):
    """Notes each call that reaches the dispatcher."""

    def __init__(self, known):
        super().__init__()
        self.known = known
        self.calls = defaultdict(dict)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = f"{func._schema.name}.{func._schema.overload_name or 'default'}"
        if name in self.known and len(self.calls[name]) < PER_OP:
            op, seen = as_op(func, args, kwargs or {})
            op = plain(op)
            self.calls[name].setdefault((repr(op.args), repr(op.kwargs), seen), (op, seen))
        return func(*args, **(kwargs or {}))


def plain(op):
    """The call without what a program does not say (devices, host tensors)."""
    return structs.replace(
        op, kwargs={k: v for k, v in op.kwargs.items() if k not in ("device", "pin_memory")}
    )


def calls(databases, *, only="", part=(0, 1), bases=None):
    """By op: calls, each with the geometries of its slots.

    Of ops whose names hold `only`; `part` (k, n) is every n-th op; `bases` are base names.
    """
    known = accepted()
    noted = Noted(known)
    if databases:
        for call in (*by_hand(), *from_databases()):
            try:
                with noted:
                    call()
            except Exception:
                continue
    found = {}
    for number, (name, info) in enumerate(known.items()):
        chosen = bases is None or info.base.removesuffix("_") in bases
        if chosen and only in name and number % part[1] == part[0]:
            own = [call for call in noted.calls[name].values() if runs(info, *call)]
            found[name] = own or list(by_plain(info, noted.calls, known)) or list(drawn(info))
    return found


def runs(info, op, seen):
    """Whether the executor's checks take a call."""
    try:
        bound = bind(op, info, torch.device("cpu"))
        if len(list(refs_of(bound))) != len(seen):
            return False
        check_op(op, info, bound, [(geometry, required_bytes(geometry)) for geometry in seen])
    except ProgramError:
        return False
    return True


def by_plain(info, noted, known):
    """Calls of a variant with `out` or in place after those of the plain variant."""
    outs = [a for a in info.arguments if a.kwarg_only and a.written]
    mine = [a.name for a in info.arguments if a not in outs]
    base = info.base.removesuffix("_")
    for name, other in known.items():
        if other.base == base and name in noted and [a.name for a in other.arguments] == mine:
            for op, seen in list(noted[name].values()):
                types = returned(other, op, seen)
                geometries = list(seen)
                kwargs = dict(op.kwargs)
                for k, out in enumerate(outs):
                    kwargs[out.name] = Slot(len(geometries), len(geometries))
                    dtype = types[k] if k < len(types) else "float32"
                    empty = geometry_of(torch.empty(0, device="meta"))
                    geometries.append(structs.replace(empty, dtype=dtype))
                made = Op(info.name, op.args, kwargs, ())
                if all(a.kind == "tensor" for a in outs) and runs(info, made, tuple(geometries)):
                    yield made, tuple(geometries)


def returned(info, op, seen):
    """The types that a call returns, as far as they are foretold."""
    try:
        bound = bind(op, info, torch.device("cpu"))
        found = check_op(op, info, bound, [(each, required_bytes(each)) for each in seen])
    except ProgramError:
        return []
    return [r.geometry.dtype for r in found.returns if r is not None] if found else []


def drawn(info):
    """Calls by the schema alone; the first few that the checks take."""
    chance = random.Random(info.name)
    found = []
    for _ in range(DRAWS):
        call = draw(info, chance)
        if call is not None and runs(info, *call):
            found.append(call)
            if len(found) == 3:
                break
    return found


def draw(info, chance):
    """Arguments of the right kinds."""
    seen, common = [], chance.choice(SHAPES)
    dtype = chance.choice(("float32",) * 6 + ("int64", "int64", "bool", "complex64"))

    def tensor(name):
        shape = common if chance.random() < 0.8 else chance.choice(SHAPES)
        own = "int64" if INDICES.fullmatch(name) else "bool" if "mask" in name else dtype
        if name == "condition":
            own = "bool"
        geometry = geometry_of(torch.empty(shape, device="meta"))
        seen.append(structs.replace(geometry, dtype=own))
        return Slot(len(seen) - 1, len(seen) - 1)

    def value(argument):
        name, kind = argument.name, argument.kind
        if kind in ("tensor", "tensors", "optional_tensors"):
            many = kind != "tensor"
            return tuple(tensor(name) for _ in range(2)) if many else tensor(name)
        if kind in ("ints", "floats", "numbers", "bools"):
            count = chance.choice((len(common), 1, 2, 3))
            if name == "size" and chance.random() < 0.5:
                return common
            item = {"ints": (1, 2, 0), "floats": (1.0, 2.0), "numbers": (1, 0.5), "bools": (True,)}
            return tuple(chance.choice(item[kind]) for _ in range(count))
        return {
            "int": lambda: chance.choice((1, 0, 2, 3)),
            "number": lambda: chance.choice((1, 2, 0.5)),
            "float": lambda: chance.choice((0.5, 1.0)),
            "bool": lambda: chance.random() < 0.5,
            "str": lambda: chance.choice(WORDS.get(name, ("mean", "sum", "none"))),
            "dtype": lambda: Dtype("float32"),
            "layout": lambda: Layout("strided"),
            "generator": lambda: GeneratorArg(0),
            "memory_format": lambda: MemoryFormat("contiguous_format"),
        }.get(kind, lambda: None)()

    args, kwargs = [], {}
    for argument in info.arguments:
        if argument.kind == "device" or (argument.kind == "generator" and not argument.required):
            continue
        given = argument.required or (chance.random() < 0.3 and argument.name != "out")
        if argument.optional and argument.required and chance.random() < 0.4:
            filled = None
        elif given:
            filled = value(argument)
        else:
            continue
        if argument.kwarg_only or len(args) < info.arguments.index(argument):
            kwargs[argument.name] = filled
        else:
            args.append(filled)
    return Op(info.name, tuple(args), kwargs, ()), tuple(seen)
