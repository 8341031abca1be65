"""Sparse tensors in coordinate form: gradients of embeddings, products, sums, conversions."""

import pytest
import torch
from torch import nn

from jgpu.errors import NotSupported

INDICES = torch.tensor([[0, 1, 1, 2, 0], [2, 0, 2, 1, 2]])
VALUES = torch.tensor([3.0, 4.0, 5.0, 6.0, 7.0])
DENSE = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]])

# torch warns that sparse invariants are not checked, and of compressed layouts
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def matrix(device):
    return torch.sparse_coo_tensor(INDICES, VALUES, (3, 3), device=device)


def on_both(function):
    return [function(device) for device in ("cpu", "cuda")]


def same(native, shared):
    assert shared.device.type == "cuda"
    assert torch.equal(native.to_dense(), shared.cpu().to_dense())


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s,
        lambda s: s.coalesce(),
        lambda s: s.coalesce().indices(),
        lambda s: s.coalesce().values(),
        lambda s: s._values(),
        lambda s: s * 2,
        lambda s: 3 * s,
        lambda s: s / 4,
        lambda s: -s,
        lambda s: s + s,
        lambda s: s - s.t(),
        lambda s: torch.ones(3, 3, device=s.device) + s,
        lambda s: torch.ones(3, 3, device=s.device).add_(s, alpha=0.5),
        lambda s: torch.ones(3, 3, device=s.device).t().add_(s),
        lambda s: s * torch.arange(9.0, device=s.device).view(3, 3),
        lambda s: s.t(),
        lambda s: s.transpose(0, 1),
        lambda s: torch.sparse.sum(s),
        lambda s: s.clone(),
        lambda s: s.detach(),
        lambda s: s.double(),
        lambda s: s.to(torch.float64),
        lambda s: torch.ones(3, 3, device=s.device).sparse_mask(s.coalesce()),
        lambda s: s.coalesce().sqrt(),
    ],
)
def test_it_computes_as_on_the_host(function):
    same(*on_both(lambda device: function(matrix(device))))


@pytest.mark.parametrize(
    "product",
    [
        torch.sparse.mm,
        lambda s, x: s @ x,
        lambda s, x: torch.mm(s, x),
        lambda s, x: torch.mv(s, x[:, 0].contiguous()),
        lambda s, x: torch.sparse.addmm(torch.ones(3, 2, device=x.device), s, x, alpha=2.0),
    ],
)
def test_products_and_their_gradients(product):
    def run(device):
        x = torch.linspace(-1, 1, 6).view(3, 2).to(device).requires_grad_()
        y = product(matrix(device), x)
        y.pow(2).sum().backward()
        return y.detach().cpu(), x.grad.cpu()

    for native, shared in zip(*on_both(run), strict=True):
        torch.testing.assert_close(shared, native)


def test_conversions():
    shared = DENSE.cuda().to_sparse()
    assert (shared.is_sparse, shared.layout, shared.device.type) == (True, torch.sparse_coo, "cuda")
    assert (shared._nnz(), shared.sparse_dim(), shared.dense_dim()) == (3, 2, 0)
    assert shared.is_coalesced()
    assert torch.equal(shared.to_dense().cpu(), DENSE)
    assert torch.equal(shared.cpu().indices(), DENSE.to_sparse().indices())
    for moved in (DENSE.to_sparse().cuda(), DENSE.to_sparse().to("cuda")):
        assert torch.equal(moved.to_dense().cpu(), DENSE)
    rows = DENSE.cuda().to_sparse(1)
    assert (rows.sparse_dim(), rows.dense_dim()) == (1, 1)
    assert torch.equal(rows.to_dense().cpu(), DENSE)


