"""Batch, layer, group and weight normalisation: saved statistics and per-channel vectors."""

from typing import Final

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []


def _features(call: Call) -> int:
    call.require(call["input"].dim() >= 2, "input needs at least two dimensions")
    return int(call["input"].shape[1])


def _together(call: Call, *names: str) -> None:
    given = [call[name] is not None for name in names]
    call.require(all(given) or not any(given), f"{' and '.join(names)} come together")


def _read_by_strides(call: Call, count: int, *names: str) -> None:
    """Vectors of channels, which the CPU's forwards read by their strides (CUDA: `precautions`)."""
    for name in names:
        call.shaped(name, (count,))


@contract("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def _batch_norm(call: Call) -> None:
    count = _features(call)
    _read_by_strides(call, count, "weight", "bias")
    if "running_mean" in call:
        _read_by_strides(call, count, "running_mean", "running_var")
        if call["training"]:  # which writes them
            call.dense("running_mean", "running_var")
        _together(call, "running_mean", "running_var")
        call.require(
            call["training"] or call["running_mean"] is not None, "evaluation needs statistics"
        )
    else:
        call.require(call["training"], "evaluation needs statistics")


@contract("_native_batch_norm_legit_no_training")
def _batch_norm_in_evaluation(call: Call) -> None:
    names = ("running_mean", "running_var")
    _read_by_strides(call, _features(call), "weight", "bias", *names)
    call.require(all(call[name] is not None for name in names), "statistics are missing")


@contract("_batch_norm_with_update", "_batch_norm_no_update", "_batch_norm_with_update_functional")
def _batch_norm_with_statistics(call: Call) -> None:
    names = ("running_mean", "running_var")
    call.channels(_features(call), "weight", "bias", *names)
    call.require(all(call[name] is not None for name in names), "statistics are missing")


@contract("native_batch_norm_backward", "batch_norm_backward")
def _batch_norm_backward(call: Call) -> None:
    """The kernel for channels in the last place takes the vectors for contiguous ones."""
    count = _features(call)
    call.same("grad_out", "input")
    call.channels(count, "weight", "running_mean", "running_var")
    saved = ("save_mean", "save_invstd" if "save_invstd" in call else "save_var")
    training = call["train"] if "train" in call else call["update"]
    needed = saved if training else ("running_mean", "running_var")
    if training:
        call.channels(count, *saved)
    call.require(all(call[name] is not None for name in needed), "statistics are missing")


#: types that cuDNN has a batch norm for; half precision comes with float32 beside it
_CUDNN: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _by_cudnn(call: Call) -> int:
    """Channels, after what forward and backward share: cuDNN knows all sizes by the input's."""
    count = _features(call)
    given = call["input"]
    call.require(given.dim() in (3, 4, 5), "input has three to five dimensions")
    call.require(given.numel() > 0, "input is empty")
    call.require(given.dtype in _CUDNN, "its type is not served")
    call.require(call["weight"] is not None, "weight is missing")
    wide = torch.float64 if given.dtype is torch.float64 else torch.float32
    names = [name for name in ("weight", "bias", "running_mean", "running_var") if name in call]
    call.channels(count, *names)
    for name in names:
        call.typed(name, wide)
    _together(call, "running_mean", "running_var")
    return count


@contract("cudnn_batch_norm")
def _cudnn_batch_norm(call: Call) -> None:
    _by_cudnn(call)
    call.require(call["bias"] is not None, "bias is missing")
    call.require(call["training"] or call["running_mean"] is not None, "statistics are missing")


@contract("cudnn_batch_norm_backward")
def _cudnn_batch_norm_backward(call: Call) -> None:
    """What cuDNN is given as (address, bytes), the reserve, it compares with what it needs."""
    count, wide = _by_cudnn(call), call["weight"].dtype
    call.same("grad_output", "input")
    call.typed("grad_output", call["input"].dtype)
    for name in ("save_mean", "save_var"):
        call.require(call[name] is not None, f"{name} is missing")
        call.channels(count, name)
        call.typed(name, wide)
    call.require(call["reserveSpace"].dim() == 1, "reserveSpace is of bytes in a row")
    call.typed("reserveSpace", torch.uint8)
    call.contiguous("reserveSpace")


@contract("_fused_rms_norm_backward")
def _rms_norm_backward(call: Call) -> None:
    plain = (call["normalized_shape"], call["weight"], 1e-5)
    shape, normal = tuple(call["input"].shape), tuple(call["normalized_shape"])
    call.require(0 < len(normal) <= len(shape), "normalized_shape has too many dimensions")
    call.require(shape[-len(normal) :] == normal, "normalized_shape is not that of the input")
    call.shaped("weight", normal)
    call.typed("weight", call["input"].dtype)
    _, rstd = call.forward("_fused_rms_norm", call["input"], *plain)
    call.same("grad_out", "input")
    call.typed("grad_out", call["input"].dtype)
    call.saved("rstd", rstd, rstd.dtype)
    call.require(len(call["output_mask"]) == 2, "output_mask has two places")


@contract("native_layer_norm_backward")
def _layer_norm_backward(call: Call) -> None:
    plain = (call["normalized_shape"], call["weight"], call["bias"], 1e-5)
    output, mean, rstd = call.forward("native_layer_norm", call["input"], *plain)
    call.same("grad_out", output)
    # the statistics' dtype is wider than the input's for half precision with float weights
    call.saved("mean", mean, call["rstd"].dtype)
    call.saved("rstd", rstd)
    call.dense("weight", "bias")


def _groups(call: Call) -> None:
    shape = call["input"].shape
    batch, channels, spatial = call["N"], call["C"], call["HxW"]
    call.require(len(shape) >= 2, "input needs at least two dimensions")
    rest = 1
    for size in shape[2:]:
        rest *= size
    call.require((batch, channels, spatial) == (shape[0], shape[1], rest), "N, C or HxW is wrong")
    call.require(call["group"] > 0 and channels % call["group"] == 0, "groups do not fit")
    call.dense("input")


@contract("native_group_norm")
def _group_norm(call: Call) -> None:
    _groups(call)
    call.channels(call["C"], "weight", "bias")


@contract("native_group_norm_backward")
def _group_norm_backward(call: Call) -> None:
    _groups(call)
    call.same("grad_out", "input")
    call.dense("grad_out")
    call.channels(call["C"], "weight")
    for name in ("mean", "rstd"):
        call.shaped(name, (call["N"], call["group"]))
        call.dense(name)


def _normed(call: Call, weight: str, *norms: str) -> None:
    """A norm for each place of the first or of the last dimension; the kernels divide by sizes."""
    whole, dim = call[weight], call["dim"]
    call.require(dim in (0, whole.dim() - 1), "dim must be the first or the last")
    call.require(whole.numel() > 0, f"{weight} is empty")
    shape = [size if k == dim else 1 for k, size in enumerate(whole.shape)]
    for name in norms:
        call.shaped(name, shape)


@contract("_weight_norm_interface")
def _weight_norm(call: Call) -> None:
    _normed(call, "v", "g")
    call.typed("g", call["v"].dtype)
    call.contiguous("v", "g")


@contract("_weight_norm")
def _weight_norm_composed(call: Call) -> None:
    """The same kernel serves it where the dimension is the first or the last."""
    call.require(call["v"].dim() > 0, "v has no dimensions")
    if call["dim"] in (0, call["v"].dim() - 1):
        _normed(call, "v", "g")
        call.typed("g", call["v"].dtype)


@contract("_weight_norm_interface_backward")
def _weight_norm_backward(call: Call) -> None:
    _normed(call, "saved_v", "saved_g", "saved_norms")
    call.same("grad_w", "saved_v")
    call.contiguous("grad_w", "saved_v", "saved_g", "saved_norms")
