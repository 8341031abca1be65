"""Which ops a program may call, and what their schemas say of them.

The dispatcher's schemas decide nearly all: an op is callable when it is an aten op with a kernel
for the device, takes nothing but tensors and plain values and yields tensors. What is refused by
name stands in `wire.vocabulary`, for both ends. Internal ops, which autograd normally calls and
which trust their inputs, need a shape contract besides (`programs.contracts`).

Invariant: no name that a client sends is looked up anywhere but in the dispatcher's own list of
ops.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch

from jgpu.broker.executor.programs.checking import foretold
from jgpu.broker.executor.programs.kinds import KINDS
from jgpu.errors import ProgramError
from jgpu.wire.vocabulary import WRITTEN_UNSAID, is_internal, refusal

__all__ = ["Argument", "OpSchema", "resolve"]

_KINDS: Final = {
    "Tensor": "tensor",
    "List[Tensor]": "tensors",
    "List[Optional[Tensor]]": "optional_tensors",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "number": "number",
    "bool": "bool",
    "str": "str",
    "ScalarType": "dtype",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
    "Device": "device",
    "Generator": "generator",
    "List[int]": "ints",
    "List[float]": "floats",
    "List[number]": "numbers",
    "List[bool]": "bools",
}
#: Ops that are tagged as drawing, and whose kernels draw nothing: they refuse to drop anything.
_DRAW_NOTHING: Final = frozenset({"_scaled_dot_product_flash_attention_for_cpu"})
#: Dispatch keys under which a kernel serves a kind of device.
_COMPOSITE: Final = (
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of an op's schema."""

    name: str
    #: one of the values of `_KINDS`
    kind: str
    optional: bool
    required: bool
    default: Any
    kwarg_only: bool
    #: the op writes to this tensor
    written: bool
    #: a single value may stand for the list
    broadcast: bool


@dataclass(frozen=True, slots=True, eq=False)
class OpSchema:
    """What the schema and the tags of one overload say."""

    name: str
    base: str
    #: the overload, and the C++ callable beneath it (a microsecond less per call)
    overload: Any
    call: Any
    arguments: tuple[Argument, ...]
    #: per return "tensor", "tensors" or "other"
    returns: tuple[str, ...]
    #: index of the generator parameter
    generator: int | None
    #: draws random numbers
    seeded: bool
    #: what it returns depends on data
    dynamic: bool
    #: changes the geometry of an argument (`resize_`), so it never gets a shared view
    resizes: bool
    #: needs a contract
    internal: bool

    @property
    def takes_tensors(self) -> bool:
        """Whether it is not a factory (an `out` alone does not count)."""
        return any("tensor" in a.kind and not (a.kwarg_only and a.written) for a in self.arguments)


foretold.install()


@lru_cache(maxsize=4096)
def resolve(name: str, device: str) -> OpSchema:
    """The op that a program calls `name`; raises `ProgramError` with the reason if it may not."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    if namespace != "aten":
        raise ProgramError(f"{name} may not run here: only aten ops may.")
    reason = refusal(base)
    if reason is not None:
        raise ProgramError(f"{name} may not run here: {reason}.")
    qualified = f"aten::{base}" if overload in ("", "default") else f"aten::{base}.{overload}"
    if qualified not in _registered():
        raise ProgramError(f"{name} is no op of this torch ({torch.__version__}).")
    keys = (*KINDS[device].keys, *_COMPOSITE)
    if not any(torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key) for key in keys):
        raise ProgramError(f"{name} has no kernel for the device {device!r}.")
    return _describe(name, base, getattr(getattr(torch.ops.aten, base), overload or "default"))


@lru_cache(maxsize=1)
def _registered() -> frozenset[str]:
    return frozenset(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))


def _describe(name: str, base: str, overload: Any) -> OpSchema:
    schema = overload._schema
    arguments = tuple(_argument(name, base, argument) for argument in schema.arguments)
    returns = tuple(
        {"Tensor": "tensor", "List[Tensor]": "tensors"}.get(str(r.real_type), "other")
        for r in schema.returns
    )
    written = any(argument.written for argument in arguments)
    if not written and all(kind == "other" for kind in returns):
        raise ProgramError(f"{name} may not run here: it computes no tensor.")
    tags = overload.tags
    if torch.Tag.inplace_view in tags and base not in ("resize_", "resize_as_"):
        raise ProgramError(f"{name} may not run here: views are made by geometry.")
    generators = [i for i, argument in enumerate(arguments) if argument.kind == "generator"]
    return OpSchema(
        name=name,
        base=base,
        overload=overload,
        call=overload._op,
        arguments=arguments,
        returns=returns,
        generator=generators[0] if generators else None,
        seeded=torch.Tag.nondeterministic_seeded in tags and base not in _DRAW_NOTHING,
        dynamic=torch.Tag.dynamic_output_shape in tags,
        resizes=base in ("resize_", "resize_as_")
        or any(a.is_out for a in schema.arguments if a.alias_info),
        internal=is_internal(base),
    )


def _argument(name: str, base: str, argument: Any) -> Argument:
    text = str(argument.real_type)
    inner = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Opt") else text
    kind = _KINDS.get(inner)
    if kind is None:
        raise ProgramError(f"{name} may not run here: it takes a {inner}.")
    alias = argument.alias_info
    return Argument(
        name=argument.name,
        kind=kind,
        optional=inner != text,
        required=not argument.has_default_value(),
        default=argument.default_value,
        kwarg_only=argument.kwarg_only,
        written=(alias is not None and alias.is_write) or (base, argument.name) in WRITTEN_UNSAID,
        broadcast=kind in ("ints", "floats") and argument.N is not None,
    )
