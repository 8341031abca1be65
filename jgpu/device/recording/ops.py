"""What kind of op is it? Decided here, from torch's own schemas, once per op.

Five kinds: STREAM (recorded, no wait), VIEW (no message: geometry over the same buffer), COPY
(uploads, and downloads, which wait), WAIT (flush and one round trip), REFUSED (an error that
names an alternative); FACT, which geometries alone answer (`is_same_size`); ANSWERED, which the
kernel itself answers (`answers`); and COMPOSITE, which torch takes apart itself. The schema has the
aliases and the written arguments; the few names below are missing in schemas, each with its reason.

`OpInfo.lift` decides which numbers become run parameters (no geometry depends on these): number
and float arguments of ops that take a tensor, never ints, lists of floats, or factories' numbers.
"""

from typing import Any, Final
from zlib import crc32

import torch

from jgpu.wire.vocabulary import WRITTEN_UNSAID, is_internal, refusal

__all__ = [
    "ANSWERED",
    "ASKS_GRAD_MODE",
    "ASK_GRAD_MODE",
    "CHOOSES_KERNEL",
    "CHOOSE_KERNEL",
    "COMPOSITE",
    "CONJUGATE_OUT",
    "COPIES",
    "COPY",
    "DATA_DEPENDENT",
    "FACT",
    "FOREIGN",
    "HOST_ARGUMENTS",
    "PROBED",
    "PROBED_HALF",
    "PROBED_PERMUTED",
    "REFUSALS",
    "REFUSED",
    "SILENT_VIEWS",
    "STREAM",
    "VIEW",
    "WAIT",
    "WITH_OWN_KERNELS",
    "OpInfo",
    "info_of",
    "infos",
]

STREAM: Final = 0
VIEW: Final = 1
COPY: Final = 2
WAIT: Final = 3
REFUSED: Final = 4
FACT: Final = 5
COMPOSITE: Final = 6
ASKS_GRAD_MODE: Final = 7
ANSWERED: Final = 8
CHOOSES_KERNEL: Final = 9

#: Transfers between host and device, or conversions that may be either.
COPIES: Final = frozenset({
    "aten::_to_copy",
    "aten::copy_",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_local_scalar_dense",
    "aten::_pin_memory",
    "aten::_linalg_check_errors",  # reads a tensor of codes and raises: a wait, as on CUDA
})  # fmt: skip

#: Output sizes depend on data: one round trip brings them. Ops without a meta kernel wait too.
DATA_DEPENDENT: Final = {
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive",
    "aten::bincount", "aten::repeat_interleave.Tensor", "aten::linalg_lstsq", "aten::argwhere",
    "aten::nonzero.out", "aten::masked_select.out",
}  # fmt: skip

#: Ops on lists whose overload `Tensor` has the numbers in a tensor of the host.
WITH_NUMBERS: Final = (
    "_foreach_addcdiv", "_foreach_addcdiv_", "_foreach_addcmul", "_foreach_addcmul_",
)  # fmt: skip

#: Answered in the kernel: by `answers`, in so many words.
_ANSWERED: Final = frozenset({
    "aten::equal", "aten::allclose", "aten::is_set_to", "aten::_assert_async",
    "aten::_assert_async.msg", "aten::_pack_padded_sequence", "aten::_ctc_loss.Tensor",
    "aten::_ctc_loss_backward.Tensor", "aten::_efficientzerotensor",
    "aten::_embedding_bag_backward", "aten::_nested_tensor_from_mask_left_aligned",
    "aten::_new_zeros_with_same_feature_meta", "aten::mm.dtype", "aten::mm.dtype_out",
    "aten::addmm.dtype", "aten::addmm.dtype_out", "aten::bmm.dtype", "aten::bmm.dtype_out",
    "aten::baddbmm.dtype", "aten::baddbmm.dtype_out",
}) | {f"aten::{name}.Tensor" for name in WITH_NUMBERS}  # fmt: skip

#: Meta kernels that disagree with the device's own kernels in shape or stride (measured over
#: PyTorch's op database, 28 ops): the executor answers once per new geometry.
PROBED: Final = frozenset({
    "aten::convolution", "aten::convolution_backward", "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only", "aten::_fft_c2r", "aten::_fft_r2c", "aten::_fft_c2c",
    "aten::_linalg_svd", "aten::linalg_eig", "aten::_batch_norm_with_update",
    "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats",
    "aten::_native_batch_norm_legit_no_training",
    "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward",
    "aten::native_batch_norm", "aten::native_batch_norm_backward", "aten::batch_norm_backward",
    "aten::native_layer_norm_backward", "aten::mkldnn_rnn_layer",
    "aten::mkldnn_rnn_layer_backward", "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "aten::channel_shuffle",
    "aten::pixel_shuffle", "aten::max_unpool2d", "aten::replication_pad2d",
    "aten::replication_pad2d_backward", "aten::native_group_norm",
    "aten::native_group_norm_backward", "aten::_transformer_encoder_layer_fwd",
    "aten::_native_multi_head_attention", "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward",
    "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention", "aten::log_sigmoid_forward", "aten::ormqr",
    "aten::multilabel_margin_loss_forward", "aten::nonzero_static",
})  # fmt: skip

