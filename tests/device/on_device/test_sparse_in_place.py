"""Ops in place on sparse tensors: values, flags, what shares values, and orders of sums."""

import copy

import pytest
import torch
from torch import nn

from jgpu.errors import NotSupported

DENSE = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0], [0, 5, 0, 0]])

# torch warns that sparse invariants are not checked, and of compressed layouts
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TENSORS = {
    "coordinates": lambda: DENSE.to_sparse(),
    "uncoalesced": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 0, 3], [2, 0, 2, 3]]), torch.tensor([1.0, -2, 3, 0.5]), (4, 4)
    ),
    "hybrid": lambda: DENSE.to_sparse(1),
    "csr": lambda: DENSE.to_sparse_csr(),
    "csc": lambda: DENSE.to_sparse_csc(),
    "bsr": lambda: DENSE.to_sparse_bsr((2, 2)),
}


def values_of(tensor):
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def dense(like):
    return torch.arange(16.0).view(4, 4).to(like.device)


SHARED = {"detach": lambda t: t.detach(), "copy": copy.copy, "values": values_of}
OPS = {
    "mul_": lambda t: t.mul_(2),
    "*=": lambda t: t.__imul__(3),
    "mul_ of a tensor": lambda t: t.mul_(torch.tensor(2.0, device=t.device)),
    "mul_ of a sparse one": lambda t: t.mul_(t.clone()),
    "mul_ of a dense one": lambda t: t.mul_(dense(t)),
    "div_": lambda t: t.div_(2),
    "add_": lambda t: t.add_(t.clone()),
    "add_ of a part": lambda t: t.add_(t.clone(), alpha=0.5),
    "add_ of a dense one": lambda t: t.add_(dense(t)),
    "add_ to a dense one": lambda t: dense(t).add_(t),
    "sub_": lambda t: t.sub_(t.clone()),
    "copy_": lambda t: t.copy_(t.clone() * 7),
    "copy_ from the host": lambda t: t.copy_(t.cpu() * 3),
    "in the values": lambda t: values_of(t).mul_(3),
    **{
        name: lambda t, name=name: getattr(t, name)()
        for name in ("abs_", "neg_", "sqrt_", "relu_", "floor_", "sin_", "tanh_", "nan_to_num_")
    },
}


def seen(tensor):
    shown = tensor.detach()
    if shown.layout is torch.strided:
        return shown.tolist()
    parts = shown.cpu().to_dense().tolist(), values_of(shown).tolist(), tuple(shown.shape)
    return *parts, shown.is_coalesced() if shown.is_sparse else None


def outcome(name, sharing, op, device):
    tensor = TENSORS[name]().to(device)
    other = SHARED[sharing](tensor)
    try:
        made = OPS[op](tensor)
    except NotSupported:
        return "refused"
    except RuntimeError as error:
        return type(error).__name__
    return seen(made), made is tensor, seen(tensor), seen(other)


@pytest.mark.parametrize("name", TENSORS)
def test_an_op_in_place_changes_what_it_changes_natively(name):
    different = {}
    for sharing in SHARED:
        for op in OPS:
            native, shared = (outcome(name, sharing, op, device) for device in ("cpu", "cuda"))
            # the device adds in layouts in which native kernels do not
            if native != shared and shared != "refused" and native != "RuntimeError":
                different[sharing, op] = native, shared
    assert different == {}


@pytest.mark.parametrize("name", ["coordinates", "uncoalesced", "hybrid"])
def test_few_ops_in_place_are_refused(name):
    assert [op for op in OPS if outcome(name, "detach", op, "cuda") == "refused"] == []


@pytest.mark.parametrize("name", TENSORS)
def test_a_copy_has_values_of_its_own(name):
    source = TENSORS[name]().cuda()
    target = source.clone()
    target.copy_(source)
    copies = [target, source.to("cuda", copy=True), source.to(torch.float64), source.clone()]
    values_of(source).mul_(5)
    for made in copies:
        assert torch.equal(made.to_dense().cpu().float(), TENSORS[name]().to_dense())


def test_no_result_is_put_into_a_given_tensor():
    for name in ("coordinates", "csr"):
        whole = TENSORS[name]().cuda()
        for op in (lambda w: torch.neg(w, out=w), lambda w: torch.mm(w, dense(w), out=dense(w))):
            with pytest.raises(NotSupported, match="out= in an op on a sparse tensor"):
                op(whole)


