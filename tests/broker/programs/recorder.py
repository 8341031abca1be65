"""Records programs from ordinary torch code on CPU tensors, and what they natively computed.

Covers what a client does that matters to the executor: views are geometry over one storage, every
other op is recorded, floats may be run parameters. It does not infer: claims are native truths.
"""

from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.wire.program import (
    NO_SLOT,
    Complex,
    DeviceArgument,
    Dtype,
    Flags,
    GeneratorArg,
    HostTensor,
    Layout,
    MemoryFormat,
    Op,
    Out,
    Param,
    Program,
    Slot,
    View,
    encode_program,
)


@dataclass
class Recording:
    """A program, its inputs as they were, and all storages as they are after the native run."""

    data: bytes
    params: tuple
    #: bytes of each input storage before the run
    inputs: list[torch.Tensor]
    #: by slot after the native run: an input's whole storage, a fresh slot's first tensor
    after: list[torch.Tensor]
    ops: list[str]
    rng: torch.Tensor = None


def storage_bytes(tensor):
    """A tensor's whole storage as a 1-d uint8 tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


@dataclass
class _State:
    slots: dict = field(default_factory=dict)
    kept: list = field(default_factory=list)
    inputs: list = field(default_factory=list)
    geometries: dict = field(default_factory=dict)
    views: dict = field(default_factory=dict)
    ops: list = field(default_factory=list)
    params: list = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Use as a context around code that works on CPU tensors, then call `recording()`."""

    def __init__(self, lift=False):
        super().__init__()
        self.lift = lift
        self.state = _State()
        self.rng = torch.get_rng_state()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = func._schema
        if not any(
            str(r.real_type) in ("Tensor", "List[Tensor]") for r in schema.returns
        ) and not any(a.alias_info and a.alias_info.is_write for a in schema.arguments):
            return func(*args, **kwargs)
        view = any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
        if view or func in (torch.ops.aten.detach.default, torch.ops.aten.lift_fresh.default):
            return func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags and func is not torch.ops.aten.resize_.default:
            return func(*args, **kwargs)
        takes = any(isinstance(a, torch.Tensor) for a in _leaves((*args, *kwargs.values())))
        names = [a.name for a in schema.arguments]
        types_of = {a.name: str(a.real_type) for a in schema.arguments}
        known = {
            id_of(a) for a in _leaves((*args, *kwargs.values())) if isinstance(a, torch.Tensor)
        }
        recorded = [
            self._arg(arg, types_of[name], takes, name)
            for name, arg in zip(names, args, strict=False)
        ]
        named = {name: self._arg(arg, types_of[name], takes, name) for name, arg in kwargs.items()}
        result = func(*args, **kwargs)
        flat = []
        for item in result if isinstance(result, (tuple, list)) else (result,):
            flat.extend(item if isinstance(item, list) else [item])
        flat = [r for r in flat if r is None or isinstance(r, torch.Tensor)]
        if not schema.returns:
            flat = []
        outs = []
        for tensor in flat:
            if tensor is None or id_of(tensor) in known:
                outs.append(Out(NO_SLOT))
            else:
                slot = self._new(tensor)
                outs.append(Out(slot, self._geometry(tensor)))
        name = f"{schema.name}.{schema.overload_name or 'default'}"
        self.state.ops.append([name, recorded, named, outs])
        return result

    def _new(self, tensor):
        slot = ("fresh", sum(kind == "fresh" for kind, _ in self.state.slots.values()))
        self.state.slots[id_of(tensor)] = slot
        with _disable_current_modes():
            # of its own, for `transpose_` and the like change a tensor's geometry in place
            self.state.kept.append(tensor.detach())
        return slot

    def _slot(self, tensor):
        key = id_of(tensor)
        if key not in self.state.slots:
            self.state.slots[key] = ("input", len(self.state.inputs))
            self.state.kept.append(tensor)
            with _disable_current_modes():
                self.state.inputs.append(storage_bytes(tensor.detach()).clone())
        return self.state.slots[key]

    def _geometry(self, tensor):
        return self.state.geometries.setdefault(geometry_of(tensor), len(self.state.geometries))

    def _arg(self, arg, kind, takes, name=""):
        if isinstance(arg, torch.Tensor) and "lengths" in name:
            data = arg.contiguous().numpy().tobytes()
            return HostTensor(str(arg.dtype).removeprefix("torch."), tuple(arg.shape), data)
        if isinstance(arg, torch.Tensor):
            geometry = self._geometry(arg)
            view = self.state.views.setdefault(geometry, len(self.state.views))
            return ("slot", self._slot(arg), view)
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(item, kind, takes) for item in arg)
        if isinstance(arg, torch.dtype):
            return Dtype(str(arg).removeprefix("torch."))
        if isinstance(arg, torch.layout):
            return Layout(str(arg).removeprefix("torch."))
        if isinstance(arg, torch.memory_format):
            return MemoryFormat(str(arg).removeprefix("torch."))
        if isinstance(arg, torch.device):
            return DeviceArgument()
        if isinstance(arg, torch.Generator):
            return GeneratorArg(0)
        if isinstance(arg, complex):
            return Complex(arg.real, arg.imag)
        lifted = (
            self.lift
            and takes
            and isinstance(arg, float)
            and kind in ("number", "Optional[number]", "Tensor", "List[number]")
        )
        if lifted and not isinstance(arg, bool):
            self.state.params.append(arg)
            return Param(len(self.state.params) - 1, "float")
        return arg

    def recording(self, flags=None):
        """The program recorded so far and the storages as they are now."""
        state = self.state
        count = len(state.inputs)

        def number(slot):
            kind, index = slot
            return index if kind == "input" else count + index

        def final(arg):
            if isinstance(arg, tuple) and arg and arg[0] == "slot":
                return Slot(number(arg[1]), arg[2])
            if isinstance(arg, tuple):
                return tuple(final(item) for item in arg)
            return arg

        ops = tuple(
            Op(
                name,
                tuple(final(a) for a in args),
                {k: final(v) for k, v in named.items()},
                tuple(
                    Out(number(o.slot), o.geometry) if isinstance(o.slot, tuple) else o
                    for o in outs
                ),
            )
            for name, args, named, outs in state.ops
        )
        program = Program(
            count,
            ("float",) * len(state.params),
            tuple(state.geometries),
            tuple(View(g) for g in state.views),
            ops,
            flags or Flags(),
        )
        self.program = program
        order = sorted(
            zip((number(s) for s in state.slots.values()), state.kept, strict=True),
            key=lambda pair: pair[0],
        )
        after = [
            storage_bytes(t.detach()).clone() if k < count else t.detach().clone()
            for k, (_, t) in enumerate(order)
        ]
        return Recording(
            encode_program(program),
            tuple(state.params),
            state.inputs,
            after,
            [op.name for op in ops],
            self.rng,
        )


def id_of(tensor):
    """What tells storages apart; the recorder keeps them alive, so it is not reused."""
    return tensor.untyped_storage()._cdata


def _leaves(args):
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from _leaves(arg)
        else:
            yield arg
