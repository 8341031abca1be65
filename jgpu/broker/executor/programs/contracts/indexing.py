"""Embeddings, index ops, distances, unfolding and transforms: sizes that belong to indices.

Values of indices are checked before each run (`programs.guards`); shapes here.
"""

import torch
from msgspec import structs

from jgpu.broker.executor.programs.contracts.language import Call, contract
from jgpu.broker.executor.programs.geometry import geometry_of, required_bytes

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
    bags = offsets.numel() - bool(call["include_last_offset"])
    call.require(bags > 0 or (bags == 0 and not indices.numel()), "indices without a bag")
    call.require(not call["sparse"], "sparse gradients cannot be had on the shared device")
    call.same("per_sample_weights", "indices")
    call.require(call["mode"] in (0, 1, 2), "its mode is unknown")
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
    call.require(call["mode"] in (0, 1, 2), "its mode is unknown")
    if call["mode"] == 2:
        maximum = call["maximum_indices"]  # has the wider of the types of indices and offsets
        call.require(maximum.dtype in _INDEX, "maximum_indices must be integers")
        call.saved("maximum_indices", grad, maximum.dtype)


@contract("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_weights(call: Call) -> None:
    call.require(call["grad"].dim() == 2 and call["weight"].dim() == 2, "it takes matrices")
    call.require(call["grad"].shape[1] == call["weight"].shape[1], "its matrices differ in width")
    call.require(call["indices"].dim() == 1 and call["offsets"].dim() == 1, "indices are vectors")
    call.contiguous("indices", "offsets", "offset2bag")
    call.require(call["mode"] == 0, "weights per sample go with sums")
    if call["offset2bag"].numel():
        call.same("offset2bag", "indices")
    else:
        _one_offset_a_bag(call)


@contract("_embedding_bag_backward")
def _embedding_bag_composed(call: Call) -> None:
    """The same, before the mode is known; `offset2bag` may still have to be made."""
    call.require(not call["sparse"], "sparse gradients cannot be had on the shared device")
    call.require(call["offsets"].dim() == 1, "offsets is a vector")
    call.contiguous("offsets")
    if call["offset2bag"].numel() or not call["indices"].numel():  # of no index it is empty
        _embedding_bag_backward(call)
    else:
        call.require(call["mode"] == 0 and call["indices"].dim() == 1, "offset2bag is missing")
        call.require(call["grad"].dim() == 2, "grad is a matrix")
        call.channels(call["grad"].shape[0], "bag_size")
        call.same("per_sample_weights", "indices")
        _one_offset_a_bag(call)


def _one_offset_a_bag(call: Call) -> None:
    """The kernel makes `offset2bag` itself, of offsets that may close with the end."""
    bags = call["grad"].shape[0]
    call.require(call["offset2bag"].dim() == 1, "offset2bag is a vector")
    fits = call["offsets"].numel() in (bags, bags + 1)
    call.require(fits, "there must be one offset for each bag")
    call.require(bags > 0 or not call["indices"].numel(), "indices without a bag")


@contract("_index_put_impl")
def _index_put(call: Call) -> None:
    call.require(call["unsafe"] is False, "its index must be looked at")


@contract("_reshape_alias")
def _reshape_alias(call: Call) -> None:
    """A view of any geometry; torch requests one of the memory that the tensor spans."""
    whole, size, stride = geometry_of(call["self"]), call["size"], call["stride"]
    call.require(len(size) == len(stride), "size and stride differ in length")
    call.require(min([*size, *stride], default=0) >= 0, "a size or a stride is negative")
    seen = structs.replace(whole, shape=tuple(size), stride=tuple(stride))
    call.require(required_bytes(seen) <= required_bytes(whole), "it looks past the tensor's end")


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


def _histogram(call: Call, bins: int) -> None:
    """Coordinates in the last dimension, one list of bins each; a weight for every point."""
    points = call["self"]
    call.require(points.dim() >= 2, "self needs at least two dimensions")
    call.require(bins == points.shape[-1], "there must be bins for each dimension")
    call.require(points.is_floating_point(), "it takes floating point numbers")
    call.shaped("weight", points.shape[:-1])
    call.typed("weight", points.dtype)


@contract("_histogramdd_bin_edges", "_histogramdd_from_bin_cts", without_meta=True)
def _histogram_of_counts(call: Call) -> None:
    _histogram(call, len(call["bins"]))
    call.require(min(call["bins"], default=0) > 0, "there must be at least one bin")
    bounds = call["range"]
    call.require(bounds is None or len(bounds) == 2 * len(call["bins"]), "range has a wrong length")


@contract("_histogramdd_from_bin_tensors", without_meta=True)
def _histogram_of_edges(call: Call) -> None:
    _histogram(call, len(call["bins"]))
    for edges in call["bins"]:
        call.require(edges.dim() == 1 and edges.shape[0] > 1, "edges are vectors of two or more")
        call.require(edges.dtype is call["self"].dtype, "edges are of the type of self")


@contract("segment_reduce", "_segment_reduce_backward")
def _segments(call: Call) -> None:
    """Segments along one dimension, given by their lengths or by their bounds."""
    data, axis = call["data"], call["axis"]
    given = [name for name in ("lengths", "offsets") if call[name] is not None]
    call.require(len(given) == 1, "segments have either lengths or offsets")
    call.require("indices" not in call or call["indices"] is None, "indices are not served")
    segments = call[given[0]]
    call.require(segments.dtype in _INDEX, f"{given[0]} must be integers")
    call.require(0 <= axis < data.dim() and axis == segments.dim() - 1, "axis is wrong")
    call.require(segments.shape[:-1] == data.shape[:axis], f"{given[0]} do not fit data")
    call.require(data.numel() > 0 and data.is_floating_point(), "data is empty or of a wrong type")
    count = segments.shape[-1] - (given[0] == "offsets")
    call.require(count >= 0, "offsets are empty")
    for name in ("grad", "output"):
        if name in call:
            call.shaped(name, (*data.shape[:axis], count, *data.shape[axis + 1 :]))
            call.typed(name, data.dtype)


@contract("_cdist_backward")
def _cdist(call: Call) -> None:
    result = call.forward("_cdist_forward", call["x1"], call["x2"], call["p"], None)
    call.same(call.either("grad", "grad_output"), result)
    call.saved("cdist", result)


@contract("_pdist_forward")
def _pdist(call: Call) -> None:
    call.require(call["self"].dim() == 2 and call["p"] >= 0, "it takes a matrix")
    call.contiguous("self")


@contract("_pdist_backward")
def _pdist_backward(call: Call) -> None:
    call.require(call["self"].dim() == 2 and call["p"] >= 0, "it takes a matrix")
    rows = call["self"].shape[0]
    call.require(rows > 0, "there are no rows")
    call.channels(rows * (rows - 1) // 2, "pdist")
    call.shaped(call.either("grad", "grad_output"), (rows * (rows - 1) // 2,))
    call.contiguous("self")


@contract("_fft_c2c", "_fft_r2c", "_fft_c2r")
def _fft(call: Call) -> None:
    tensor, dims = call["self"], call["dim"]
    call.require(call["normalization"] in (0, 1, 2), "its normalization is unknown")
    count = tensor.dim()
    call.require(len(set(dims)) == len(dims), "a dimension is named twice")
    # the kernels take negative ones for places before the first
    call.require(all(0 <= d < count for d in dims), "a dimension is out of range")
    call.require(all(tensor.shape[d] > 0 for d in dims), "a dimension is empty")
    if "last_dim_size" in call:
        call.require(bool(dims), "it needs a dimension")
        last = call["last_dim_size"]
        fits = last > 0 and tensor.shape[dims[-1]] == last // 2 + 1
        call.require(fits, "the last dimension is not half of last_dim_size")
