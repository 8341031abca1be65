"""Sparse tensors as leaves of autograd: gradients, their layout and entries, optimizers."""

import pytest
import torch
from torch import nn

from jgpu.errors import NotSupported

INDICES = torch.tensor([[0, 1, 1, 2, 0], [2, 0, 2, 1, 2]])
VALUES = torch.tensor([3.0, 4.0, 5.0, 6.0, 7.0])

# torch warns that sparse invariants are not checked, and of compressed layouts
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def uncoalesced(device, dtype=torch.float32):
    return torch.sparse_coo_tensor(INDICES.clone(), VALUES.to(dtype), (3, 3)).to(device)


def coalesced(device, dtype=torch.float32):
    host = torch.sparse_coo_tensor(INDICES.clone(), VALUES.to(dtype), (3, 3))
    return host.coalesce().to(device)


def hybrid(device):
    indices = torch.tensor([[0, 2, 0]])
    return torch.sparse_coo_tensor(indices, torch.arange(6.0).view(3, 2), (3, 2)).to(device)


LEAVES = {
    "coalesced": lambda d: coalesced(d).requires_grad_(),
    "uncoalesced": lambda d: uncoalesced(d).requires_grad_(),
    "parameter": lambda d: nn.Parameter(coalesced(d)),
    "constructed": lambda d: torch.sparse_coo_tensor(
        INDICES, VALUES, (3, 3), device=d, requires_grad=True
    ),
    "hybrid": lambda d: hybrid(d).requires_grad_(),
    "complex": lambda d: coalesced(d, torch.complex64).requires_grad_(),
    "double": lambda d: coalesced(d, torch.float64).requires_grad_(),
    "of a dense one": lambda d: torch.eye(3, device=d).to_sparse().requires_grad_(),
}


def dense(like, *shape):
    count = torch.Size(shape).numel()
    return (torch.arange(float(count)).view(shape) + 1).to(like.device, like.dtype)


OPS = {
    "sparse.mm": lambda s: torch.sparse.mm(s, dense(s, 3, 2)),
    "mm": lambda s: torch.mm(s, dense(s, 3, 2)),
    "@": lambda s: s @ dense(s, 3, 2),
    "mv": lambda s: s.mv(dense(s, 3)),
    "sparse.addmm": lambda s: torch.sparse.addmm(
        dense(s, 3, 2), s, dense(s, 3, 2), beta=0.5, alpha=2.0
    ),
    "addmm": lambda s: torch.addmm(dense(s, 3, 2), s, dense(s, 3, 2)),
    "dense times sparse": lambda s: torch.sparse.mm(dense(s, 2, 3), s),
    "to_dense": lambda s: s.to_dense() * dense(s, *s.shape),
    "sparse.sum": torch.sparse.sum,
    "sparse.sum(0)": lambda s: torch.sparse.sum(s, 0),
    "sparse.sum(1)": lambda s: torch.sparse.sum(s, 1),
    "sum": lambda s: s.sum(),
    "times a number": lambda s: s * 2,
    "number times": lambda s: 3 * s,
    "over a number": lambda s: s / 4,
    "negative": lambda s: -s,
    "square of itself": lambda s: s * s,
    "times dense": lambda s: s * dense(s, *s.shape),
    "sum of two": lambda s: s + s,
    "difference": lambda s: s - 2 * s,
    "dense plus sparse": lambda s: dense(s, *s.shape) + s,
    "pow": lambda s: s.pow(2),
    "abs": lambda s: s.abs(),
    "relu": lambda s: s.relu(),
    "coalesce": lambda s: s.coalesce(),
    "values": lambda s: s.coalesce().values(),
    "values of a leaf": lambda s: s.values(),
    "_values": lambda s: s._values(),
    "t": lambda s: s.t(),
    "transpose": lambda s: s.transpose(0, 1),
    "clone": lambda s: s.clone(),
    "detach": lambda s: s.detach(),
    "to double": lambda s: s.to(torch.float64),
    "sparse_mask": lambda s: s.sparse_mask(s.detach().coalesce()),
    "to_sparse": lambda s: s.to_sparse(),
    "in place on a leaf": lambda s: s.mul_(2),
    "in place": lambda s: s.clone().mul_(2),
    "conj": lambda s: s.conj(),
}


def seen(tensor):
    """What a notebook can see of a tensor, but the flag of gradients that they are coalesced."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    tensor = tensor.detach()
    host = tensor.cpu()
    if host.layout is torch.sparse_coo:
        parts = host._indices().tolist(), host._values().tolist()
    else:
        parts = host.tolist()
    return str(host.layout), str(host.dtype), tuple(host.shape), parts


def scalar(made):
    total = torch.sparse.sum(made) if made.is_sparse else (made * made).sum()
    return total.abs() if total.is_complex() else total


def walk(leaf, op, device):
    """Values, autograd's view and gradient; or the class of the error."""
    s = LEAVES[leaf](device)
    try:
        made = OPS[op](s)
        found = [seen(made), made.requires_grad, made.is_leaf, type(made.grad_fn).__name__]
        if made.is_sparse:
            found.append(made.is_coalesced())
        if made.requires_grad:
            scalar(made).backward()
    except NotSupported:
        return "refused"
    except RuntimeError as error:
        return type(error).__name__
    return [*found, seen(s.grad), s.is_leaf]


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_op_gives_a_leaf_its_native_gradient(leaf):
    different = {}
    for op in OPS:
        native, shared = walk(leaf, op, "cpu"), walk(leaf, op, "cuda")
        if shared == "refused" and (op in ("dense times sparse",) or isinstance(native, str)):
            continue
        if native != shared:
            different[op] = native, shared
    assert different == {}