# -- orders of sums -------------------------------------------------------------------------------


def random_sparse(device, count, seed, *, coalesced=False, wide=0):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, 3, (2, count), generator=generator)
    shape = (count, wide) if wide else (count,)
    values = torch.randn(shape, generator=generator)
    size = (3, 3, wide) if wide else (3, 3)
    made = torch.sparse_coo_tensor(indices, values, size)
    return (made.coalesce() if coalesced else made).to(device)


def both(function):
    native, shared = (function(device) for device in ("cpu", "cuda"))
    return native, [part.cpu() if isinstance(part, torch.Tensor) else part for part in shared]


def parts(made):
    return [made._indices(), made._values(), made.is_coalesced(), made.dtype]


@pytest.mark.parametrize("wide", [0, 3])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_entries_are_joined_and_multiplied_as_native_kernels_do(first, second, wide):
    def run(device):
        one = random_sparse(device, 40, 1, coalesced=first, wide=wide)
        other = random_sparse(device, 30, 2, coalesced=second, wide=wide)
        nothing = other.clone().zero_()
        found = [one + other, other.add(one, alpha=0.3), one - other, one + one, one + nothing]
        found += [nothing + other, other.add(nothing), one.clone().add_(other), nothing.add(one)]
        found += [one + other.double(), one * other, other * one, one * one]
        if not wide:  # in float64, the sums of rows may differ in the last bit
            found += [one.mul(other.double())]
        return [part for made in found for part in parts(made)]

    native, shared = both(run)
    for here, there in zip(native, shared, strict=True):
        assert torch.equal(here, there) if isinstance(here, torch.Tensor) else here == there


WRONG = {
    "sparse + dense": lambda s: s + s.to_dense(),
    "sparse + number": lambda s: s + 1,
    "another size": lambda s: s + torch.eye(4).to_sparse().to(s.device),
    "another density": lambda s: s + torch.eye(3).to_sparse(1).to(s.device),
    "no such number": lambda s: s.long().add(s.long(), alpha=0.5),
    "no such type": lambda s: s.long().add_(s),
    "no such product": lambda s: s.long().mul_(0.5),
    "no such quotient": lambda s: s / s,
    "quotient by a dense one": lambda s: s / s.to_dense(),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sums_raise_what_native_ones_raise(name):
    def said(device):
        with pytest.raises(RuntimeError) as caught:
            WRONG[name](random_sparse(device, 4, 1, coalesced=True))
        return str(caught.value)

    assert said("cuda") == said("cpu")


def test_sparse_tensors_are_made_on_a_default_device():
    with torch.device("cuda"):
        made = [
            torch.sparse_coo_tensor((3, 3)),
            torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,)),
            torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1)),
        ]
    assert [each.device.type for each in made] == ["cuda"] * 3


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
    "Nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.1),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("uses", [1, 2])
def test_embeddings_with_repeated_ids_train_to_native_bits(name, uses):
    def run(device):
        torch.manual_seed(0)
        table = nn.Embedding(12, 4, sparse=True).to(device)
        optimizer = OPTIMIZERS[name](table.parameters())
        told = []
        for _ in range(20):
            optimizer.zero_grad()
            for _ in range(uses):
                ids, weights = torch.randint(0, 12, (5, 3)), torch.randn(5, 3, 4)
                loss = (table(ids.to(device)) * weights.to(device)).sum() * 2
                loss = loss + table(ids.flip(0).to(device)).sin().sum()
                loss.backward()
            told.append(loss.item())
            if name != "Nesterov":  # CUDA's adds the momentum to the gradients themselves
                told += parts(table.weight.grad)[:3]
            optimizer.step()
        return [*told, table.weight.detach()]

    native, shared = both(run)
    for here, there in zip(native, shared, strict=True):
        assert torch.equal(here, there) if isinstance(here, torch.Tensor) else here == there


def test_weight_decay_does_not_fit_sparse_gradients():
    table = nn.Embedding(3, 2, sparse=True).cuda()
    table(torch.tensor([1]).cuda()).sum().backward()
    with pytest.raises(RuntimeError, match=r"add\(sparse, dense\) is not supported"):
        torch.optim.SGD(table.parameters(), 0.1, weight_decay=0.1).step()
