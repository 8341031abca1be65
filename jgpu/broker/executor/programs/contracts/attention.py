"""Fused attention: the kernels walk heads by stride and take the last dimension as contiguous.

Also the fused layers that a transformer takes when it is evaluated: projections around attention.
"""

from typing import Any, Final

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []

_FLASH: Final = "_scaled_dot_product_flash_attention_for_cpu"


def _operands(call: Call, *, grouped: bool = False) -> tuple[int, int, int, int]:
    """Batch, heads, query and key lengths, after checks that all attention kernels share.

    `grouped`: several heads of the query may share one of key and value.
    """
    query, key, value = call["query"], call["key"], call["value"]
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        call.require(tensor.dim() == 4, f"{name} must have four dimensions")
        call.require(tensor.dtype is query.dtype, "query, key and value are of one type")
        call.require(tensor.is_floating_point(), "it takes floating point numbers")
        call.require(tensor.shape[3] > 0, f"{name} has no features")
        _last(call, name)
    batch, heads, length, width = query.shape
    shared = key.shape[1] if grouped and key.shape[1] and heads % key.shape[1] == 0 else heads
    call.shaped("key", (batch, shared, key.shape[2], width))
    call.shaped("value", (batch, shared, key.shape[2], value.shape[3]))
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
    _broadcast(call, name, (batch, heads, length, keys))
    call.require(mask.dtype in (call["query"].dtype, torch.float32), f"{name} has a wrong type")


def _broadcast(call: Call, name: str, full: tuple[int, ...]) -> None:
    shape = call[name].shape
    call.require(len(shape) <= len(full), f"{name} has too many dimensions")
    pairs = zip(reversed(shape), reversed(full), strict=False)
    fits = all(size in (1, whole) for size, whole in pairs)
    call.require(fits, f"{name} does not fit the scores")


@contract(_FLASH)
def _flash(call: Call) -> None:
    shape = _operands(call, grouped=True)
    call.require(min(shape) > 0, "a batch, a head or a sequence is empty")
    call.shaped("value", call["key"].shape)
    _mask(call, "attn_mask", *shape)


@contract(
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention",),
)
def _on_cuda(call: Call) -> None:
    """Heads of key and value may serve several of the query, but for the efficient kernel."""
    shape = _operands(call, grouped="efficient" not in call.name)
    call.require(min(shape[1:]) > 0, "a head or a sequence is empty")
    call.require("q_descale" not in call, "its 8-bit form is not served")
    debug = "return_debug_mask" in call and call["return_debug_mask"]
    call.require(not debug, "its debug mask is not served: parts of it are left unset")
    if "flash" in call.name:  # the kernel walks value by the query's width
        call.shaped("value", call["key"].shape)
    if "attn_bias" not in call or call["attn_bias"] is None:
        return
    call.typed("attn_bias", call["query"].dtype)
    if "efficient" in call.name:
        call.shaped("attn_bias", shape)
        _last(call, "attn_bias")
    else:
        _broadcast(call, "attn_bias", shape)


def _gradients(call: Call, grad: str) -> None:
    """What the backward of CUDA's attention kernels needs to be as the forward returned it."""
    _on_cuda(call)
    query, value = call["query"], call["value"]
    call.require(query.shape[0] > 0, "the batch is empty")
    for name in ("out", grad):
        call.shaped(name, (*query.shape[:3], value.shape[3]))
        call.typed(name, query.dtype)
    _last(call, "out")
    call.typed("logsumexp", torch.float32)
    call.contiguous("logsumexp")
    for name in ("cum_seq_q", "cum_seq_k"):
        call.require(name not in call or call[name] is None, "packed sequences are not served")
    if "max_q" in call:
        lengths = (call["max_q"], call["max_k"])
        call.require(lengths == (query.shape[2], call["key"].shape[2]), "its lengths are wrong")


def _random_state(call: Call) -> None:
    """Seed and offset, one number each, whose addresses the kernel takes as they are."""
    for name in ("philox_seed", "philox_offset"):
        call.require(call[name] is not None, f"{name} is missing")
        call.single(name)
        call.typed(name, torch.int64)


@contract("_scaled_dot_product_flash_attention_backward")
def _flash_on_cuda_backward(call: Call) -> None:
    _gradients(call, "grad_out")
    call.shaped("logsumexp", call["query"].shape[:3])
    call.require(call["philox_seed"] is not None, "philox_seed is missing")
    call.channels(2, "philox_seed")
    call.typed("philox_seed", torch.uint64)


@contract("_scaled_dot_product_cudnn_attention_backward")
def _cudnn_backward(call: Call) -> None:
    _gradients(call, "grad_out")
    _random_state(call)
    saved, pairs = call["logsumexp"], call["query"].shape[:3]
    # some versions keep one dimension more
    call.require(tuple(saved.shape) in (tuple(pairs), (*pairs, 1)), "logsumexp has a wrong shape")


@contract("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(call: Call) -> None:
    _gradients(call, "grad_out_")
    _random_state(call)
    batch, heads, length, _ = call["query"].shape
    # rows are padded to a multiple of 32
    call.shaped("logsumexp", (batch, heads, -(-length // 32) * 32))
    # the kernel knows how far apart its rows are, whatever its strides say
    call.require(call["out"].transpose(1, 2).is_contiguous(), "out is not as the forward made it")
    wanted = call["grad_input_mask"]
    call.require(len(wanted) == 4, "grad_input_mask has four places")
    call.require(not wanted[3] or call["attn_bias"] is not None, "there is no attn_bias")


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


def _heads(call: Call, tensors: tuple[str, ...], heads: int) -> None:
    """Self- or cross-attention with its projections: weights of one width, a mask over scores."""
    width, first = call["embed_dim"], call[tensors[0]]
    call.require(heads > 0 and width > 0 and width % heads == 0, "its heads do not fit the width")
    call.require(first.dim() == 3 and first.shape[2] == width, f"{tensors[0]} has a wrong shape")
    call.require(first.is_floating_point(), "it takes floating point numbers")
    for name in tensors:
        call.same(name, first)
    _parameters(
        call,
        first.dtype,
        qkv_weight=(3 * width, width),
        qkv_bias=(3 * width,),
        proj_weight=(width, width),
        proj_bias=(width,),
    )
    for name in tensors:
        call.typed(name, first.dtype)
    if call["mask"] is not None:
        batch, length = first.shape[:2]
        kinds = {0: (length, length), 1: (batch, length), 2: (batch, heads, length, length)}
        call.require(call["mask_type"] in kinds, "mask_type must be 0, 1 or 2")
        call.shaped("mask", kinds[call["mask_type"]])


def _parameters(call: Call, dtype: torch.dtype, **shapes: tuple[Any, ...]) -> None:
    for name, shape in shapes.items():
        call.shaped(name, shape)
        call.typed(name, dtype)


@contract("_native_multi_head_attention")
def _multi_head(call: Call) -> None:
    _heads(call, ("query", "key", "value"), call["num_head"])


@contract("_transformer_encoder_layer_fwd")
def _encoder_layer(call: Call) -> None:
    _heads(call, ("src",), call["num_heads"])
    width, inner = call["embed_dim"], call["ffn_weight_1"].shape[0]
    _parameters(
        call,
        call["src"].dtype,
        ffn_weight_1=(inner, width),
        ffn_bias_1=(inner,),
        ffn_weight_2=(width, inner),
        ffn_bias_2=(width,),
        **{f"norm_{part}_{place}": (width,) for part in ("weight", "bias") for place in (1, 2)},
    )
