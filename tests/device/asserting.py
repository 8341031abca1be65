"""Calls whose kernel asserts on CUDA, or trusts a value there, each with a wrong value.

By the op's base name, as the guards know it; `i` makes integers on the device, `f` floating-point
numbers, `r` random ones of a shape. Read off PyTorch's sources: wherever `CUDA_KERNEL_ASSERT`
stands, and where an index is used as it comes.
"""

__all__ = ["INDICES", "PRELUDE", "VALUES"]

PRELUDE = """
import torch, torch.nn.functional as F
aten, far = torch.ops.aten, 1 << 40
def i(values): return torch.tensor(values, device="cuda")
f = i
def r(*shape): return torch.randn(*shape, device="cuda")
def written(call, *shape):
    x = torch.zeros(*shape, device="cuda")
    call(x)
    return x
"""

#: IndexError
INDICES = {
    "nll_loss_forward": [
        "F.cross_entropy(r(4, 3), i([0, 1, 2, 3]))",
        "F.cross_entropy(r(4, 3), i([0, 1, 2, -1]))",
        "F.cross_entropy(r(4, 3), i([0, 1, 2, far]))",
        "F.nll_loss(r(4, 3), i([0, 3, 1, 1]), weight=r(3).abs())",
        "F.cross_entropy(r(4, 3), i([0, 7, 9, -7]), ignore_index=7, reduction='none')",
        "F.cross_entropy(r(4, 3), i([0, 1, 2, 3]), label_smoothing=0.1)",
        "F.cross_entropy(r(3), i(5))",
    ],
    "nll_loss2d_forward": [
        "F.cross_entropy(r(2, 3, 4, 4), torch.full((2, 4, 4), 3, device='cuda'))"
    ],
    "nll_loss_backward": [
        "aten.nll_loss_backward(f(1.), r(4, 3), i([0, 1, 2, 3]), None, 1, -100, f(4.))",
        "aten.nll_loss_backward(f(1.), r(4, 3), i([0, 1, 2, -5]), None, 1, -100, f(4.))",
    ],
    "nll_loss2d_backward": [
        "aten.nll_loss2d_backward(f(1.), r(2, 3, 2, 2), i([[[0, 1], [3, 0]]] * 2), None, 1, -100, "
        "f(8.))",
    ],
    "multi_margin_loss": [
        "F.multi_margin_loss(r(4, 3), i([0, 1, 2, 3]))",
        "F.multi_margin_loss(r(4, 3), i([0, 1, 2, -1]))",
    ],
    "multi_margin_loss_backward": [
        "aten.multi_margin_loss_backward(f(1.), r(4, 3), i([0, 1, 2, 3]), 1, 1.0, None, 1)",
    ],
    "multilabel_margin_loss_forward": [
        "F.multilabel_margin_loss(r(2, 3), i([[3, -1, 0], [0, 1, -1]]))",
        "F.multilabel_margin_loss(r(2, 3), i([[-2, -1, 0], [0, 1, -1]]))",
    ],
    "multilabel_margin_loss_backward": [
        "aten.multilabel_margin_loss_backward(f(1.), r(2, 3), i([[3, -1, 0], [0, 1, -1]]), 1, "
        "torch.zeros(2, 3, device='cuda'))",
    ],
    "max_pool2d_with_indices_backward": [
        "aten.max_pool2d_with_indices_backward(r(1, 1, 2, 2), r(1, 1, 4, 4), [2, 2], [2, 2], "
        "[0, 0], [1, 1], False, i([[[[0, 1], [16, 2]]]]))",
        "aten.max_pool2d_with_indices_backward(r(1, 1, 2, 2), r(1, 1, 4, 4), [2, 2], [2, 2], "
        "[0, 0], [1, 1], False, i([[[[0, 1], [-1, 2]]]]))",
    ],
    "max_pool3d_with_indices_backward": [
        "aten.max_pool3d_with_indices_backward(r(1, 1, 1, 1, 2), r(1, 1, 2, 2, 4), [2, 2, 2], "
        "[2, 2, 2], [0, 0, 0], [1, 1, 1], False, i([[[[[0, 16]]]]]))",
    ],
    "adaptive_max_pool2d_backward": [
        "aten.adaptive_max_pool2d_backward(r(1, 2, 2), r(1, 4, 4), i([[[0, 1], [16, 2]]]))",
    ],
    "adaptive_max_pool3d_backward": [
        "aten.adaptive_max_pool3d_backward(r(1, 1, 1, 2), r(1, 2, 2, 4), i([[[[0, 16]]]]))",
    ],
    "fractional_max_pool2d_backward": [
        "aten.fractional_max_pool2d_backward(r(1, 2, 2), r(1, 4, 4), [2, 2], [2, 2], "
        "i([[[0, 1], [16, 2]]]))",
    ],
    "fractional_max_pool3d_backward": [
        "aten.fractional_max_pool3d_backward(r(1, 1, 1, 2), r(1, 2, 2, 4), [2, 2, 2], [1, 1, 2], "
        "i([[[[0, 16]]]]))",
    ],
    "max_unpool2d": [
        "F.max_unpool2d(r(1, 1, 2), i([[[0, 16]]]), 2, output_size=(2, 4))",
        "F.max_unpool1d(r(1, 2), i([[0, 4]]), 2)",
        "F.max_unpool2d(r(1, 1, 2), i([[[0, -1]]]), 2, output_size=(2, 4))",
    ],
    "max_unpool3d": ["F.max_unpool3d(r(1, 1, 1, 2), i([[[[0, 16]]]]), 2)"],
    "embedding": [
        "F.embedding(i([1, 5]), r(5, 2))",
        "F.embedding(i([1, -1]), r(5, 2))",
        "F.embedding(torch.tensor([1, 5], dtype=torch.int32, device='cuda'), r(5, 2))",
        "F.embedding(i([1, far]), r(5, 2), padding_idx=0)",
    ],
    "embedding_dense_backward": [
        "aten.embedding_dense_backward(r(2, 3), i([0, 5]), 5, -1, False)",
        "aten.embedding_dense_backward(r(2, 3), i([0, -1]), 5, 0, True)",
    ],
    "embedding_renorm": ["F.embedding(i([1, 5]), r(5, 2), max_norm=1.0)"],
    "_embedding_bag": [
        "F.embedding_bag(i([1, 5]), r(5, 2).requires_grad_(), i([0, 1]))",
        "F.embedding_bag(i([1, 2]), r(5, 2).requires_grad_(), i([0, 3]))",
        "F.embedding_bag(i([1, 5]), r(5, 2).requires_grad_(), i([0, 1]), mode='max')",
    ],
    "_embedding_bag_forward_only": [
        "F.embedding_bag(i([1, 5]), r(5, 2), i([0, 1]))",
        "F.embedding_bag(i([[1, -1]]), r(5, 2), mode='sum')",
    ],
    "_embedding_bag_dense_backward": [
        "aten._embedding_bag_dense_backward(r(2, 3), i([0, 5]), i([0, 1]), i([1, 1]), i([0, 0]), "
        "5, False, 0, None, -1)",
        "aten._embedding_bag_dense_backward(r(2, 3), i([0, 4]), i([0, 7]), i([1, 1]), i([0, 0]), "
        "5, False, 0, None, -1)",
        "aten._embedding_bag_dense_backward(r(2, 3), i([0, 4]), i([0, 1]), i([1, 1]), "
        "i([[0] * 3, [9] * 3]), 5, False, 2, None, -1)",
    ],
    "_embedding_bag_backward": [
        "aten._embedding_bag_backward(r(2, 3), i([0, 5]), i([0, 1]), i([0, 1]), i([1, 1]), "
        "i([0, 0]), 5, False, 0, False, None, -1)",
    ],
    "_embedding_bag_per_sample_weights_backward": [
        "aten._embedding_bag_per_sample_weights_backward(r(2, 3), r(5, 3), i([0, 5]), i([0, 1]), "
        "i([0, 1]), 0, -1)",
    ],
    "linalg_lu_solve": [
        "torch.linalg.lu_solve(r(3, 3), torch.tensor([1, 2, 9], dtype=torch.int32, device='cuda'),"
        " r(3, 1))",
    ],
    "lu_solve": [
        "torch.lu_solve(r(3, 1), r(3, 3), torch.tensor([1, 2, 9], dtype=torch.int32, "
        "device='cuda'))",
    ],
    "lu_unpack": [
        "torch.lu_unpack(r(3, 3), torch.tensor([1, 2, 9], dtype=torch.int32, device='cuda'))[0]",
        "torch.lu_unpack(r(3, 3), torch.tensor([0, 2, 3], dtype=torch.int32, device='cuda'))[0]",
    ],
    "linalg_ldl_solve": [
        "torch.linalg.ldl_solve(r(3, 3), torch.tensor([1, 2, 9], dtype=torch.int32, "
        "device='cuda'), r(3, 1))",
    ],
    "_ctc_loss": [
        "F.ctc_loss(r(5, 2, 4).log_softmax(-1), i([[1, 4], [2, 3]]), (5, 5), (2, 2))",
        "F.ctc_loss(r(5, 2, 4).log_softmax(-1), i([[1, -2], [2, 3]]), (5, 5), (2, 2))",
    ],
    "_ctc_loss_backward": [
        "aten._ctc_loss_backward(r(2), r(5, 2, 4), i([[1, 4], [2, 3]]), [5, 5], [2, 2], r(2), "
        "r(2, 5, 5), 0)",
    ],
    "segment_reduce": [
        "torch.segment_reduce(r(5), 'sum', lengths=i([2, 9]), unsafe=True)",
        "torch.segment_reduce(r(5), 'sum', lengths=i([-1, 6]), unsafe=True)",
        "torch.segment_reduce(r(5), 'max', offsets=i([0, 9]), unsafe=True)",
    ],
    "_segment_reduce_backward": [
        "aten._segment_reduce_backward(r(2), r(2), r(5), 'sum', lengths=i([2, 9]))",
    ],
    "index": [
        "r(5)[i([0, 5])]",
        "r(5)[i([0, -6])]",
        "r(5, 3)[i([0, 1]), i([0, 3])]",
        "r(2, 5)[:, i([[0, far]])]",
        "r(5)[torch.tensor([5], dtype=torch.int32, device='cuda')]",
    ],
    "_unsafe_index": ["aten._unsafe_index(r(5), [i([0, 5])])"],
    "_unsafe_index_put": ["aten._unsafe_index_put(r(5), [i([0, 5])], f(1.0))"],
    "_index_put_impl": ["aten._index_put_impl_(r(5), [i([0, -6])], f(1.0), True, False)"],
    "index_put": [
        "written(lambda x: x.__setitem__(i([0, 5]), 1.0), 5)",
        "written(lambda x: x.__setitem__((i([0, 1]), i([0, -9])), 1.0), 5, 3)",
        "r(5).index_put((i([0, 5]),), f(1.0), accumulate=True)",
    ],
    "index_select": ["r(5, 2).index_select(0, i([5]))", "r(5, 2).index_select(1, i([-1]))"],
    "index_add": ["r(5).index_add(0, i([5]), r(1))", "r(5).index_add(0, i([-1]), r(1))"],
    "index_copy": ["r(5).index_copy(0, i([5]), r(1))"],
    "index_fill": ["r(5).index_fill(0, i([5]), 1.0)", "r(5).index_fill(0, i([-6]), 1.0)"],
    "index_reduce": ["r(5).index_reduce(0, i([5]), r(1), 'mean')"],
    "gather": [
        "r(5).gather(0, i([5]))",
        "r(5).gather(0, i([-1]))",
        "r(5).requires_grad_().gather(0, i([far]))",
    ],
    "scatter": [
        "r(5).scatter(0, i([5]), r(1))",
        "r(5).scatter(0, i([-1]), 1.0)",
        "r(5).scatter(0, i([5]), r(1), reduce='add')",
        "F.one_hot(i([0, 3]), 3)",
    ],
    "scatter_add": ["r(5).scatter_add(0, i([5]), r(1))"],
    "scatter_reduce": ["r(5).scatter_reduce(0, i([5]), r(1), 'amax')"],
    "take": ["r(5).take(i([5]))", "r(5).take(i([-6]))"],
    "put": ["r(5).put(i([5]), r(1))", "r(5).put(i([-6]), r(1), accumulate=True)"],
}

