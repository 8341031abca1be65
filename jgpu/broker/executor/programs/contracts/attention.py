"""Fused attention: the kernels walk heads by stride and take the last dimension as contiguous."""

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []

_FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _operands(call: Call) -> tuple[int, int, int, int]:
    """Batch, heads, query and key lengths, after checks that all attention kernels share."""
    query, key, value = call["query"], call["key"], call["value"]
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        call.require(tensor.dim() == 4, f"{name} must have four dimensions")
        call.require(tensor.dtype is query.dtype, "query, key and value are of one type")
        call.require(tensor.is_floating_point(), "it takes floating point numbers")
        call.require(tensor.shape[3] > 0, f"{name} has no features")
        _last(call, name)
    batch, heads, length, width = query.shape
    call.shaped("key", (batch, heads, key.shape[2], width))
    call.shaped("value", (batch, heads, key.shape[2], value.shape[3]))
    return batch, heads, length, key.shape[2]


def _last(call: Call, name: str) -> None:
    tensor = call[name]
    if tensor is not None:
        contiguous = tensor.stride(-1) == 1 or tensor.shape[-1] == 1
        call.require(contiguous, f"the last dimension of {name} is not contiguous")


def _mask(call: Call, name: str, batch: int, heads: int, length: int, keys: int) -> None:
    mask = call[name]
    if mask is None:
        return
    call.require(mask.dim() in (2, 4), f"{name} has two or four dimensions")
    full = (batch, heads, length, keys)[-mask.dim() :]
    fits = all(size in (1, whole) for size, whole in zip(mask.shape, full, strict=True))
    call.require(fits, f"{name} does not fit the scores")
    call.require(mask.dtype in (call["query"].dtype, torch.float32), f"{name} has a wrong type")


@contract(_FLASH)
def _flash(call: Call) -> None:
    shape = _operands(call)
    call.shaped("value", call["key"].shape)
    _mask(call, "attn_mask", *shape)


@contract(f"{_FLASH}_backward")
def _flash_backward(call: Call) -> None:
    _flash(call)
    batch, heads, length, _ = call["query"].shape
    call.same("out", "query")
    # the kernel makes grad_out contiguous itself, unlike the rest
    call.same("grad_out", "query")
    call.typed("out", call["query"].dtype)
    call.typed("grad_out", call["query"].dtype)
    _last(call, "out")
    call.require(call["logsumexp"].dtype in (torch.float32, torch.float64), "logsumexp's type")
    call.shaped("logsumexp", (batch, heads, length))
    call.dense("logsumexp")