#: As above, but only where an input is not contiguous: TensorIterator's permuted outputs.
PROBED_PERMUTED: Final = frozenset({
    "aten::_log_softmax_backward_data", "aten::_softmax_backward_data", "aten::copysign.Tensor",
    "aten::div.Tensor_mode", "aten::floor_divide", "aten::glu_backward", "aten::heaviside",
    "aten::huber_loss_backward", "aten::index.Tensor", "aten::ldexp.Tensor", "aten::logaddexp",
    "aten::logaddexp2", "aten::logical_and", "aten::logical_or", "aten::logical_xor",
    "aten::max_pool3d_with_indices", "aten::max_pool3d_with_indices_backward",
    "aten::mse_loss_backward", "aten::native_dropout_backward", "aten::nll_loss2d_forward",
    "aten::normal.Tensor_Tensor", "aten::pow.Scalar", "aten::reflection_pad2d",
    "aten::reflection_pad2d_backward", "aten::reflection_pad3d", "aten::reflection_pad3d_backward",
    "aten::replication_pad3d", "aten::replication_pad3d_backward", "aten::smooth_l1_loss_backward",
    "aten::special_xlog1py", "aten::xlogy.Tensor",
})  # fmt: skip

#: As above, but only for half precision, whose statistics the CPU keeps in another type.
PROBED_HALF: Final = frozenset({"aten::native_layer_norm"})

#: Refusals in addition to those of `wire.vocabulary`, each with an alternative.
REFUSALS: Final = {
    "aten::record_stream": "streams share one order on the shared device; leave the call out",
}

#: The error text for an op of an extension that has its own kernels.
FOREIGN: Final = "only PyTorch's own ops run there, and ops that are written in terms of them"

#: The error text for functional collectives; `collectives` handles the others.
_COLLECTIVE: Final = "use the collectives of torch.distributed that write into tensors"

#: Host tensors that these ops take natively on CUDA too; they travel with the program's inputs.
HOST_ARGUMENTS: Final = frozenset({
    "aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_",
    "aten::_unsafe_index.Tensor", "aten::_unsafe_index_put", "aten::bernoulli_.Tensor",
})  # fmt: skip

#: Ops that may return an alias of their input without saying so; here they always do.
SILENT_VIEWS: Final = frozenset({
    "aten::_unsafe_view", "aten::_reshape_alias", "aten::lift", "aten::lift_fresh",
    "aten::unsafe_split", "aten::unsafe_split_with_sizes",
})  # fmt: skip


#: Leave what they write conjugated by a bit of its tensor, which a geometry does not show.
CONJUGATE_OUT: Final = frozenset({"aten::linalg_lu_solve"})

#: Composites that the CPU's and CUDA's torch nevertheless have kernels for, which must be taken;
#: of other overloads, such as `vec` of the upsample family, torch has none.
WITH_OWN_KERNELS: Final = (
    "silu_backward", "mish_backward", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)  # fmt: skip

#: Kernels that look at grad mode themselves (a workspace only if a backward may follow).
ASK_GRAD_MODE: Final = frozenset({"aten::mkldnn_rnn_layer"})


#: Kernels of CUDA that choose among those of attention, by torch's switches.
CHOOSE_KERNEL: Final = frozenset({
    "aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd",
})  # fmt: skip


