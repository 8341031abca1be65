"""Embeddings, index ops, distances, unfolding and transforms: sizes that go with indices.

Values of indices are looked at before each run (`programs.guards`); shapes here.
"""

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []

_INDEX = (torch.int64, torch.int32)


@contract("embedding_dense_backward")
def _embedding(call: Call) -> None:
    indices, grad = call["indices"], call["grad_output"]
    call.require(indices.dtype in _INDEX, "indices must be integers")
    call.require(grad.dim() >= 1 and call["num_weights"] >= 0, "there is no gradient")
    call.shaped("grad_output", (*indices.shape, grad.shape[-1]))


@contract("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(call: Call) -> None:
    indices, offsets = call["indices"], call["offsets"]
    call.require(call["weight"].dim() == 2, "weight must be a matrix")
    call.require(indices.dim() == 1 and offsets.dim() == 1, "indices and offsets are vectors")
    call.require(indices.dtype in _INDEX and offsets.dtype in _INDEX, "indices must be integers")
    call.contiguous("indices", "offsets")
    call.require(not call["sparse"], "sparse gradients cannot be had on the shared device")
    call.same("per_sample_weights", "indices")
    rows = call["weight"].shape[0]
    call.require(-rows <= call["padding_idx"] < rows or rows == 0, "padding_idx is no row")


@contract("_embedding_bag_dense_backward")
def _embedding_bag_backward(call: Call) -> None:
    grad, indices = call["grad"], call["indices"]
    call.require(grad.dim() == 2 and indices.dim() == 1, "grad is a matrix, indices a vector")
    call.require(indices.dtype in _INDEX, "indices must be integers")
    call.saved("offset2bag", "indices")
    call.channels(grad.shape[0], "bag_size")
    call.dense("indices")
    call.same("per_sample_weights", "indices")
    call.require(call["mode"] in (0, 1), "the gradient of max is not served here")


@contract("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_weights(call: Call) -> None:
    call.require(call["grad"].dim() == 2 and call["weight"].dim() == 2, "it takes matrices")
    call.require(call["grad"].shape[1] == call["weight"].shape[1], "its matrices differ in width")
    call.require(call["indices"].dim() == 1 and call["offsets"].dim() == 1, "indices are vectors")
    call.contiguous("indices", "offsets", "offset2bag")
    call.require(call["mode"] == 0, "weights per sample go with sums")
    if call["offset2bag"].numel():
        call.same("offset2bag", "indices")


@contract("_embedding_bag_backward")
def _embedding_bag_composed(call: Call) -> None:
    """The same, before the mode is told apart; `offset2bag` may still have to be made."""
    call.require(not call["sparse"], "sparse gradients cannot be had on the shared device")
    call.require(call["offsets"].dim() == 1, "offsets is a vector")
    call.contiguous("offsets")
    if call["offset2bag"].numel():
        _embedding_bag_backward(call)
    else:
        call.require(call["mode"] == 0 and call["indices"].dim() == 1, "offset2bag is missing")
        call.require(call["grad"].dim() == 2, "grad is a matrix")
        call.channels(call["grad"].shape[0], "bag_size")
        call.same("per_sample_weights", "indices")


@contract("_index_put_impl")
def _index_put(call: Call) -> None:
    call.require(call["unsafe"] is False, "its index must be looked at")


@contract("unfold_backward")
def _unfold(call: Call) -> None:
    whole = torch.empty(call["input_sizes"], device="meta")
    plain = [call[name] for name in ("dim", "size", "step")]
    call.same("grad_in", call.forward("unfold", whole, *plain))


@contract("_pack_padded_sequence_backward", without_meta=True)
def _packed(call: Call) -> None:
    call.typed("batch_sizes", torch.int64)
    call.require(call["batch_sizes"].dim() == 1, "batch_sizes is a vector")
    call.contiguous("batch_sizes")


@contract("_cdist_backward")
def _cdist(call: Call) -> None:
    result = call.forward("_cdist_forward", call["x1"], call["x2"], call["p"], None)
    call.same("grad", result)
    call.saved("cdist", result)


@contract("_pdist_forward")
def _pdist(call: Call) -> None:
    call.require(call["self"].dim() == 2 and call["p"] >= 0, "it takes a matrix")
    call.contiguous("self")


@contract("_pdist_backward")
def _pdist_backward(call: Call) -> None:
    call.require(call["self"].dim() == 2 and call["p"] >= 0, "it takes a matrix")
    rows = call["self"].shape[0]
    call.channels(rows * (rows - 1) // 2, "pdist")
    call.shaped("grad", (rows * (rows - 1) // 2,))
    call.contiguous("self")


@contract("_fft_c2c", "_fft_r2c", "_fft_c2r")
def _fft(call: Call) -> None:
    tensor, dims = call["self"], call["dim"]
    count = tensor.dim()
    wrapped = {d + count if d < 0 else d for d in dims}
    call.require(len(wrapped) == len(dims), "a dimension is named twice")
    call.require(all(0 <= d < count for d in wrapped), "a dimension is out of range")
    call.require(all(tensor.shape[d] > 0 for d in wrapped), "a dimension is empty")
    if "last_dim_size" in call:
        call.require(bool(dims), "it needs a dimension")
        last = call["last_dim_size"]
        fits = last > 0 and tensor.shape[dims[-1]] == last // 2 + 1
        call.require(fits, "the last dimension is not half of last_dim_size")
