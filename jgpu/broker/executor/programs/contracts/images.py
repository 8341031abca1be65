"""Convolution, pooling, padding and resampling: the forward's shape is the gradient's."""

from typing import Final

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []

#: types that cuDNN samples pictures of, and the channels that it can
_SAMPLED: Final = (torch.float64, torch.float32, torch.float16)
_MOST_CHANNELS: Final = 1024


@contract("convolution_backward")
def _convolution(call: Call) -> None:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    plain = [call[name] for name in names]
    output = call.forward("convolution", call["input"], call["weight"], None, *plain)
    call.same("grad_output", output)
    sizes = call["bias_sizes"]
    # For a convolution without a bias autograd passes [0] and masks the gradient out.
    without = not sizes or (list(sizes) == [0] and not call["output_mask"][2])
    fits = without or list(sizes) == [output.shape[1]]
    if not output.numel():  # an output without elements may lack the weight's channels
        weight = call["weight"]
        fits = fits or list(sizes) == [weight.shape[1 if call["transposed"] else 0]]
    call.require(fits, "bias_sizes is wrong")
    call.typed("grad_output", call["input"].dtype)
    call.typed("weight", call["input"].dtype)


def _pooling(op: str, *names: str) -> None:
    """The backward of a pooling op: gradient (and indices) as the forward returns them."""

    @contract(f"{op}_backward")
    def check(call: Call) -> None:
        result = call.forward(op, call["self"], *(call[name] for name in names))
        output = result if isinstance(result, torch.Tensor) else result[0]
        call.same("grad_output", output)
        call.typed("grad_output", call["self"].dtype)
        if "indices" in call:
            call.saved("indices", result[1], torch.int64)


_WINDOW = ("kernel_size", "stride", "padding")
_pooling("max_pool2d_with_indices", *_WINDOW, "dilation", "ceil_mode")
_pooling("max_pool3d_with_indices", *_WINDOW, "dilation", "ceil_mode")
_pooling("avg_pool2d", *_WINDOW, "ceil_mode", "count_include_pad", "divisor_override")
_pooling("avg_pool3d", *_WINDOW, "ceil_mode", "count_include_pad", "divisor_override")
_pooling("reflection_pad1d", "padding")
_pooling("reflection_pad2d", "padding")
_pooling("reflection_pad3d", "padding")
_pooling("replication_pad1d", "padding")
_pooling("replication_pad2d", "padding")
_pooling("replication_pad3d", "padding")


@contract(
    *("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
    *("adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward"),
    *("adaptive_max_pool3d_backward",),
)
def _adaptive(call: Call) -> None:
    dims = 3 if "pool3d" in call.name else 2
    shape = call["self"].shape
    grad = call["grad_output"]
    call.require(len(shape) in (dims + 1, dims + 2), "self has a wrong number of dimensions")
    call.require(grad.dim() == len(shape), "grad_output has a wrong number of dimensions")
    call.shaped("grad_output", (*shape[:-dims], *grad.shape[-dims:]))
    call.require(min(shape[-dims:]) > 0 or grad.numel() == 0, "self has nothing to be pooled")
    call.typed("grad_output", call["self"].dtype)
    if "indices" in call:
        call.saved("indices", grad, torch.int64)


@contract("fractional_max_pool2d_backward", "fractional_max_pool3d_backward", without_meta=True)
def _fractional(call: Call) -> None:
    dims = 3 if "pool3d" in call.name else 2
    shape = call["self"].shape
    call.require(len(shape) in (dims + 1, dims + 2), "self has a wrong number of dimensions")
    call.require(len(call["output_size"]) == dims, "output_size has a wrong length")
    call.shaped("grad_output", (*shape[:-dims], *call["output_size"]))
    call.saved("indices", "grad_output", torch.int64)


def _scaled(call: Call, sizes: list[int], outputs: list[int]) -> None:
    """Scales that the kernel multiplies positions by must not lead past the end."""
    smooth = "_aa" in call.name
    if smooth and call["align_corners"]:
        return  # positions then follow from the sizes alone
    names = [name for name, _ in call.items() if name.startswith("scales")]
    for name, size, output in zip(names, sizes, outputs, strict=True):
        scale = call[name]
        if scale is None:
            continue
        call.require(scale > 0, f"{name} is no scale")
        if smooth:
            # the antialiased kernels read at least one element from where the window begins
            begin = (output - 0.5) / scale - max(1 / scale, 1.0) + 0.5
            # they take room for a window, which is no wider than what natively leads to a result
            fits = begin < size - 0.01 and 1 / scale <= size + 0.01
        else:
            fits = int(size * scale) == output
        call.require(fits, f"{name} does not lead from {size} to {output}")


_UPSAMPLES = [
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"),
]


@contract(*_UPSAMPLES)
def _upsample(call: Call) -> None:
    whole = call["self"] if "self" in call else call["input"]
    if "output_size" in call:
        _scaled(call, list(whole.shape[2:]), call["output_size"])


@contract(*(f"{op}_backward" for op in _UPSAMPLES))
def _upsample_backward(call: Call) -> None:
    size, output = call["input_size"], call["output_size"]
    call.require(len(size) == len(output) + 2, "input_size has a wrong length")
    call.require(min(*size, *output) > 0, "sizes must be positive")
    call.shaped("grad_output", (*size[:2], *output))
    _scaled(call, size[2:], output)


@contract("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid(call: Call) -> None:
    op = "grid_sampler_3d" if "_3d" in call.name else "grid_sampler_2d"
    plain = [call[name] for name in ("interpolation_mode", "padding_mode", "align_corners")]
    call.same("grad_output", call.forward(op, call["input"], call["grid"], *plain))
    call.typed("grad_output", call["input"].dtype)
    call.typed("grid", call["input"].dtype)


@contract("cudnn_grid_sampler")
def _sampled(call: Call) -> None:
    """cuDNN gets these sizes only."""
    given, grid = call["self"], call["grid"]
    call.require(given.dim() == 4 and given.numel() > 0, "self is no batch of pictures")
    call.require(given.shape[1] <= _MOST_CHANNELS, "self has too many channels")
    call.require(given.dtype in _SAMPLED, "its type is not served")
    call.require(grid.dim() == 4 and grid.numel() > 0, "grid is no batch of places")
    call.shaped("grid", (given.shape[0], *grid.shape[1:3], 2))
    call.typed("grid", given.dtype)


@contract("cudnn_grid_sampler_backward")
def _sampled_backward(call: Call) -> None:
    _sampled(call)
    call.shaped("grad_output", (*call["self"].shape[:2], *call["grid"].shape[1:3]))
    call.typed("grad_output", call["self"].dtype)