def test_gradients_run_through_the_values():
    def run(device):
        x = DENSE.clone().to(device).requires_grad_()
        (x.to_sparse() * 2).to_dense().pow(2).sum().backward()
        return x.grad.cpu()

    native, shared = on_both(run)
    assert torch.equal(native, shared)


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_embeddings_train_by_sparse_gradients(make):
    def run(device):
        torch.manual_seed(0)
        table = nn.Embedding(20, 4, sparse=True, padding_idx=3).to(device)
        optimizer = make(table.parameters(), lr=0.1)
        ids = torch.tensor([[1, 2, 2, 3], [5, 1, 7, 7]]).to(device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (table(ids) ** 2).sum()
            loss.backward()
            assert table.weight.grad.is_sparse
            optimizer.step()
            losses.append(loss.item())
        return [*losses, *table.weight.detach().cpu().flatten().tolist()]

    native, shared = on_both(run)
    assert native == shared


def test_gradients_of_two_backwards_add_up():
    def run(device):
        table = nn.Embedding.from_pretrained(torch.ones(4, 2), freeze=False, sparse=True)
        table.to(device)
        for row in (1, 2, 1):
            table(torch.tensor([row]).to(device)).sum().backward()
        return table.weight.grad.cpu().to_dense()

    native, shared = on_both(run)
    assert torch.equal(native, shared)


def test_it_prints_as_torch_prints():
    assert repr(DENSE.cuda().to_sparse()) == (
        "tensor(indices=tensor([[0, 1, 1],\n"
        "                       [1, 0, 2]]),\n"
        "       values=tensor([1., 2., 3.]),\n"
        "       device='cuda:0', size=(2, 3), nnz=3, layout=torch.sparse_coo)"
    )


@pytest.mark.parametrize(
    "bad",
    [
        lambda: torch.sparse_coo_tensor(
            [[0, 5], [1, 2]], [1.0, 2.0], (2, 3), device="cuda", check_invariants=True
        ),
        lambda: torch.sparse_coo_tensor(
            [[0, -1], [1, 2]], [1.0, 2.0], (2, 3), device="cuda", check_invariants=True
        ),
        lambda: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (2, 3), device="cuda"),
        lambda: matrix("cuda").indices(),
        lambda: torch.sparse.mm(matrix("cuda"), torch.ones(4, 2, device="cuda")),
        lambda: torch.ones(2, 2, device="cuda") + matrix("cuda"),
    ],
)
def test_bad_ones_raise_on_the_line(bad):
    with pytest.raises(RuntimeError):
        bad()


@pytest.mark.parametrize(
    "unknown",
    [
        lambda: torch.linalg.svd(matrix("cuda")),
        lambda: torch.exp(matrix("cuda")),
    ],
)
def test_what_is_not_spelled_out_is_refused(unknown):
    with pytest.raises(NotSupported, match="does not support"):
        unknown()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("given", [{}, {"padding_idx": 3}, {"include_last_offset": True}])
def test_bags_of_embeddings_train_by_sparse_gradients(mode, given):
    def trained(device):
        torch.manual_seed(0)
        bags = torch.nn.EmbeddingBag(20, 4, mode=mode, sparse=True, **given)
        bags.weight.data = torch.linspace(-1, 1, 80).view(20, 4)
        bags.to(device)
        begins = [0, 3, 3, 8] + [12] * ("include_last_offset" in given)
        offsets = torch.tensor(begins, device=device)
        optimizer = torch.optim.SparseAdam(bags.parameters(), 0.1)
        losses = []
        for step in range(3):
            indices = (torch.arange(12, device=device) * (7 + step)) % 20
            weights = torch.linspace(0, 1, 12, device=device) if mode == "sum" else None
            loss = bags(indices, offsets, per_sample_weights=weights).square().sum()
            optimizer.zero_grad()
            loss.backward()
            assert bags.weight.grad.is_sparse
            losses += [loss.item(), *bags.weight.grad.to_dense().flatten().tolist()]
            optimizer.step()
        return losses, bags.weight.tolist()

    assert trained("cuda") == trained("cpu")
