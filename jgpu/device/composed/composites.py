"""Composite ops that branch on the device: lowered as the executor's device would lower them.

Left alone, PyTorch treats the backend as "some GPU": LSTM and GRU pick CUDA-only cells, attention
decomposes into the quadratic math path, dropout takes the fused kernel.

Where the executor computes on the CPU such an op runs once more, at the autograd key, on stand-ins
(`Face`) that share the buffers and say that they live on the CPU. Torch's own code then chooses,
its own formulas differentiate, and every primitive that it reaches is recorded as usual: forward
and gradients are native, bit for bit. Inside a transform of `torch.func`, which has wrapped the
tensors, and in forward mode stand-ins are above autograd: a primitive goes to what they stand for
as if the composite had called it.

On a CUDA executor being taken for a GPU is right: dropout and cells are left to torch. Attention
and recurrent layers, where torch asks the device itself, have modules of their own. Nothing here
ever says that it lives on CUDA: autograd would ask CUDA for a stream, which ends the process.

The list of ops is `LOWERED`, each with the branch that makes it necessary.
"""

import functools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.accelerator import loading
from jgpu.device import current
from jgpu.device.composed import branches, encoders, recurrent, steps
from jgpu.device.composed.attention import oncuda, onhost
from jgpu.device.composed.steps import are_ours, is_transformed, is_wrapped
from jgpu.device.likenative import mixed, words
from jgpu.device.recording import copies, dispatch
from jgpu.device.recording.casts import Uncast
from jgpu.device.recording.ops import COMPOSITE, info_of
from jgpu.device.tensor import DeviceTensor, device, set_data, wrap
from jgpu.device.tracebacks import unseen

__all__ = ["FOR_SUBCLASSES", "LOWERED", "Face", "install"]

#: op: why the backend's own branch is not the executor's
LOWERED = {
    "lstm.input": "picks the CUDA-only fused cell",
    "lstm.data": "picks the CUDA-only fused cell",
    "gru.input": "picks the CUDA-only fused cell",
    "gru.data": "picks the CUDA-only fused cell",
    "rnn_tanh.input": "shares gru's and lstm's layer code",
    "rnn_tanh.data": "shares gru's and lstm's layer code",
    "rnn_relu.input": "shares gru's and lstm's layer code",
    "rnn_relu.data": "shares gru's and lstm's layer code",
    "lstm_cell": "picks the CUDA-only fused cell",
    "gru_cell": "picks the CUDA-only fused cell",
    "scaled_dot_product_attention": "falls to the math path, of other bits and N^2 memory",
    "dropout": "takes native_dropout, which draws other random numbers than the CPU's way",
}

_library: Any = None
_make = torch.Tensor._make_wrapper_subclass
_CPU = torch.device("cpu")
_Exclude: Any = torch._C._ExcludeDispatchKeyGuard
#: the casts of the host's autocast, which are not for stand-ins
_HOST_CASTS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
#: keys at which `vmap` has torch's composites before any device is asked
_TAKEN_APART_IN_TRANSFORMS: Final = ("FuncTorchVmapMode", "FuncTorchBatchedDecomposition")
#: how a loss is reduced, as torch's enumeration has it
_MEAN: Final = 1
#: the number of a node of the graph that goes before all others that are ready
_AT_ONCE: Final = 2**64 - 1