#: RuntimeError
VALUES = {
    "multinomial": [
        "torch.multinomial(f([0.1, float('nan')]), 1)",
        "torch.multinomial(f([0.1, float('inf')]), 1)",
        "torch.multinomial(f([0.1, -0.1]), 1)",
        "torch.multinomial(f([0.0, 0.0]), 1)",
        "torch.multinomial(f([[0.0, 0.0], [0.5, 0.5]]), 5, replacement=True)",
        "torch.distributions.Categorical(f([0.1, float('nan')]), validate_args=False).sample()",
    ],
    "bernoulli": [
        "torch.bernoulli(f([0.5, 2.0]))",
        "torch.bernoulli(f([0.5, -1.0]))",
        "torch.bernoulli(f([0.5, float('nan')]))",
        "written(lambda x: x.bernoulli_(f([0.5, 2.0])), 2)",
    ],
    "poisson": ["torch.poisson(f([1.0, -1.0]))", "torch.poisson(f([1.0, float('nan')]))"],
    "binary_cross_entropy": [
        "F.binary_cross_entropy(f([0.5, 2.0]), f([0.0, 1.0]))",
        "F.binary_cross_entropy(f([0.5, -1.0]), f([0.0, 1.0]), reduction='none')",
        "F.binary_cross_entropy(f([0.5, float('nan')]), f([0.0, 1.0]))",
        "F.binary_cross_entropy(f([0.5, 0.5]), f([0.0, 1.5]))",
    ],
    "masked_scatter": [
        "r(5).masked_scatter(f([True] * 5), r(2))",
        "written(lambda x: x.masked_scatter_(f([True, False, True, True]), r(1)), 4)",
    ],
    "fractional_max_pool2d": [
        "F.fractional_max_pool2d(r(1, 1, 6, 6), 2, 3, _random_samples=f([[[2.0, 2.0]]]))",
    ],
    "fractional_max_pool3d": [
        "F.fractional_max_pool3d(r(1, 1, 6, 6, 6), 2, 3, _random_samples=f([[[2.0, -2.0, 2.0]]]))",
    ],
    "repeat_interleave": ["torch.repeat_interleave(r(3), i([1, -1, 2]))"],
    "_assert_async": [
        "(torch._assert_async(f(False)), r(1))[1]",
        "(torch._assert_async(f(0.0), 'not so'), r(1))[1]",
    ],
    "linalg": [
        "torch.linalg.inv(torch.zeros(3, 3, device='cuda'))",
        "torch.linalg.cholesky(-torch.eye(3, device='cuda'))",
        "torch.linalg.solve(torch.zeros(3, 3, device='cuda'), r(3))",
    ],
    "normal": ["torch.normal(f([0.0]), f([-1.0]))"],
    "bincount": ["torch.bincount(i([0, -1]))"],
    "histc": ["torch.histc(f([0.0, float('nan')]))"],
    "ormqr": ["torch.linalg.eigh(f([[float('nan')] * 3] * 3))[0]"],
}