class OpInfo:
    """One aten overload: its kind, what it lifts, what it writes and returns."""

    __slots__ = (
        "arguments", "by_function", "call", "composite", "factory", "func", "functional",
        "in_place", "inplace_view", "keyword_lift", "kind", "lift", "mark", "name", "out_names",
        "positions", "probed", "probed_half", "probed_permuted", "reduces_in_out_dtype", "refusal",
        "returns", "seeded", "takes_tensor", "unsaid", "writes",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.call = func._op
        self.name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        #: identifies the op, by the same number in each process
        self.mark = crc32(self.name.encode())
        self.arguments = schema.arguments
        self.positions = {argument.name: i for i, argument in enumerate(schema.arguments)}
        #: positions of the arguments that the op writes
        self.writes = tuple(
            i for i, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )  # fmt: skip
        base = schema.name.partition("::")[2]
        #: positions of arguments that its kernels write although its schema does not mark them
        self.unsaid = tuple(
            i for i, each in enumerate(schema.arguments) if (base, each.name) in WRITTEN_UNSAID
        )
        #: for each return: position of the argument it aliases, or -1 for a new tensor
        self.returns = tuple(self._aliased(ret) for ret in schema.returns)
        self.takes_tensor = any(
            "Tensor" in str(argument.type) and not _is_out(argument)
            for argument in schema.arguments
        )
        self.factory = not self.takes_tensor
        lifted = () if self.factory else schema.arguments
        self.lift = tuple(_liftable(argument) for argument in lifted)
        self.keyword_lift = {a.name: flag for a, flag in zip(lifted, self.lift, strict=True)}
        tags = func.tags
        self.inplace_view = torch.Tag.inplace_view in tags
        #: the common in-place form: writes self alone and returns it
        self.in_place = self.writes == (0,) and self.returns == (0,) and not self.inplace_view
        self.probed = self.name in PROBED
        self.probed_permuted = self.name in PROBED_PERMUTED
        self.probed_half = self.name in PROBED_HALF
        #: draws random numbers
        self.seeded = torch.Tag.nondeterministic_seeded in tags or "generator" in self.positions
        #: the dispatch key of the kernel that takes a composite apart
        self.composite = _composite_key(func)
        #: names of the arguments that are only written, and the overload that returns them instead
        self.out_names = tuple(a.name for a in schema.arguments if _is_out(a))
        self.functional = _functional(func, schema) if self.out_names else None
        #: always takes the way over `functional`: internal ops trust the size of what they write
        #: with `out=`, what it adds up it adds up in the type of that
        self.reduces_in_out_dtype = len(self.out_names) == 1 and "dtype" in self.positions
        self.by_function = self.functional is not None and (
            is_internal(schema.name[6:]) or schema.name in CONJUGATE_OUT
        )
        #: why it may not run, and what to do instead
        self.refusal = self._refusal()
        self.kind = self._kind(tags)

    def _aliased(self, ret: Any) -> int:
        if ret.alias_info is None:
            return -1
        names = ret.alias_info.before_set | ret.alias_info.after_set
        for i, argument in enumerate(self.arguments):
            info = argument.alias_info
            if info is not None and names & (info.before_set | info.after_set):
                return i
        return -1

    def _refusal(self) -> str | None:
        namespace, _, base = self.func._schema.name.partition("::")
        if namespace == "_c10d_functional":
            return _COLLECTIVE
        if namespace != "aten":
            return FOREIGN
        return REFUSALS.get(self.func._schema.name) or refusal(base)

    def _kind(self, tags: Any) -> int:
        base = self.name.partition(".")[0]
        if base in COPIES:
            return COPY
        if base in ASK_GRAD_MODE:
            return ASKS_GRAD_MODE
        if base in CHOOSE_KERNEL:
            return CHOOSES_KERNEL
        if base in SILENT_VIEWS:
            return VIEW
        if self.name in _ANSWERED:
            return ANSWERED
        if self.composite is not None and self.name[6:] not in WITH_OWN_KERNELS:
            return COMPOSITE
        if base in REFUSALS or not base.startswith("aten::"):
            return REFUSED
        if self.inplace_view:
            return VIEW
        if self.name in DATA_DEPENDENT or base in DATA_DEPENDENT:
            return WAIT
        if self.func.is_view:
            return VIEW
        returned = any("Tensor" in str(ret.type) for ret in self.func._schema.returns)
        if not returned and not self.writes:
            return FACT
        if self.refusal is not None:
            return REFUSED
        dynamic = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        return WAIT if dynamic else STREAM


def _composite_key(func: Any) -> Any:
    """Which kernel of an op only calls other ops; None for the device's own ops.

    Kernels of a library for the device itself (`torch.library.custom_op`) are written in Python,
    and take precedence over those for every device. Torch's own kernels of `c10d` for the device
    are in C++, for devices with a backend there.
    """
    keys = torch._C.DispatchKey
    of_library = func.namespace != "aten"
    for_device = func.has_kernel_for_dispatch_key(keys.PrivateUse1)
    if of_library and for_device and func.namespace != "c10d":
        return keys.PrivateUse1
    if func._can_decompose():
        return keys.CompositeImplicitAutograd
    if of_library and func.has_kernel_for_dispatch_key(keys.CompositeExplicitAutograd):
        return keys.CompositeExplicitAutograd
    return None


def _functional(func: Any, schema: Any) -> Any:
    """The overload of the same packet that returns what this one writes into its outs."""
    inputs = [_told(a) for a in schema.arguments if not _is_out(a)]
    packet = func.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        if [_told(a) for a in other._schema.arguments] == inputs:
            return other
    return None


def _told(argument: Any) -> tuple[str, str, bool]:
    """Name, type, and whether the op writes it."""
    info = argument.alias_info
    return argument.name, str(argument.type), info is not None and info.is_write


def _is_out(argument: Any) -> bool:
    """An argument that is only written: `out=` and its like."""
    info = argument.alias_info
    return bool(argument.kwarg_only and info is not None and info.is_write)


def _liftable(argument: Any) -> int:
    """0: no; 1: a number, float, or a number in place of a tensor; 2: a list of numbers."""
    text = str(argument.type).removeprefix("Optional[").removesuffix("]")
    if argument.name.startswith("scales"):  # the upsample family's, which shape the result
        return 0
    if text in ("number", "float", "Tensor"):
        return 1
    return 2 if str(argument.type) == "List[number]" else 0


infos: dict[Any, OpInfo] = {}


def info_of(func: Any) -> OpInfo:
    """The `OpInfo` of an overload, made at first use."""
    found = infos.get(id(func))
    if found is None:
        found = infos[id(func)] = OpInfo(func)
    return found