class Face(torch.Tensor):
    """Stands for a device tensor inside a composite; says that it is on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    #: the device's, or what a transform has made of one
    _twin: Any
    #: the dispatcher's state where a transform's composite began: the keys included and excluded
    _outside: Any = None

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        info = info_of(func)
        if info.kind == COMPOSITE:  # it arrives whole in inference mode
            return dispatch.take_apart(info, args, kwargs or {})
        faces: dict[int, Face] = {}
        outside: Any = None

        def twin(value: Any) -> Any:
            nonlocal outside
            if isinstance(value, Face):
                faces[id(value._twin)] = value
                outside = outside or value._outside
                return value._twin
            if isinstance(value, list | tuple):
                return [twin(item) for item in value]
            if type(value) is torch.Tensor and (value.dim() or mixed.compares(info)):
                return copies.upload(value)  # a formula's own zeros
            return value

        def face(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and (outside or isinstance(value, DeviceTensor)):
                found = faces.get(id(value))
                return face_of(value, outside) if found is None else found
            if isinstance(value, list | tuple):
                return type(value)(face(item) for item in value)
            return value

        arguments = tuple(twin(value) for value in args)
        keywords = {name: twin(value) for name, value in (kwargs or {}).items()}
        if "device" in keywords:
            keywords["device"] = None
        if outside is None:
            result = dispatch.dispatch(func, arguments, keywords)
        else:
            with torch._C._ForceDispatchKeyGuard(*outside):
                result = func(*arguments, **keywords)
        for each in faces.values():
            each._follow()
        return face(result)

    def _follow(self) -> None:
        """Take on the geometry that an op gave the twin in place."""
        twin = self._twin
        if self.shape != twin.shape or self.stride() != twin.stride():
            set_data(self, face_of(twin))


class _Factories(TorchDispatchMode):
    """Tensors that a composite makes for itself live where its arguments live."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        if not info_of(func).factory or "device" not in keywords:
            return func(*args, **keywords)
        return face_of(dispatch.dispatch(func, args, {**keywords, "device": device()}))


def face_of(tensor: torch.Tensor, outside: Any = None, *, wanted: bool = False) -> Face:
    """The stand-in of a device tensor; inside a transform, with the state outside of the op.

    There it says whether a gradient is wanted, by which `matmul` chooses its way.
    """
    made = _make(
        Face, tensor.shape, tensor.stride(), tensor.storage_offset(), None,
        tensor.dtype, torch.strided, _CPU, requires_grad=wanted,
    )  # fmt: skip
    made._twin, made._outside = tensor, outside
    result: Face = made
    return result


def _is_cuda() -> bool:
    return current.session.device_facts().has_cuda_kernels


class _ToFace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return face_of(_plain(tensor))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _FromFace.apply(grad)


class _FromFace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, face: Any) -> Any:
        twin = face._twin if isinstance(face, Face) else face
        return wrap(twin._b, twin._g, twin._o) if isinstance(twin, DeviceTensor) else twin

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _ToFace.apply(grad)


def _plain(tensor: DeviceTensor) -> DeviceTensor:
    return wrap(tensor._b, tensor._g, tensor._o)


