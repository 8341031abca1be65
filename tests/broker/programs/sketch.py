"""Small programs by hand, and runs of them on the cpu device."""

import torch

from jgpu.broker.executor.programs import Buffer, RunContext, define
from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.wire.program import (
    NO_SLOT,
    Flags,
    Op,
    Out,
    Program,
    Slot,
    View,
    encode_program,
)

CPU = torch.device("cpu")


def contiguous(*shape, dtype="float32"):
    """The geometry of a contiguous tensor."""
    return geometry_of(torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))


class Sketch:
    """A program in the making; slots are given out as numbers."""

    def __init__(self, inputs=0, params=(), flags=None):
        self.inputs = inputs
        self.params = tuple(params)
        self.flags = flags or Flags()
        self.geometries = {}
        self.views = {}
        self.ops = []
        self.made = inputs

    def seen(self, slot, geometry, offset_param=-1):
        """A tensor argument: the slot seen through a geometry."""
        index = self.geometries.setdefault(geometry, len(self.geometries))
        view = self.views.setdefault((index, offset_param), len(self.views))
        return Slot(slot, view)

    def op(self, name, *args, outs=(), **kwargs):
        """Add an op; `outs` are geometries or None; gives the numbers of the slots it makes."""
        slots = []
        filled = []
        for out in outs:
            if out is None:
                filled.append(Out(NO_SLOT))
                continue
            index = self.geometries.setdefault(out, len(self.geometries))
            filled.append(Out(self.made, index))
            slots.append(self.made)
            self.made += 1
        self.ops.append(Op(f"aten::{name}", args, kwargs, tuple(filled)))
        return slots[0] if len(slots) == 1 else slots

    def bytes(self):
        """The program's canonical bytes."""
        return encode_program(
            Program(
                self.inputs,
                self.params,
                tuple(self.geometries),
                tuple(View(*key) for key in self.views),
                tuple(self.ops),
                self.flags,
            )
        )

    def define(self, device="cpu"):
        """The checked program."""
        return define(self.bytes(), device)


def buffers(*tensors):
    """Buffers with copies of these tensors' storages, numbered from 0."""
    return [Buffer(k, t.clone()) for k, t in enumerate(tensors)]


def context(**kwargs):
    """A run's context with a seeded generator."""
    return RunContext(CPU, {0: torch.Generator().manual_seed(3)}, work=1, **kwargs)


def all_live(definition):
    """The mask that keeps every fresh slot."""
    return b"\xff" * (definition.fresh // 8 + 1)
