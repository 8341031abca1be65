"""Compressed sparse layouts: parts, conversions, products and gradients as on the host."""

import copy
import pickle

import pytest
import torch
from torch import nn

from jgpu.device.sparse import dots
from jgpu.errors import NotSupported, WorkFailed

DENSE = torch.tensor([[0.0, 1.5, 0.0, 0.3], [2.0, 0.0, 3.7, 0.0], [0.0, 0.0, 0.0, 0.0]])
SIZES = {"csr": None, "csc": None, "bsr": (3, 2), "bsc": (1, 2)}

# torch warns that compressed layouts are in beta, and of unchecked invariants
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def layout_of(name):
    return getattr(torch, f"sparse_{name}")


def made(name, device):
    return DENSE.to(device).to_sparse(layout=layout_of(name), blocksize=SIZES[name])


def on_both(function):
    return [function(device) for device in ("cpu", "cuda")]


def parts(tensor):
    rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow_indices", "col_indices") if rows else ("ccol_indices", "row_indices")
    return [getattr(tensor, name)() for name in (*names, "values")]


def same(native, shared):
    assert shared.device.type == "cuda"
    assert (shared.layout, shared.shape, shared.dtype) == (
        native.layout,
        native.shape,
        native.dtype,
    )
    if native.layout is torch.strided:
        assert torch.equal(native, shared.cpu())
    elif native.layout is torch.sparse_coo:
        assert torch.equal(native.to_dense(), shared.cpu().to_dense())
    else:
        assert shared._nnz() == native._nnz()
        for expected, found in zip(parts(native), parts(shared), strict=True):
            assert torch.equal(expected, found.cpu())


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "function",
    [
        lambda s: s,
        lambda s: s.to_dense(),
        lambda s: s.clone(),
        lambda s: s.detach(),
        lambda s: s.double(),
        lambda s: s * 2,
        lambda s: 3 * s,
        lambda s: -s,
        lambda s: s.relu(),
        lambda s: s.t(),
        lambda s: s.transpose(0, 1).to_dense(),
        lambda s: s.to_sparse(layout=s.layout, blocksize=SIZES[str(s.layout)[-3:]]),
        lambda s: torch.zeros_like(s),
        lambda s: s.sum(),
        lambda s: torch.ones(3, 4, device=s.device).sparse_mask(s),
        lambda s: s.cpu().to(s.device),
    ],
)
def test_it_computes_as_on_the_host(name, function):
    same(*on_both(lambda device: function(made(name, device))))


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s.to_sparse(),
        lambda s: s.to_sparse_coo(),
        lambda s: s.to_sparse_csc(),
        lambda s: s.to_sparse_csc().to_sparse_csr(),
        lambda s: s.to_sparse_csc().to_sparse(),
        lambda s: s.to_sparse().to_sparse_csr(),
        lambda s: s.to_sparse_csc().to_sparse_bsr((1, 4)),
        lambda s: s.to_sparse_bsr((3, 4)).to_dense(),
        lambda s: (s * 0).to_sparse_bsc((3, 1)),
        lambda s: s + s,
        lambda s: s + s.to_dense().to_sparse_csr(),
        lambda s: s + (s.to_dense() - 1).to_sparse_csr(),
        lambda s: s + torch.ones(3, 4, device=s.device),
        lambda s: torch.ones(3, 4, device=s.device) + s,
        lambda s: s * torch.arange(12.0, device=s.device).view(3, 4),
        lambda s: s * s,
        lambda s: s.sum(1, keepdim=True),
        lambda s: s.sqrt(),
    ],
)
def test_rows_compressed(function):
    same(*on_both(lambda device: function(made("csr", device))))