def _enter(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        face = _ToFace.apply(value)
        if face.grad_fn is not None:
            # It hands a gradient on at once, as if it were not there: natively those of a tensor
            # that is given twice are added up one by one, in the order in which they come.
            face.grad_fn._set_sequence_nr(_AT_ONCE)
        elif value.requires_grad:
            face.requires_grad_()  # without gradients, too, `matmul` chooses its way by that
        return face
    if isinstance(value, list | tuple):
        return [_enter(item) for item in value]
    return value


def _leave(value: Any) -> Any:
    if isinstance(value, Face):
        return _FromFace.apply(value)
    if isinstance(value, list | tuple):
        return type(value)(_leave(item) for item in value)
    return value


def lower(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a composite as the executor's device would."""
    _check_devices(op._schema.name[6:], op._schema.overload_name, args, kwargs)
    if _is_cuda():
        return _as_on_cuda(op, args, kwargs)
    step = steps.step_of(op._schema.name[6:], args, kwargs)
    if step is not None:
        return step(*args, **kwargs)
    given = [*_tensors(args), *_tensors(kwargs.values())]
    if forward_ad._current_level >= 0 or any(is_wrapped(each) for each in given):
        return _lower_above_autograd(op, args, kwargs)
    if torch.is_inference_mode_enabled():
        # Stand-ins of normal tensors are normal: what a composite asks of its views hangs on it.
        with torch.inference_mode(False), torch.no_grad(), dispatch.as_it_came():
            entered, result = _done_on_faces(op, args, kwargs)
    else:
        entered, result = _done_on_faces(op, args, kwargs)
    for argument, face in zip(args, entered, strict=True):
        if result is face:  # dropout in evaluation: no node in the graph, as natively
            return argument
    return _leave(result)


def _done_on_faces(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], Any]:
    """The stand-ins of a composite's arguments, and what it returns for them."""
    entered = tuple(_enter(value) for value in args)
    keywords = {name: _enter(value) for name, value in kwargs.items()}
    with _Factories(), _Exclude(_HOST_CASTS):
        return entered, op(*entered, **keywords)


def _lower_above_autograd(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where another than autograd differentiates, on stand-ins that it does not see.

    So do transforms of `torch.func`, and derivatives in forward mode: by the primitives.
    """
    outside = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    def entered(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device == device():
            return face_of(value, outside, wanted=value.requires_grad)
        if isinstance(value, list | tuple):
            return [entered(item) for item in value]
        return value

    def left(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(left(item) for item in value)
        return value._twin if isinstance(value, Face) else value

    keywords = {name: entered(value) for name, value in kwargs.items()}
    with torch._C._DisableFuncTorch(), _Factories(), _Exclude(_HOST_CASTS):
        return left(op(*entered(args), **keywords))


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _check_devices(name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse host tensors among the arguments, in the words of the composite or its first op."""
    if name == "scaled_dot_product_attention":
        mixed.check_attention(args, kwargs)
    elif name.endswith("_cell"):
        step, state, *weights = args
        hidden = state[0] if name == "lstm_cell" else state
        biases = weights[2:] if len(weights) > 2 and weights[2] is not None else None
        mixed.check_cell(step, hidden, weights[:2], biases)
    elif name not in ("dropout", "group_norm"):
        states, weights = args[2:4] if overload == "data" else args[1:3]
        mixed.check_recurrent(args[0], states if name == "lstm" else [states], weights)


def _as_on_cuda(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """By torch's own composite, but for what it would ask CUDA itself."""
    name = op._schema.name[6:]
    made: Any = NotImplemented
    if name == "scaled_dot_product_attention":
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if all(type(each) is DeviceTensor for each in given):
            named = dict(kwargs)
            grouped = named.pop("enable_gqa", False)
            made = oncuda.attend(*args, **named, grouped=grouped)
    elif not name.endswith("_cell") and name != "dropout":
        made = recurrent.run_layers(op, args)
    return dispatch.take_apart(info_of(op), args, kwargs) if made is NotImplemented else made


def _attention(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its commonest kernel on the host takes the arguments as they are; else by stand-ins."""
    if is_transformed(args):
        return _in_transform(op, args, kwargs)
    made = None if _is_cuda() else onhost.attend_on_host(args, kwargs)
    return lower(op, args, kwargs) if made is None else made


def _in_transform(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of what `torch.func` has wrapped there are no stand-ins; what torch calls it unwraps."""
    known = are_ours(args) and not _is_cuda()
    made = onhost.attend_in_transform(args, kwargs) if known else None
    return dispatch.take_apart(info_of(op), args, kwargs) if made is None else made


def _dropout(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made = None if kwargs or _is_cuda() else steps.dropped(*args)
    return lower(op, args, kwargs) if made is None else made


def _differentiated(tensor: torch.Tensor) -> bool:
    """Whether a derivative may be wanted: a transform wants one of whatever it has wrapped."""
    if is_wrapped(tensor) or (torch.is_grad_enabled() and tensor.requires_grad):
        return True
    in_forward_mode = forward_ad._current_level >= 0
    return in_forward_mode and forward_ad.unpack_dual(tensor).tangent is not None


def _group_norm(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its derivative's formula keeps the layout of pictures on the CPU alone, and so their bits."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    plain = args[0].is_contiguous() or not torch.is_grad_enabled()
    if plain or _is_cuda() or not all(type(each) is DeviceTensor for each in given):
        return dispatch.take_apart(info_of(op), args, kwargs)
    return lower(op, args, kwargs)


def _svdvals(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten._linalg_svd(
        args[0], False, _differentiated(args[0]), **kwargs
    )[1]
    return made


def _eigvalsh(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    half = args[1] if len(args) > 1 else kwargs.get("UPLO", "L")
    made: torch.Tensor = torch.ops.aten._linalg_eigh(args[0], half, _differentiated(args[0]))[0]
    return made


def _ctc_loss(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Lengths are read and passed on as integers; they may be on either side."""
    lengths = [[int(length) for length in tensor.tolist()] for tensor in args[2:4]]
    made: torch.Tensor = torch.ops.aten.ctc_loss.IntList(*args[:2], *lengths, *args[4:], **kwargs)
    return made


def _cross_entropy(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A mean over weighted and smoothed classes: the weights of those that count are added up."""
    said = args + (None, _MEAN, -100, 0.0)[len(args) - 2 :]
    given, target, weight, reduction, left_out, smoothing = said
    plain = type(given) is type(target) is type(weight) is DeviceTensor
    if not (plain and reduction == _MEAN and 0 < smoothing <= 1) or given.shape == target.shape:
        composed: torch.Tensor = dispatch.take_apart(info_of(op), args, kwargs)
        return composed
    dim = 0 if given.dim() == 1 else 1
    logs = torch.log_softmax(given, dim, dtype=given.dtype)
    hard = torch.ops.aten.nll_loss_nd(logs, target, weight, reduction, left_out)
    shape = [1] * given.dim()
    shape[dim] = weight.shape[0]
    smooth = -(logs * weight.view(shape)).sum(dim)
    mask = target == left_out
    smooth.masked_fill_(mask, 0)
    share = smooth.sum() / weight.gather(0, target.masked_select(~mask).flatten()).sum()
    made: torch.Tensor = (1 - smoothing) * hard + share * (smoothing / given.shape[dim])
    return made


def _into_out(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Compute, then write `out`; nothing is differentiated, which a product's way depends on.

    Autocast casts no arguments of ops that write into `out`, so it is left out.
    """
    keywords = dict(kwargs)
    out: torch.Tensor = keywords.pop("out")
    words.check_outs(info_of(op), args, kwargs, keywords)
    plain = [each.detach() if isinstance(each, torch.Tensor) else each for each in args]
    with Uncast():
        found = getattr(torch.ops.aten, op._schema.name[6:])(*plain, **keywords)
    return out.resize_(found.shape).copy_(found)


#: Composites that go another way, of other bits or needs, if a tensor is of a subclass: eigenvalues
#: would be computed with their vectors, lengths be wanted on the device; a rank is returned and
#: `out` forgotten; a product asks whether a view of `out` shares its storage, which ours all hide;
#: weights of targets would be added up with zeros for those that are left out.
FOR_SUBCLASSES = {
    "linalg_svdvals": _svdvals,
    "linalg_eigvalsh": _eigvalsh,
    "ctc_loss.Tensor": _ctc_loss,
    "cross_entropy_loss": _cross_entropy,
    "linalg_matrix_rank.out": _into_out,
    "linalg_matrix_rank.out_tol_tensor": _into_out,
    "linalg_matrix_rank.atol_rtol_float_out": _into_out,
    "linalg_matrix_rank.atol_rtol_tensor_out": _into_out,
    "matmul.out": _into_out,
}


def _chunked_as_there(options: Any) -> None:
    """The chunks of `linear_cross_entropy` are chosen by the kind of device: the executor's."""
    original = options._adjust

    @functools.wraps(original)
    def adjust(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and device.type == "cuda" and not _is_cuda():
            device = _CPU
        return original(self, *args, device=device, **kwargs)

    options._adjust = unseen(adjust)


def install() -> None:
    """Register the lowerings at the backend's autograd key."""
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        _chunked_as_there(torch.nn.LinearCrossEntropyOptions)
    recurrent.install()
    encoders.install()
    global _library
    accelerator = loading.load()
    _library = torch.library.Library("aten", "IMPL")
    others = FOR_SUBCLASSES | {
        "dropout": _dropout,
        "group_norm": _group_norm,
        "scaled_dot_product_attention": _attention,
    }
    both = {name: (each, each) for name, each in (dict.fromkeys(LOWERED, lower) | others).items()}
    for name, (lowering, whole) in (both | branches.LOWERINGS).items():
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        _library.impl(name, unseen(_kernel(op, lowering)), "AutogradPrivateUse1")
        if accelerator is not None:
            _accelerate(accelerator, name, op)
        dispatch.LOWERED[f"aten::{name}"] = whole
    op = torch.ops.aten.scaled_dot_product_attention.default
    with warnings.catch_warnings():  # in place of torch's composite, to which it leaves the rest
        warnings.simplefilter("ignore")
        for key in _TAKEN_APART_IN_TRANSFORMS:
            _library.impl(op, unseen(_kernel(op, _in_transform)), key)


def _accelerate(accelerator: Any, name: str, op: Any) -> None:
    """Have calls that come to torch's own composite, or to a few ops, go there without Python."""
    key = info_of(op).composite
    if key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key):
        accelerator.compose(name, key.name, _is_cuda, onhost.on_host)


def _kernel(op: Any, lowering: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return lowering(op, args, kwargs)

    return kernel
