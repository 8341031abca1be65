"""What the device would do by itself, where torch asks the device (messages `ChooseAttention`,
`ChooseNorm` and `LayOutWeights`).

On CUDA torch's own functions decide, on scratch tensors, once for each question. The `null` device
has no libraries: there the first kernel that is allowed and takes such arguments is chosen, and
weights lie one behind another.

Invariant: a question is answered under its own switches of torch, and nothing else runs under them
that has others.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import blake2b
from typing import Any, Final

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.programs.checking.inference import scratch
from jgpu.broker.executor.programs.flags import check_flags, gate
from jgpu.broker.executor.programs.geometry import dtype_of, intern, required_bytes
from jgpu.broker.executor.programs.kinds import KINDS, DeviceKind
from jgpu.broker.executor.programs.shared import SharedEntries
from jgpu.errors import ProgramError
from jgpu.wire.messages import ChooseAttention, ChooseNorm, LayOutWeights
from jgpu.wire.program import Flags, Geometry
from jgpu.wire.switches import ATTENTION

__all__ = ["Chooser", "choice_of"]

Question = ChooseAttention | ChooseNorm | LayOutWeights

_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)
#: Kernels by number, with the word in torch's names of their switches.
_SWITCHES: Final = {
    _MATH: "math",
    _FLASH: "flash",
    _EFFICIENT: "mem_efficient",
    _CUDNN: "cudnn",
}
#: Kernels in the order that torch prefers where no device is asked.
_ORDER: Final = tuple(torch._C._get_sdp_priority_order())
#: Bytes of an answer beside its numbers, in the tables that hold it.
_ENTRY_BYTES: Final = 512
#: Types that torch has recurrent layers of cuDNN for, if the device has.
_RECURRENT: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def choice_of(question: Question) -> bytes:
    """What the answer to a question is kept under, whoever asks."""
    plain = msgspec.structs.replace(question, request=0)
    return blake2b(msgspec.msgpack.encode(plain), digest_size=16).digest()


class Chooser:
    """Asks torch, and remembers; `most_bytes` bounds the scratch memory of one question.

    Larger tensors of attention are only outlined; larger weights are not packed, so that their
    layers are computed step by step. `ask` may be called on any thread, all else on one.
    """

    def __init__(
        self,
        device: DeviceKind,
        most: int = 4096,
        most_bytes: int = 256 << 20,
        kept_bytes: int = 16 << 20,
        around: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        """`around`: a context in which ops are those of the device, if torch's own are not."""
        self.device: DeviceKind = device
        self._around = around
        self.most_bytes = most_bytes
        self._known: SharedEntries[tuple[int, ...]] = SharedEntries(most, kept_bytes)

    def __len__(self) -> int:
        return len(self._known)

    def known(self, question: bytes, identity: str) -> tuple[int, ...] | None:
        """The answer, if it was given before; `identity` is who asks."""
        return self._known.get(question, identity)

    def remember(self, question: bytes, identity: str, answer: tuple[int, ...]) -> None:
        """Keep an answer that `ask` gave."""
        if self._known.get(question, identity) is None:
            self._known.add(question, identity, answer, _ENTRY_BYTES + 40 * len(answer))

    def ask(self, question: Question) -> tuple[int, ...]:
        """The numbers of `Chosen`; raises what torch raises, `ProgramError` for what cannot be."""
        check_flags(question.flags)
        if isinstance(question, ChooseAttention):
            with gate.passing(_switched(question)):
                return (self._attention(question),)
        with gate.passing(question.flags):
            if isinstance(question, ChooseNorm):
                return (self._norm(question),)
            return self._weights(question)

    # -- attention ---------------------------------------------------------------------------

    def _attention(self, question: ChooseAttention) -> int:
        if not KINDS[self.device].computes:
            return _first_allowed(question)
        if not KINDS[self.device].has_cuda_kernels:
            raise ProgramError("This device has no choice of attention kernels.")
        with (
            torch.enable_grad(),
            self._around() if self._around else torch._C._DisableTorchDispatch(),
        ):
            tensors = [
                None if geometry is None else self._outline(geometry, wanted)
                for geometry, wanted in zip(
                    (question.query, question.key, question.value, question.mask),
                    question.differentiated,
                    strict=True,
                )
            ]
            return int(
                torch.ops.aten._fused_sdp_choice.default(
                    *tensors,
                    question.dropout,
                    question.causal,
                    scale=question.scale,
                    enable_gqa=question.grouped,
                )
            )

    def _outline(self, geometry: Geometry, differentiated: bool) -> torch.Tensor:
        device = KINDS[self.device].asked_on or KINDS[self.device].place
        if 4 * required_bytes(geometry) <= self.most_bytes:  # there are four of them
            made = scratch(geometry, device)
        else:
            made = _Outline.of(geometry, device)
        return made.requires_grad_(differentiated and made.is_floating_point())

    # -- batch norm --------------------------------------------------------------------------

    def _norm(self, question: ChooseNorm) -> int:
        if not KINDS[self.device].computes or self._around is not None:
            return _first_norm(question)
        if not KINDS[self.device].has_cuda_kernels:
            raise ProgramError("This device has no choice of batch norms.")
        device = KINDS[self.device].place
        given = (
            *(question.input, question.weight, question.bias),
            *(question.running_mean, question.running_var),
        )
        tensors = []
        for geometry in given:
            if geometry is not None:
                required_bytes(geometry)
            tensors.append(None if geometry is None else _Outline.of(geometry, device))
        first = _First(torch.ops.aten.cudnn_batch_norm.default)
        # an outline computes nothing
        with suppress(_Taken, NotImplementedError), torch.no_grad(), first:
            torch.ops.aten._batch_norm_impl_index.default(
                *tensors, question.training, 0.1, question.epsilon, question.flags.cudnn_enabled
            )
        return int(first.taken)

    # -- recurrent layers --------------------------------------------------------------------

    def _weights(self, question: LayOutWeights) -> tuple[int, ...]:
        count = question.each * question.layers * (2 if question.bidirectional else 1)
        if len(question.weights) != count or any(not w.shape for w in question.weights):
            raise ProgramError(f"{count} weights are needed, not {len(question.weights)}.")
        dtype = dtype_of(question.weights[0].dtype)
        if dtype not in _RECURRENT or not question.flags.cudnn_enabled:
            return ()
        if any(weight.dtype != question.weights[0].dtype for weight in question.weights):
            raise ProgramError("Weights of a recurrent layer are of one type.")
        shapes = [weight.shape for weight in question.weights]
        for weight in question.weights:
            required_bytes(weight)
        if sum(math.prod(shape) for shape in shapes) * dtype.itemsize > self.most_bytes:
            return ()
        if not KINDS[self.device].computes:
            return _one_behind_another(question, shapes)
        if not KINDS[self.device].has_cuda_kernels:
            raise ProgramError("This device does not pack weights.")
        device = KINDS[self.device].asked_on or KINDS[self.device].place
        if self._around is None and not _takes_cudnn(dtype, device):
            return ()
        zero = torch.zeros((), dtype=dtype, device=device)
        weights = [zero.expand(shape) for shape in shapes]
        with torch.no_grad(), self._around() if self._around else nullcontext():
            packed = torch.ops.aten._cudnn_rnn_flatten_weight.default(
                weights,
                question.each,
                question.features,
                question.mode,
                question.hidden,
                question.projection,
                question.layers,
                False,
                question.bidirectional,
            )
        places = (w.data_ptr() - packed.data_ptr() for w in weights)
        return int(packed.numel()), *(place // dtype.itemsize for place in places)


class _Outline(torch.Tensor):
    """A tensor without memory, for what only looks at sizes."""

    @classmethod
    def of(cls, geometry: Geometry, device: torch.device) -> torch.Tensor:
        """Of this geometry, on this device."""
        spec = intern(geometry)
        made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
            cls, spec.shape, spec.stride, spec.offset, None, spec.dtype, torch.strided, device
        )
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def _first_allowed(question: ChooseAttention) -> int:
    """Without a device to ask: by the rules that hold on every one."""
    query = intern(question.query)
    fused = len(query.shape) == 4 and 0 not in query.shape and query.stride[-1] == 1
    takes = {
        _MATH: True,
        _FLASH: fused and question.mask is None and query.dtype in (torch.float16, torch.bfloat16),
        _EFFICIENT: fused and query.dtype is not torch.float64,
        _CUDNN: fused and query.dtype in (torch.float16, torch.bfloat16),
    }
    order = [*(question.preferred or _ORDER), *_SWITCHES]
    for kernel in order:
        if kernel in question.allowed and takes.get(kernel, False):
            return kernel
    raise RuntimeError("No available kernel. Aborting execution.")


