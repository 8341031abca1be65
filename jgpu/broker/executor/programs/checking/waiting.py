"""Ops that wait, in the midst of their launch, for what is on their stream.

CUDA's kernels of these copy something back to the host before they go on: how large a result is, a
bound, whether a factorization came out, a number that stands in a tensor. Which they are is read
off PyTorch's sources (`aten/src/ATen/native` and its folder `cuda`): wherever `item`, `cpu()`,
`memcpy_and_sync`, a stream's `synchronize` or `_linalg_check_errors` lies on the way of an op that
a program may call. One too many in here costs much: each run of a program with it waits for an
empty stream, and the ops behind it are interpreted.
"""

import re
from collections.abc import Iterable
from typing import Final

import torch

__all__ = ["waits_for_its_stream"]

#: Base names, without a trailing underscore.
_OPS: Final = re.compile(
    # solvers: the library's status is looked at, or MAGMA works on the host as well
    r"_?linalg_(cholesky|eig|eigh|eigvals|eigvalsh|inv|ldl|lstsq|lu|check_errors|matrix_exp|pinv|qr|solve|svd)"
    r"(_.*)?|cholesky|cholesky_inverse|cholesky_solve|_cholesky_solve_helper|geqrf|lu_solve|"
    r"_lu_with_info|lu_unpack|ormqr|orgqr|triangular_solve|svd|"
    r"_?linalg_(det|slogdet|svdvals|cond|matrix_rank|matrix_power|tensorinv|tensorsolve)|"
    # a bound, a count or a sum that sizes something
    r"histc|bincount|mode|nonzero_static|embedding_renorm|segment_reduce|_segment_reduce_backward|"
    # lengths that are read on the host
    r"_ctc_loss(_backward)?|_use_cudnn_ctc_loss|_cudnn_ctc_loss|"
    # values that are checked on the host, by torch or by what stands before it
    r"multinomial|repeat_interleave|_unsafe_masked_index(_put_accumulate)?|cross_entropy_loss|"
    r"ctc_loss|cummaxmin_backward|embedding_backward|embedding_bag|gather_backward|"
    r"index_select_backward|masked_scatter_backward|multilabel_margin_loss|nll_loss(2d|_nd)?|"
    r"one_hot|take_along_dim|value_selecting_reduction_backward"
)
#: Ops that read a value out of a tensor of one element: base name and overloads.
_READING: Final = re.compile(
    r"masked_fill_?\.Tensor(_out)?|index_fill_?\.int_Tensor(_out)?|"
    r"(arange|linspace|logspace)\..*Tensor.*|normal\.(float|Tensor)_Tensor(_out)?"
)
#: Ops that turn a mask into places.
_INDEXING: Final = frozenset(
    {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
)


def waits_for_its_stream(name: str, tags: Iterable[torch.Tag], dtypes: Iterable[str]) -> bool:
    """Whether an op (`aten::base.overload`) waits, given tensors of these types."""
    called = name.partition("::")[2]
    base = called.partition(".")[0].rstrip("_")
    if base in _INDEXING:  # tagged for the sake of masks
        return any(dtype in ("bool", "uint8") for dtype in dtypes)
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        return True
    return _OPS.fullmatch(base) is not None or _READING.fullmatch(called) is not None
