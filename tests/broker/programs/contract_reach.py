"""How far the kernels go that only CUDA has, in the words of their own index arithmetic.

They cannot run here, so their contracts are held to this instead: for a call's arguments, whether
every element that the kernel addresses lies in the tensor that it takes it from. Read off the
kernels (ATen/native/cuda/RNN.cu, Dropout.cu, ATen/native/transformers/cuda, ATen/native/cudnn),
independently of the contracts; checks that the kernels make themselves are left out, so a contract
that leans on one is found.
"""

from math import prod

__all__ = ["ON_CUDA", "within"]


def within(base, arguments):
    """Whether all that the kernel of this op touches for these arguments is there."""
    return ON_CUDA[base][1](arguments)


def holds(geometry, extents, strides, dtype):
    """The kernel walks `extents`, `strides` apart, over elements of `dtype`."""
    if geometry is None or geometry.dtype != dtype:
        return False
    if 0 in extents:
        return True
    last = sum((n - 1) * stride for n, stride in zip(extents, strides, strict=True))
    return last < span(geometry)


def span(geometry):
    """Elements from a tensor's first to its last."""
    if 0 in geometry.shape:
        return 0
    pairs = zip(geometry.shape, geometry.stride, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def counts(geometry, count, dtype):
    """The kernel goes through elements in their order, up to `count` of them."""
    return geometry is not None and geometry.dtype == dtype and count <= prod(geometry.shape)


def flat(geometry, count, dtype):
    """The kernel takes `count` elements one behind the other, whatever the strides."""
    return holds(geometry, (count,), (1,), dtype)


def attention(a, *, narrow=False):
    """Query, key, value: three strides are taken from each, the last one is one."""
    query, key, value = a["query"], a["key"], a["value"]
    if any(len(g.shape) != 4 for g in (query, key, value)):
        return False
    (batch, heads, length, width), shared, keys = query.shape, key.shape[1], key.shape[2]
    if shared == 0 or heads % shared:  # the host divides by it
        return False
    last = width if narrow else value.shape[3]
    return all(
        holds(a[name], extents, (*a[name].stride[:3], 1), query.dtype)
        for name, extents in (
            ("query", (batch, heads, length, width)),
            ("key", (batch, shared, keys, width)),
            ("value", (batch, shared, keys, last)),
        )
    )


def scores(a):
    """Batch, heads of the query, its length, the keys'."""
    return (*a["query"].shape[:3], a["key"].shape[2])


def flash(a):
    """One width for all three; descales are read by batch and head."""
    return attention(a, narrow=True) and a.get("q_descale") is None


def efficient(a):
    """As many heads in all three; the bias by three strides."""
    if not attention(a) or a["key"].shape[1] != a["query"].shape[1]:
        return False
    bias = a["attn_bias"]
    if bias is None:
        return True
    return len(bias.shape) == 4 and holds(bias, scores(a), (*bias.stride[:3], 1), a["query"].dtype)


def cudnn(a):
    """The bias is expanded, which raises where it does not fit; its type is not looked at."""
    bias = a["attn_bias"]
    if not attention(a) or bias is None:
        return attention(a)
    pairs = zip(reversed(bias.shape), reversed(scores(a)), strict=False)
    fits = len(bias.shape) <= 4 and all(size in (1, whole) for size, whole in pairs)
    return fits and bias.dtype == a["query"].dtype


def dense(a):
    """A sequence length per item would be read if it were there; nothing here is packed."""
    return a.get("cum_seq_q") is None and a.get("cum_seq_k") is None and 0 not in scores(a)


def outputs(a, grad):
    """The result as it was, and its gradient, which is made contiguous."""
    shape = (*a["query"].shape[:3], a["value"].shape[3])
    return all(a[n].shape == shape and a[n].dtype == a["query"].dtype for n in ("out", grad))


def flash_backward(a):
    """The logarithms lie one behind the other; the random state is two numbers."""
    return (
        flash(a)
        and dense(a)
        and outputs(a, "grad_out")
        and flat(a["logsumexp"], prod(a["query"].shape[:3]), "float32")
        and flat(a["philox_seed"], 2, "uint64")
    )


def numbers(a):
    """The random state is read on the host: a number each."""
    return all(flat(a[name], 1, "int64") for name in ("philox_seed", "philox_offset"))


def efficient_backward(a):
    """Rows of the result are all heads apart; the logarithms are padded to blocks of 32."""
    if not (efficient(a) and dense(a) and outputs(a, "grad_out_") and numbers(a)):
        return False
    (batch, heads, length, _), out, kept = a["query"].shape, a["out"], a["logsumexp"]
    width = a["value"].shape[3]
    steps = (out.stride[0], out.stride[1], heads * width, 1)
    rows = (batch, heads, -(-length // 32) * 32)
    return (
        holds(out, (batch, heads, length, width), steps, a["query"].dtype)
        and len(kept.shape) == 3
        and holds(kept, rows, (*kept.stride[:2], 1), "float32")
        and (len(a["grad_input_mask"]) == 4)
        and (a["attn_bias"] is not None or not a["grad_input_mask"][3])
    )


def cudnn_backward(a):
    """Lengths come with the call; the logarithms are walked by their own strides."""
    pairs = a["query"].shape[:3]
    kept = a["logsumexp"]
    return (
        cudnn(a)
        and dense(a)
        and outputs(a, "grad_out")
        and numbers(a)
        and (a["max_q"], a["max_k"]) == scores(a)[2:]
        and kept.dtype == "float32"
        and kept.shape in (pairs, (*pairs, 1))
    )


def cell(gates, state):
    """A fused cell's forward: for each element of the state, an element of each gate."""

    def check(a):
        kept = a[state]
        if any(len(a[n].shape) != 2 for n in ("input_gates", "hidden_gates", state)):
            return False
        count, hidden = prod(kept.shape), kept.shape[1]
        reach = furthest(count, hidden, gates)
        if not all(counts(a[n], reach, kept.dtype) for n in ("input_gates", "hidden_gates")):
            return False
        biases = a["input_bias"], a["hidden_bias"]
        if biases[0] is None:  # the kernel asks the first alone
            return True
        # of either, the last gate's element of the largest column
        columns = furthest(min(count, hidden), hidden, gates)
        return all(
            b is not None and len(b.shape) == 1 and counts(b, columns, kept.dtype) for b in biases
        )

    return check


def furthest(count, hidden, parts):
    """How many elements of rows of `parts` gates are reached by `count` elements of the state."""
    if not count:
        return 0
    row, column = divmod(count - 1, hidden)
    last_gate = row * parts * hidden + (parts - 1) * hidden
    return last_gate + column + 1


def lstm_backward(a):
    """The workspace holds four gates an element; gradients and states go side by side."""
    state = a["cx"]
    if a["grad_hy"] is None and a["grad_cy"] is None:
        return True  # nothing is done
    if any(len(a[n].shape) != 2 for n in ("cx", "workspace")):
        return False
    count, hidden = prod(state.shape), state.shape[1]
    others = [a[n] for n in ("cy", "grad_hy", "grad_cy") if a[n] is not None]
    return all(counts(g, count, state.dtype) for g in others) and counts(
        a["workspace"], furthest(count, hidden, 4), state.dtype
    )


def gru_backward(a):
    """Five numbers an element were saved; the gates' gradients are made by the saved rows."""
    grad, saved = a["grad_hy"], a["workspace"]
    if len(grad.shape) != 2 or len(saved.shape) != 2:
        return False
    count, hidden = prod(grad.shape), grad.shape[1]
    made = saved.shape[0] * (saved.shape[1] // 5) * 3
    return counts(saved, furthest(count, hidden, 5), grad.dtype) and (
        furthest(count, hidden, 3) <= made
    )


def layers(a):
    """cuDNN reads states and output one behind the other, by sizes that come with the call.

    The input and gradients are made contiguous; buffers are told with their bytes.
    """
    kind, sizes = a["input"].dtype, list(a["batch_sizes"])
    if len(a["input"].shape) != (2 if sizes else 3) or not 0 <= a["mode"] <= 3:
        return False
    if sizes:
        told = sum(sizes) == a["input"].shape[0] and sizes == sorted(sizes, reverse=True)
        rows, batch = a["input"].shape[0], sizes[0]
        if not told or sizes[-1] < 1:
            return False
    else:
        rows, batch = prod(a["input"].shape[:2]), a["input"].shape[0 if a["batch_first"] else 1]
    ways, hidden = 2 if a["bidirectional"] else 1, a["hidden_size"]
    shown = a["proj_size"] or hidden
    if min(a["num_layers"], hidden, shown) < 1:
        return False
    states = a["num_layers"] * ways * batch
    given = [("hx", states * shown)] + ([("cx", states * hidden)] if a["mode"] == 2 else [])
    if "output" in a:
        given.append(("output", rows * ways * shown))
    return all(flat(a[name], count, kind) for name, count in given)


def layers_backward(a):
    """Gradients of states are viewed in the states' sizes, which raises; so are the weights'."""
    whole = layers(a) and a["reserve"] is not None and a["reserve"].dtype == "uint8"
    return whole and a["weight_stride0"] > 0 and len(a["weight"]) % a["weight_stride0"] == 0


def normed(a):
    """cuDNN reads what is there a channel one behind the other, by the input's sizes."""
    kind, shape = a["input"].dtype, a["input"].shape
    wide = "float64" if kind == "float64" else "float32"
    if len(shape) < 3 or 0 in shape or a["weight"] is None:
        return False
    given = [
        a[n] for n in ("weight", "bias", "running_mean", "running_var") if a.get(n) is not None
    ]
    return all(flat(geometry, shape[1], wide) for geometry in given)


def normed_backward(a):
    """The same of what was saved; the reserve is told with its bytes."""
    wide = "float64" if a["input"].dtype == "float64" else "float32"
    whole = normed(a) and a["grad_output"].shape == a["input"].shape
    saved = [a["save_mean"], a["save_var"]]
    return (
        whole
        and a["grad_output"].dtype == a["input"].dtype
        and all(flat(geometry, a["input"].shape[1], wide) for geometry in saved)
        and a["reserveSpace"].dtype == "uint8"
    )


def sampled(a):
    """The picture by its strides; the grid, made contiguous, a pair of places for each output."""
    given, grid = a["self"], a["grid"]
    if len(given.shape) != 4 or len(grid.shape) != 4 or given.dtype == "bfloat16":
        return False
    places = given.shape[0] * prod(grid.shape[1:3]) * 2
    return 0 not in (*given.shape, *grid.shape) and counts(grid, places, given.dtype)


def sampled_backward(a):
    """The same, and a gradient by its own strides for each output."""
    size = (*a["self"].shape[:2], *a["grid"].shape[1:3])
    grad = a["grad_output"]
    return sampled(a) and holds(grad, size, grad.stride, a["self"].dtype)


def rms_backward(a):
    """A number a row, and a weight a column; the rest is made contiguous."""
    shape, normal = tuple(a["input"].shape), tuple(a["normalized_shape"])
    if not normal or shape[-len(normal) :] != normal or a["grad_out"].shape != shape:
        return False
    wide = "float64" if a["input"].dtype == "float64" else "float32"
    weight = a["weight"]
    return flat(a["rstd"], prod(shape[: -len(normal)]), wide) and (
        weight is None or counts(weight, prod(normal), a["input"].dtype)
    )


def alone(a):
    """It walks the one tensor it has, and makes the others like it."""
    return True


def together(a):
    """TensorIterator, which broadcasts or raises."""
    return True


#: base name: why it cannot run here, and how far it goes
_ONLY = "its kernel exists on CUDA alone; passed calls are held to its index arithmetic"
_NO_REACH = "its kernel exists on CUDA alone and takes no size from one tensor for another"
ON_CUDA = {
    "_scaled_dot_product_flash_attention": (_ONLY, flash),
    "_scaled_dot_product_flash_attention_backward": (_ONLY, flash_backward),
    "_scaled_dot_product_efficient_attention": (_ONLY, efficient),
    "_scaled_dot_product_efficient_attention_backward": (_ONLY, efficient_backward),
    "_scaled_dot_product_cudnn_attention": (_ONLY, cudnn),
    "_scaled_dot_product_cudnn_attention_backward": (_ONLY, cudnn_backward),
    "_thnn_fused_lstm_cell": (_ONLY, cell(4, "cx")),
    "_thnn_fused_lstm_cell_backward_impl": (_ONLY, lstm_backward),
    "_thnn_fused_gru_cell": (_ONLY, cell(3, "hx")),
    "_thnn_fused_gru_cell_backward": (_ONLY, gru_backward),
    "_cudnn_rnn": (_ONLY, layers),
    "_cudnn_rnn_backward": (_ONLY, layers_backward),
    "cudnn_batch_norm": (_ONLY, normed),
    "cudnn_batch_norm_backward": (_ONLY, normed_backward),
    "cudnn_grid_sampler": (_ONLY, sampled),
    "cudnn_grid_sampler_backward": (_ONLY, sampled_backward),
    "_fused_rms_norm_backward": (_ONLY, rms_backward),
    "_cudnn_init_dropout_state": (_NO_REACH, alone),
    "_fused_dropout": (_NO_REACH, alone),
    "_masked_scale": (_NO_REACH, together),
}
