"""Torch's global switches that change arithmetic, as programs and questions carry them.

What a switch may say is closed here where it is a number or a list; words are held to torch's own
by the executor, whose version knows them. Fields are added at the end, with torch's defaults, so
that a client of an earlier version says what it always said.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from jgpu.wire import limits

__all__ = ["ATTENTION", "ATTENTION_DEFAULT", "FLOAT32", "Flags"]

Word: TypeAlias = Annotated[str, msgspec.Meta(max_length=limits.MAX_NAME)]
Kernel: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=15)]

#: What `Flags.float32` tells the precision of, in this order: library and kind of op.
FLOAT32: Final = (
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)
#: Attention kernels by the word in torch's names of their switches; `Flags.attention` has a bit
#: for each, in this order.
ATTENTION: Final = ("math", "flash", "mem_efficient", "cudnn", "overrideable", "fa3", "fa4")
#: All but the two that must be asked for.
ATTENTION_DEFAULT: Final = 0b0011111


class Flags(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Global switches of torch that change arithmetic; part of the hash."""

    deterministic: bool = False
    deterministic_warn_only: bool = False
    matmul_precision: Word = "highest"
    matmul_tf32: bool = False
    cudnn_tf32: bool = True
    cudnn_enabled: bool = True
    #: of older clients; never applied, for cuDNN keeps one plan cache for all sessions
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    fp16_reduced_precision: bool = True
    bf16_reduced_precision: bool = True
    mkldnn_enabled: bool = True
    default_dtype: Word = "float32"
    #: precision of float32 by `FLOAT32`, as torch resolves it, whichever interface set it; without,
    #: the three switches above say it
    float32: Annotated[tuple[Word, ...], msgspec.Meta(max_length=len(FLOAT32))] = ()
    fp16_split_k: bool = True
    bf16_split_k: bool = True
    fp16_accumulation: bool = False
    #: preferred libraries of CUDA
    blas: Word = "default"
    linalg: Word = "default"
    #: who computes depthwise convolutions
    depthwise: Word = "auto"
    #: multiprocessors that products of matrices leave free; -1: none
    carveout: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 16)] = -1
    #: bits of `ATTENTION`
    attention: Annotated[int, msgspec.Meta(ge=0, lt=1 << len(ATTENTION))] = ATTENTION_DEFAULT
    #: attention kernels in the order that is preferred; without, torch's own
    attention_order: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=16)] = ()
    #: attention step by step may add up in half precision
    attention_reduces: bool = False
    mkldnn_deterministic: bool = False
    nnpack_enabled: bool = True
    cpu_fp16_reduced_precision: bool = False