def _one_behind_another(
    question: LayOutWeights, shapes: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    places, total = [], 0
    for shape in shapes:
        places.append(total)
        total += math.prod(shape)
    if question.each == 2 + bool(question.projection):  # cuDNN keeps room for biases
        rows = shapes[0][0]
        total += 2 * rows * (len(shapes) // question.each)
    return total, *places


def _switched(question: ChooseAttention) -> Flags:
    """Torch's switches as the notebook has them, those of attention among them."""
    flags = question.flags
    bits = flags.attention
    for kernel, word in _SWITCHES.items():
        bit = 1 << ATTENTION.index(word)
        bits = bits | bit if kernel in question.allowed else bits & ~bit
    orders = sorted(question.preferred) == sorted(torch._C._get_sdp_priority_order())
    order = question.preferred if orders else flags.attention_order
    return msgspec.structs.replace(flags, attention=bits, attention_order=order)


def _first_norm(question: ChooseNorm) -> int:
    """Without a device to ask: cuDNN where torch may take it at all."""
    dtype, weight = dtype_of(question.input.dtype), question.weight
    if weight is None or question.bias is None or not question.flags.cudnn_enabled:
        return 0
    fits = dtype in (torch.float32, torch.float64) or (
        dtype is torch.float16 and dtype_of(weight.dtype) is torch.float32
    )
    has_statistics = question.running_mean is not None and question.running_var is not None
    return int(fits and len(question.input.shape) >= 3 and (question.training or has_statistics))


class _Taken(Exception):
    """A composite reached the kernel that was waited for."""


class _First(TorchDispatchMode):
    """Notes whether a kernel of cuDNN is called, and stops there."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self._kernel = kernel
        self.taken = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._kernel:
            self.taken = True
            raise _Taken
        return func(*args, **(kwargs or {}))


def _takes_cudnn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch takes cuDNN for recurrent layers of this type on this device."""
    one = torch.zeros(1, 1, 1, dtype=dtype, device=device)
    weights = [one[0], one[0].clone(), one[0, 0], one[0, 0].clone()]
    first = _First(torch.ops.aten._cudnn_rnn.default)
    with torch.no_grad(), first:
        try:
            torch.ops.aten.rnn_tanh.input(one, one, weights, True, 1, 0.0, False, False, False)
        except _Taken:
            pass
        except RuntimeError:  # a kernel for this type does not exist: the answer is no as well
            return first.taken
    return first.taken