def random_graph(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    dense = dense * (torch.rand(6, 5, generator=generator) < 0.5)
    dense[2] = 0
    others = [torch.randn(s, generator=generator) for s in ((5, 11), (6, 11), (6, 19), (19, 5))]
    return [dense.to(dtype).to(device).to_sparse_csr(), *(o.to(dtype).to(device) for o in others)]


def test_how_tails_are_rounded_is_asked_in_single_precision_whatever_the_default_is():
    ask = dots._rounds_tails_once.__wrapped__
    answer = ask()
    torch.set_default_dtype(torch.float16)
    try:
        assert ask() == answer
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_reduced_products_and_their_gradients_have_native_bits(reduce, dtype):
    def run(device):
        a, x, g, *_ = random_graph(device, dtype)
        a, x = a.requires_grad_(), x.requires_grad_()
        y = torch.sparse.mm(a, x, reduce)
        first, second = torch.autograd.grad(y, [a, x], g)
        return [first, y.detach(), second]

    (first, *natively), (shared, *others) = on_both(run)
    same(first, shared)
    check = close if reduce in ("sum", "mean") else same  # native sums round once a term
    for native, other in zip(natively, others, strict=True):
        check(native, other)


@pytest.mark.parametrize("name", ["csr", "csc", "bsr"])
def test_products_of_all_layouts(name):
    def run(device):
        size = (2, 2) if name == "bsr" else None
        s = DENSE[:2].to(device).to_sparse(layout=layout_of(name), blocksize=size)
        return [s @ torch.linspace(-1, 1, 8, device=device).view(4, 2)]

    close(*(tensors[0] for tensors in on_both(run)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sampled_products_have_native_bits(dtype):
    def run(device):
        a, _, _, left, right = random_graph(device, dtype)
        return torch.sparse.sampled_addmm(a, left, right, alpha=0.7, beta=-0.3)

    same(*on_both(run))


def close(native, shared):
    assert native.layout is shared.layout
    torch.testing.assert_close(shared.cpu().to_dense(), native.to_dense())


@pytest.mark.parametrize(
    "product",
    [
        lambda a, x: a @ x,
        lambda a, x: a.mm(x),
        lambda a, x: torch.mv(a, x[:, 0]),
        lambda a, x: x.t() @ a.t(),
        lambda a, x: torch.addmm(torch.ones(6, 11, device=x.device), a, x, beta=2, alpha=0.5),
        lambda a, x: torch.sparse.addmm(torch.ones(6, 11, device=x.device), a, x, beta=2),
        lambda a, x: torch.sparse.mm(a, x),
        lambda a, x: a.to_dense() @ x,
        lambda a, x: (a * 2).sum() * x,
        lambda a, x: torch.ones(6, 5, device=x.device) + a,
        lambda a, x: a.values() * 3,
        lambda a, x: (a + a).to_dense(),
        lambda a, x: a.t().to_dense(),
        lambda a, x: a.to_sparse_csc().to_dense(),
        lambda a, x: a.to_sparse().to_dense(),
        lambda a, x: a.double().to_dense(),
    ],
)
def test_gradients_have_native_layouts(product):
    def run(device):
        a, x, *_ = random_graph(device)
        a, x = a.requires_grad_(), x.requires_grad_()
        y = product(a, x)
        grads = torch.autograd.grad(y.cos().sum(), [a, x], allow_unused=True)
        return [y.detach(), *(grad for grad in grads if grad is not None)]

    for native, shared in zip(*on_both(run), strict=True):
        close(native, shared)


def test_sampled_products_have_native_gradients():
    def run(device):
        tensors = random_graph(device)
        a, left, right = (tensors[k].requires_grad_() for k in (0, 3, 4))
        y = torch.sparse.sampled_addmm(a, left, right, alpha=0.7, beta=-0.3)
        dense = torch.linspace(-1, 1, 30, device=device).view(6, 5)
        return [
            *torch.autograd.grad(y, [a, left, right], dense, retain_graph=True),
            *torch.autograd.grad(y.to_dense().sin().sum(), [a, left, right]),
        ]

    for native, shared in zip(*on_both(run), strict=True):
        close(native, shared)


def test_a_graph_network_trains_to_the_same_losses():
    def run(device):
        torch.manual_seed(0)
        graph, x, *_ = random_graph("cpu")
        graph = (graph @ graph.to_dense().t()).to_sparse_csr().to(device)
        layer = nn.Linear(4, 3).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        x = torch.linspace(-1, 1, 24).view(6, 4).to(device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (graph @ layer(x)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    native, shared = on_both(run)
    assert shared == pytest.approx(native, rel=1e-5)


def test_gradients_of_two_backwards_add_up():
    def run(device):
        a, x, *_ = random_graph(device)
        a = a.requires_grad_()
        for factor in (1, 2):
            torch.sparse.mm(a, x * factor).sum().backward()
        return a.grad

    close(*on_both(run))


@pytest.mark.parametrize("name", SIZES)
def test_constructors(name):
    native = made(name, "cpu")
    function = getattr(torch, f"sparse_{name}_tensor")
    for given in (parts(native), [part.tolist() for part in parts(native)]):
        same(native, function(*given, (3, 4), device="cuda"))
    on_device = [part.cuda() for part in parts(native)]
    same(native, torch.sparse_compressed_tensor(*on_device, (3, 4), layout=layout_of(name)))
    same(function(*parts(native)).double(), function(*on_device, dtype=torch.float64))
    assert function(*on_device, size=(3, 4), requires_grad=True).requires_grad
    for moved in (native.cuda(), native.to("cuda")):
        same(native, moved)
        assert moved.is_sparse_csr is native.is_sparse_csr
        assert not moved.is_sparse


def test_constructors_know_parts_by_name():
    crow, col, values = (part.cuda() for part in parts(made("csr", "cpu")))
    shared = torch.sparse_csr_tensor(crow_indices=crow, col_indices=col, values=values, size=(3, 4))
    same(made("csr", "cpu"), shared)


def test_batches_and_dense_dimensions():
    batch = torch.stack([DENSE, DENSE.flip(1)])
    for dense, dimensions in ((batch, 0), (batch.permute(1, 2, 0), 1)):
        native, shared = (dense.to(d).to_sparse_csr(dimensions) for d in ("cpu", "cuda"))
        same(native, shared)
        assert (shared.sparse_dim(), shared.dense_dim()) == (2, dimensions)
        same(dense, shared.to_dense())
    with pytest.raises(RuntimeError, match="needs two dimensions"):
        torch.ones(4, device="cuda").to_sparse_csr()
    with pytest.raises(RuntimeError, match="same number of specified elements"):
        torch.stack([DENSE, DENSE + 1]).cuda().to_sparse_csr()


def test_it_prints_and_pickles_as_torch_does():
    shared = made("csr", "cuda")
    assert repr(shared) == (
        "tensor(crow_indices=tensor([0, 2, 4, 4]),\n"
        "       col_indices=tensor([1, 3, 0, 2]),\n"
        "       values=tensor([1.5000, 0.3000, 2.0000, 3.7000]), device='cuda:0', "
        "size=(3, 4), nnz=4,\n"
        "       layout=torch.sparse_csr)"
    )
    assert repr(shared.requires_grad_()).endswith("layout=torch.sparse_csr, requires_grad=True)")
    assert "grad_fn=<" in repr(shared * 2)
    kept = pickle.loads(pickle.dumps(made("csr", "cuda")))
    assert torch.equal(kept.to_dense().cpu(), DENSE)


class Graph(nn.Module):
    """A fixed graph in a buffer, a learnt one in a parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("fixed", DENSE.to_sparse_csr())
        self.learnt = nn.Parameter(DENSE.t().to_sparse_csr())

    def forward(self, x):
        return torch.sparse.mm(self.learnt, self.fixed @ self.linear(x))


def test_modules_hold_them():
    def run(device):
        torch.manual_seed(0)
        graph = Graph()
        learnt = graph.learnt
        assert graph.to(device).learnt is learnt
        x = torch.linspace(-1, 1, 16).view(4, 4).to(device)
        graph(x).sum().backward()
        kept = learnt.grad.to_dense()  # before the values have another type
        home = graph.double().cpu().learnt
        assert (home.device.type, home.layout, home.dtype) == ("cpu", learnt.layout, torch.float64)
        return kept, home

    (native, _), (shared, home) = on_both(run)
    torch.testing.assert_close(shared.cpu(), native)
    assert torch.equal(home.to_dense(), DENSE.t().double())


def test_a_module_is_copied_and_saved(tmp_path):
    graph = Graph().cuda()
    twin = copy.deepcopy(graph)
    assert twin.learnt is not graph.learnt
    assert torch.equal(twin.fixed.to_dense().cpu(), DENSE)
    torch.save(graph.state_dict(), tmp_path / "graph.pt")
    state = torch.load(tmp_path / "graph.pt")
    assert torch.equal(state["fixed"].to_dense().cpu(), DENSE)


def test_in_place():
    def run(device):
        first, second = made("csr", device), made("csr", device) * 3
        first.add_(second)
        first.mul_(2)
        second.copy_(first)
        return [first.clone(), second, first.zero_()]

    for native, shared in zip(*on_both(run), strict=True):
        close(native, shared)


@pytest.mark.parametrize(
    "bad",
    [
        lambda s: s.stride(),
        lambda s: s.row_indices(),
        lambda s: s.sum(1),
        lambda s: s @ torch.ones(3, 2, device=s.device),
        lambda s: s @ torch.ones(4, 2, device=s.device, dtype=torch.float64),
        lambda s: torch.sparse.mm(s.to_sparse_csc(), torch.ones(4, 2, device=s.device), "sum"),
        lambda s: torch.sparse.mm(s, torch.ones(4, 2, device=s.device), "most"),
        lambda s: s + torch.ones(2, 2, device=s.device).to_sparse_csr(),
        lambda s: torch.ones(3, 4, device=s.device).to_sparse_bsr((2, 2)),
        lambda s: torch.sparse.sampled_addmm(
            s, torch.ones(3, 2, device=s.device), torch.ones(3, 4, device=s.device)
        ),
        lambda s: torch.sparse_csr_tensor(
            [0, 1], [7], [1.0], (1, 3), device=s.device, check_invariants=True
        ),
        lambda s: torch.exp(s),
    ],
)
def test_bad_ones_raise_on_the_line(bad):
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError):
            bad(made("csr", device))


def test_host_and_device_do_not_mix():
    with pytest.raises(RuntimeError, match="at least two devices"):
        made("csr", "cuda") @ torch.ones(4, 2)


@pytest.mark.parametrize(
    "unknown",
    [
        lambda s: s @ s.t(),
        lambda s: s[0],
        lambda s: torch.exp(s),
        lambda s: torch.linalg.svd(s),
    ],
)
def test_what_is_not_spelled_out_is_refused(unknown):
    with pytest.raises(NotSupported, match="does not support"):
        unknown(made("csr", "cuda"))


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "make",
    [
        torch.ones_like,
        lambda t: torch.ones_like(t, dtype=torch.int64),
        lambda t: torch.full_like(t, 2.5),
        lambda t: torch.full_like(t, fill_value=3, dtype=torch.float64),
    ],
)
def test_one_that_is_filled_has_the_same_entries(name, make):
    same(*on_both(lambda device: make(made(name, device))))


def test_an_index_that_nobody_checked_harms_nothing():
    wild = torch.sparse_csr_tensor([0, 1], [7], [1.0], (1, 3), device="cuda")
    with pytest.raises((IndexError, WorkFailed)):
        wild.to_dense().sum().item()
    assert torch.equal(made("csr", "cuda").to_dense().cpu(), DENSE)
