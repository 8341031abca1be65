"""Compressed and dense leaves of autograd: gradients, their layouts, hooks, and zero_grad."""

import pytest
import torch
from torch import nn

from jgpu.errors import NotSupported

DENSE = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0], [0, 5, 0, 0]])

# torch warns that sparse invariants are not checked, and of compressed layouts
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LEAVES = {
    "csr": lambda d: DENSE.to_sparse_csr().to(d).requires_grad_(),
    "complex csr": lambda d: (DENSE * (1 + 2j)).to_sparse_csr().to(d).requires_grad_(),
    "csr parameter": lambda d: nn.Parameter(DENSE.to_sparse_csr().to(d)),
    "csc": lambda d: DENSE.to_sparse_csc().to(d).requires_grad_(),
    "bsr": lambda d: DENSE.to_sparse_bsr((2, 2)).to(d).requires_grad_(),
    "rows": lambda d: torch.cat([DENSE, DENSE]).to(d)[2:6].requires_grad_(),
    "columns": lambda d: nn.Parameter(torch.cat([DENSE, DENSE], 1).to(d)[:, ::2]),
}


def dense(like, *shape):
    count = torch.Size(shape).numel()
    return (torch.arange(float(count)).view(shape) + 1).to(like.device, like.dtype)


OPS = {
    "sum": lambda s: s.sum(),
    "sum over rows": lambda s: s.sum(0, keepdim=True),
    "mm": lambda s: torch.mm(s, dense(s, 4, 3)),
    "@": lambda s: s @ dense(s, 4, 3),
    "mv": lambda s: s.mv(dense(s, 4)),
    "dense @": lambda s: dense(s, 3, 4) @ s,
    "addmm": lambda s: torch.addmm(dense(s, 4, 3), s, dense(s, 4, 3), beta=0.5, alpha=2),
    "to_dense": lambda s: s.to_dense() * dense(s, 4, 4),
    "times a number": lambda s: 3 * s,
    "times a tensor": lambda s: s * torch.tensor(2.0, device=s.device),
    "times dense": lambda s: s * dense(s, 4, 4),
    "times itself": lambda s: s * s,
    "sum of two": lambda s: s + s,
    "dense plus": lambda s: dense(s, 4, 4) + s,
    "negative": lambda s: -s,
    "abs": lambda s: s.abs(),
    "sin": lambda s: s.sin(),
    "t": lambda s: s.t(),
    "clone": lambda s: s.clone(),
    "values": lambda s: s.values() if s.layout is not torch.strided else s,
    "to_sparse_csr": lambda s: s.to_sparse_csr(),
    "to_sparse": lambda s: s.to_sparse(),
    "detach": lambda s: s.detach(),
    "in place": lambda s: s.clone().mul_(2),
}


def seen(tensor):
    if tensor is None:
        return None
    host = tensor.detach().cpu()
    told = [str(host.layout), str(host.dtype), tuple(host.shape), host.to_dense().tolist()]
    return told if host.layout in (torch.strided, torch.sparse_coo) else [*told, host._nnz()]


def total(made):
    if made.layout is torch.strided:
        made = made * made
    number = torch.sparse.sum(made) if made.is_sparse else made.sum()
    return number.abs() if number.is_complex() else number


def walk(leaf, op, device):
    """The result, the gradient by each way, and what zero_grad leaves; or the error."""
    s, told = LEAVES[leaf](device), []
    try:
        made = OPS[op](s)
        found = [seen(made), made.requires_grad, made.is_leaf]
        if made.requires_grad:
            s.register_hook(lambda grad: told.append(seen(grad)))
            total(made).backward()
            found += [seen(s.grad), told]
            total(OPS[op](s)).backward()
            found += [seen(s.grad), seen(torch.autograd.grad(total(OPS[op](s)), s)[0])]
            optimizer = torch.optim.SGD([s], 0.1)
            optimizer.zero_grad(set_to_none=False)
            found += [seen(s.grad)]
            optimizer.zero_grad()
            found += [s.grad is None]
    except NotSupported:
        return "refused"
    except RuntimeError as error:
        return type(error).__name__
    return found


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_op_gives_a_leaf_its_native_gradient(leaf):
    different, refused = {}, []
    for op in OPS:
        native, shared = walk(leaf, op, "cpu"), walk(leaf, op, "cuda")
        if shared == "refused":
            refused.append(op)
        elif native != shared and not isinstance(native, str):  # which the device may compute
            different[op] = native, shared
    assert different == {}
    assert set(refused) <= ({"in place", "to_sparse"} if leaf == "bsr" else {"in place"})
