"""Copies, pickles and files of sparse tensors are on the device, and as on the host."""

import copy
import io
import pickle
import sys
import warnings

import processes
import pytest
import torch
from torch import nn

from jgpu.accelerator import loading

DENSE = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0], [0, 5, 0, 0]])

# torch warns that sparse invariants are not checked, and of compressed layouts
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TENSORS = {
    "coordinates": lambda: DENSE.to_sparse(),
    "uncoalesced": lambda: torch.sparse_coo_tensor(
        [[0, 1, 0], [2, 0, 2]], [1.0, 2, 3], (3, 3), check_invariants=False
    ),
    "hybrid": lambda: DENSE.to_sparse(1),
    "complex": lambda: (DENSE * (1 + 2j)).to_sparse(),
    "csr": lambda: DENSE.to_sparse_csr(),
    "csc": lambda: DENSE.to_sparse_csc(),
    "bsr": lambda: DENSE.to_sparse_bsr((2, 2)),
    "bsc": lambda: DENSE.to_sparse_bsc((2, 2)),
    "batch": lambda: torch.stack([DENSE, 2 * DENSE]).to_sparse_csr(),
}


def with_gradient(leaf):
    """The leaf with an attribute, after a backward; not every layout has one natively."""
    leaf.note = [1]
    if leaf.layout in (torch.sparse_coo, torch.sparse_csr) and leaf.dim() == 2:
        torch.abs(leaf.to_dense().sum()).backward()
    return leaf


HOLDERS = {
    "tensor": lambda tensor: tensor,
    "leaf": lambda tensor: with_gradient(tensor.requires_grad_()),
    "parameter": lambda tensor: with_gradient(nn.Parameter(tensor)),
    "result": lambda tensor: tensor.requires_grad_() * 2,
}


def through_a_file(value, *, old=False, where=None):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not old)
    file.seek(0)
    return torch.load(file, map_location=where)


WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "save": through_a_file,
    "save old": lambda value: through_a_file(value, old=True),
}


def parts_of(tensor):
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def described(tensor, device):
    """All that a notebook can see of a sparse tensor."""
    if tensor is None:
        return None
    shown = tensor.detach()
    told = [type(tensor) is nn.Parameter or isinstance(tensor, nn.Parameter)]
    told += [str(tensor.layout), str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad]
    told += [tensor.is_leaf, getattr(tensor, "note", None), tensor.device.type == device]
    told += [(str(part.dtype), part.tolist()) for part in parts_of(shown)]
    told += [part.device.type == device for part in parts_of(shown)]
    told += [shown.is_coalesced() if shown.is_sparse else None]
    of_gradient = described(tensor.grad if tensor.is_leaf else None, device)
    if of_gradient and loading.load() is None:  # there a first gradient keeps its flag
        of_gradient[-2] = None
    return [*told, of_gradient]


def outcome(name, holder, way, device):
    tensor = HOLDERS[holder](TENSORS[name]().to(device))
    try:
        made = WAYS[way](tensor)
    except RuntimeError as error:
        return type(error).__name__
    with torch.no_grad():
        parts_of(made.detach())[-1].mul_(3)
    return described(made, device), described(tensor, device)


@pytest.mark.parametrize("name", TENSORS)
def test_a_copy_is_where_and_what_it_is_natively(name):
    different = {}
    for holder in HOLDERS:
        for way in WAYS:
            native, shared = (outcome(name, holder, way, device) for device in ("cpu", "cuda"))
            # torch cannot deep-copy compressed tensors, and the device can
            if native != shared and not (way == "deepcopy" and isinstance(native, str)):
                different[holder, way] = native, shared
    assert different == {}


@pytest.mark.parametrize("name", TENSORS)
def test_a_file_is_read_to_where_it_is_wanted(name):
    for where in ("cpu", "cuda"):
        made = through_a_file(TENSORS[name]().cuda(), where=where)
        assert made.device.type == where
        assert torch.equal(made.to_dense().cpu(), TENSORS[name]().to_dense())
        made = through_a_file(TENSORS[name](), where=where)
        assert made.device.type == where


def test_a_file_of_the_device_is_read_where_there_is_none(tmp_path):
    kept = {name: make().cuda() for name, make in TENSORS.items()}
    torch.save([kept, nn.Parameter(kept["csr"])], tmp_path / "sparse.pt")
    code = (
        "import sys, torch\n"
        f"kept, _ = torch.load({str(tmp_path / 'sparse.pt')!r}, map_location='cpu')\n"
        "assert not any(name.startswith('jgpu') for name in sys.modules)\n"
        "print(*(t.to_dense().abs().sum().item() for t in kept.values()), sep=',')\n"
    )
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    told = processes.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment, check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert [float(each) for each in told.split(",")] == [
        make().to_dense().abs().sum().item() for make in TENSORS.values()
    ]


def test_values_and_their_tensor_share_memory_after_loading():
    values = torch.ones(2, device="cuda")
    whole = torch.sparse_coo_tensor(torch.tensor([[0, 1]]).cuda(), values, (3,))
    values, whole = through_a_file([values, whole])
    values.mul_(7)
    assert whole.to_dense().tolist() == [7, 7, 0]


def test_each_hook_that_stays_behind_is_warned_of_once():
    for make in (TENSORS["coordinates"], TENSORS["csr"]):
        leaf = make().cuda().requires_grad_()
        leaf.register_hook(lambda grad: grad)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pickle.dumps(leaf)
        assert [str(each.message)[:13] for each in caught] == ["backward hook"]


def test_a_file_is_checked_where_invariants_are():
    good = [make().cuda() for make in TENSORS.values()]
    bad = torch.sparse_coo_tensor(
        torch.tensor([[9]]).cuda(), torch.ones(1).cuda(), (4,), check_invariants=False
    )
    with torch.sparse.check_sparse_tensor_invariants(True):
        assert len(through_a_file(good)) == len(good)
        with pytest.raises(RuntimeError, match="size is 4 but found index 9"):
            through_a_file(bad)


class Graph(nn.Module):
    """Sparse tensors in every place of a module."""

    def __init__(self):
        super().__init__()
        self.learnt = nn.Parameter(DENSE.to_sparse())
        self.rows = nn.Parameter(DENSE.to_sparse_csr())
        self.register_buffer("fixed", DENSE.to_sparse())
        self.register_buffer("fixed_rows", DENSE.to_sparse_csr())


@pytest.mark.parametrize("assign", [False, True])
def test_the_state_of_a_module_is_written_read_and_loaded(assign):
    def run(device):
        graph, other = Graph().to(device), Graph().to(device)
        with torch.no_grad():
            graph.learnt.mul_(3)
        state = through_a_file(graph.state_dict())
        other.load_state_dict(state, assign=assign)
        kept = [state[name] for name in ("learnt", "rows", "fixed", "fixed_rows")]
        return [described(each, device) for each in (*kept, *other.parameters(), *other.buffers())]

    assert run("cuda") == run("cpu")


def test_a_module_is_pickled_whole():
    graph = pickle.loads(pickle.dumps(Graph().cuda()))
    assert {each.device.type for each in (*graph.parameters(), *graph.buffers())} == {"cuda"}
    assert repr(graph.rows).startswith("Parameter containing:\n")
