"""Which ops a program may call, and what their schemas say of them.

The dispatcher's schemas decide nearly all: an op is callable when it is an aten op with a kernel
for the device, takes nothing but tensors and plain values and yields tensors. The hand-written
list here holds refusals only, each with its reason. Internal ops, which autograd normally calls
and which trust their inputs, need a shape contract besides (`programs.contracts`).

The rule that must not be broken: no name that a client sends is looked up anywhere but in the
dispatcher's own list of ops.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch

from jgpu.errors import ProgramError

__all__ = ["Argument", "OpInfo", "is_internal", "resolve"]

#: Base names (without a trailing underscore) that no program may call: pattern and reason.
_REFUSED: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (
            r".*sparse.*|_?coalesce(d)?|_?indices(_copy)?|_?values(_copy)?|c?(col|row)_indices.*|"
            r"crow_indices.*|_convert_indices.*|_spdiags|to_dense.*|_to_dense|smm|sspaddmm",
            "sparse tensors cannot be used on the shared device; convert with .to_dense() first",
        ),
        (
            r".*quantize.*|q_.*|int_repr|dequantize|.*qparams.*|fbgemm.*|.*_fake_quant|"
            r"_fused_moving_avg.*|.*pack_gemm.*|.*int4pack.*|.*int8pack.*|_dyn_quant.*|"
            r"_saturate_weight.*|_rowwise_prune",
            "quantised tensors cannot be used on the shared device",
        ),
        (
            r".*nested.*|.*jagged.*|to_padded_tensor",
            "nested tensors cannot be used on the shared device; use padded ones",
        ),
        (
            r"to_mkldnn.*|_?mkldnn_(?!rnn_layer).*",
            "these make or take tensors of an opaque layout",
        ),
        (
            r"miopen.*|_?mps_.*|.*_mps|xnnpack.*|vulkan.*|.*_overrideable.*|_propagate_xla.*|"
            r"_?cudnn_(?!rnn$|rnn_backward$).*",
            "these belong to other backends",
        ),
        (r"from_file|from_blob", "programs do not touch files"),
        (
            r"_efficientzerotensor|_zerotensor|_is_zerotensor",
            "such a tensor has no storage; use zeros",
        ),
        (
            r"set|set_data|data|_lazy_clone|_resize_output|_reshape_from_tensor|_version|"
            r"_has_compatible.*|_new_zeros_with_same_feature_meta",
            "these rebind storages, which only the executor does",
        ),
        (
            r"_make_dual.*|_unpack_dual|_fw_primal.*|_?(add|remove)_batch_dim|_backward|"
            r"requires_grad|retains?_grad|_make_dep_token|_autocast.*|is_.*|get_device",
            "these concern autograd and dispatch, which stay in the kernel",
        ),
        (
            r"_test_.*|_debug_.*|_foobar|_print|_assert.*|_functional_assert.*|.*sym_constrain.*|"
            r"sym_.*|_functional_sym.*|_cufft.*|can_cast|.*promote_types|result_type",
            "these compute no tensor",
        ),
        (
            r"record_stream|_?pin_memory|_copy_from.*|_to_cpu|_local_scalar_dense|item",
            "copies between host and device are messages of their own",
        ),
        (
            r"linalg_ldl_solve",
            "its kernel trusts the pivots it is given; use torch.linalg.solve",
        ),
        (
            r"_?slow_conv.*|thnn_conv.*|_?nnpack.*|.*_nnpack_.*|conv_depthwise3d",
            "these kernels trust shapes; call convolution",
        ),
        (r"_?philox.*|_sobol.*", "these keep their random state in tensors that they trust"),
        (r"_triton.*|.*scaled_grouped_mm.*|_grouped_mm|_scaled_mm.*", "these trust their sizes"),
    )
)

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
#: Dispatch keys under which a kernel serves a kind of device.
_COMPOSITE: Final = (
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
_KEYS: Final = {"cpu": "CPU", "cuda": "CUDA", "null": "Meta"}

_INTERNAL: Final = re.compile(r"_(?!_).*|.*_backward(_.*)?|native_.*|.*_forward|mkldnn_.*")


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
class OpInfo:
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


def is_internal(base: str) -> bool:
    """Whether an op of this base name trusts its inputs, so that it needs a contract."""
    return _INTERNAL.fullmatch(base) is not None


@lru_cache(maxsize=4096)
def resolve(name: str, device: str) -> OpInfo:
    """The op that a program calls `name`; raises `ProgramError` with the reason if it may not."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    if namespace != "aten":
        raise ProgramError(f"{name} may not run here: only aten ops may.")
    _check_refusals(name, base.removesuffix("_") if base != "__" else base)
    qualified = f"aten::{base}" if overload in ("", "default") else f"aten::{base}.{overload}"
    if qualified not in _registered():
        raise ProgramError(f"{name} is no op of this torch ({torch.__version__}).")
    keys = (_KEYS[device], *_COMPOSITE)
    if not any(torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key) for key in keys):
        raise ProgramError(f"{name} has no kernel for the device {device!r}.")
    return _describe(name, base, getattr(getattr(torch.ops.aten, base), overload or "default"))


@lru_cache(maxsize=1)
def _registered() -> frozenset[str]:
    return frozenset(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))


def _check_refusals(name: str, base: str) -> None:
    for pattern, reason in _REFUSED:
        if pattern.fullmatch(base):
            raise ProgramError(f"{name} may not run here: {reason}.")


def _describe(name: str, base: str, overload: Any) -> OpInfo:
    schema = overload._schema
    arguments = tuple(_argument(name, argument) for argument in schema.arguments)
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
    return OpInfo(
        name=name,
        base=base,
        overload=overload,
        call=overload._op,
        arguments=arguments,
        returns=returns,
        generator=generators[0] if generators else None,
        seeded=torch.Tag.nondeterministic_seeded in tags,
        dynamic=torch.Tag.dynamic_output_shape in tags,
        resizes=base in ("resize_", "resize_as_")
        or any(a.is_out for a in schema.arguments if a.alias_info),
        internal=is_internal(base),
    )


def _argument(name: str, argument: Any) -> Argument:
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
        written=alias is not None and alias.is_write,
        broadcast=kind in ("ints", "floats") and argument.N is not None,
    )
