"""Backward ops that are one TensorIterator over tensors of one shape."""

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []


@contract(
    *("threshold_backward", "sigmoid_backward", "tanh_backward", "silu_backward"),
    *("mish_backward", "hardtanh_backward", "hardsigmoid_backward", "hardswish_backward"),
    *("leaky_relu_backward", "elu_backward", "softplus_backward", "hardshrink_backward"),
    *("softshrink_backward", "logit_backward", "log_sigmoid_backward", "native_dropout_backward"),
    *("rrelu_with_noise_backward", "mse_loss_backward", "smooth_l1_loss_backward"),
    *("huber_loss_backward", "soft_margin_loss_backward", "binary_cross_entropy_backward"),
    *("_prelu_kernel", "_prelu_kernel_backward"),
)
def _elementwise(call: Call) -> None:
    """All tensors broadcast to the largest one, which is `self` or what stands for it."""
    tensors = [value for _, value in call.items() if isinstance(value, torch.Tensor)]
    largest = max(tensors, key=lambda tensor: (tensor.numel(), tensor.dim()))
    for tensor in tensors:
        # log_sigmoid's buffer is empty on cuda
        if tensor.numel() and not _broadcasts(tensor.shape, largest.shape):
            call.require(False, f"{list(tensor.shape)} does not fit {list(largest.shape)}")


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    if len(shape) > len(to):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


@contract("gelu_backward")
def _gelu(call: Call) -> None:
    """oneDNN's kernel, which may serve it, does not broadcast."""
    call.same("grad_output", "self")
    call.typed("grad_output", call["self"].dtype)


@contract("glu_backward")
def _glu(call: Call) -> None:
    call.same("grad_output", call.forward("glu", call["self"], call["dim"]))


@contract("_log_softmax_backward_data", "_softmax_backward_data")
def _softmax(call: Call) -> None:
    call.same("grad_output", "output")
    dims = max(call["output"].dim(), 1)
    call.require(-dims <= call["dim"] < dims, "dim is out of range")
