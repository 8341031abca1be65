"""Copies and pickles of everything that holds tensors are as on the host.

Compares the descriptions of `copied` for each object and operation, then what a description does
not show: use of a copy, errors in the middle of one, files.
"""

import contextlib
import copy
import gc
import io
import pickle

import copied
import pytest
import torch
from copied_objects import OBJECTS
from torch import nn

from jgpu.accelerator import loading
from jgpu.device import current

#: without the accelerator a tensor's dictionary has further entries, and a pickler gets another
CYCLES = ("with itself as attribute", "itself in a list", "twins")
#: nets whose weights cuDNN keeps in one block, which the host's kernels do not
IN_ONE_BLOCK = ("lstm", "gru")


@pytest.mark.parametrize("name", OBJECTS)
def test_every_copy_of_an_object_is_as_on_the_host(name, monkeypatch):
    if name in CYCLES and loading.load() is None:
        pytest.skip("needs the accelerator")
    if current.session.device_facts().has_cuda_kernels:
        monkeypatch.setattr(copied, "drawn", copied.draws_before)
        if name in IN_ONE_BLOCK:
            pytest.skip("cuDNN keeps all weights in one block")
    for operation in [o for n, o in copied.pairs() if n == name]:
        there, here = (copied.outcome(name, operation, device) for device in ("cuda", "cpu"))
        assert there == here, operation


def test_a_copy_shares_memory_with_its_tensor():
    x = torch.zeros(4, device="cuda")
    copy.copy(x).add_(1)
    copy.copy(x[1:3]).mul_(5)
    assert x.tolist() == [1, 5, 5, 1]


def test_a_copied_parameter_is_a_parameter_over_the_same_memory():
    p = nn.Parameter(torch.ones(2, device="cuda"))
    twin = copy.copy(p)
    assert isinstance(twin, nn.Parameter)
    with torch.no_grad():
        twin.mul_(3)
    assert p.tolist() == [3, 3]


def test_a_copied_module_shares_its_parameters():
    net = nn.Linear(2, 1).cuda()
    twin = copy.copy(net)
    assert twin.weight is net.weight
    twin.extra = 1
    assert not hasattr(net, "extra")


def test_a_deep_copy_of_a_parameter_leaves_gradient_attributes_and_hooks_behind():
    net = nn.Linear(2, 1).cuda()
    net(torch.ones(1, 2, device="cuda")).sum().backward()
    net.weight.note = "n"
    net.weight.register_hook(lambda grad: grad)
    twin = copy.deepcopy(net).weight
    assert twin.grad is None
    assert not hasattr(twin, "note")
    assert not twin._backward_hooks


def test_what_a_copy_is_written_with_is_in_the_file_of_the_original():
    x, file = torch.zeros(2, device="cuda"), io.BytesIO()
    copy.copy(x).fill_(7)
    torch.save(x, file)
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [7, 7]


def test_a_saved_storage_is_read_when_it_is_written():
    """As in torch: the bytes are written to the file after everything was pickled."""

    class Late:
        def __init__(self, tensor):
            self.tensor = tensor

        def __reduce__(self):
            self.tensor.add_(1)
            return int, (1,)

    def saved(device):
        x, file = torch.zeros(2, device=device), io.BytesIO()
        torch.save([x, Late(x)], file)
        file.seek(0)
        return torch.load(file, weights_only=False)[0].tolist()

    assert saved("cuda") == saved("cpu") == [1, 1]


class Raising:
    """Raises in the middle of a copy, `tensor` being copied already."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __deepcopy__(self, memo):
        copy.deepcopy(self.tensor, memo)
        raise KeyError("no copy")

    def __reduce__(self):
        raise KeyError("no pickle")


def holders(device):
    """Holders of an object that raises: a container, a tensor's attributes, a module."""
    x = torch.arange(3.0, device=device)
    held, net = x.clone(), nn.Linear(2, 1).to(device)
    held.attribute = Raising(x)
    net.attribute = Raising(net.weight)
    return [[x, Raising(x), x[1:]], held, net, nn.ParameterList([x]), {"a": (x, Raising(x))}]


@pytest.mark.parametrize("which", [0, 1, 2, 4])
@pytest.mark.parametrize(
    "call", [copy.deepcopy, pickle.dumps, lambda value: torch.save(value, io.BytesIO())]
)
def test_an_error_in_the_middle_of_a_copy_is_the_objects_own_and_changes_nothing(which, call):
    value = holders("cuda")[which]
    with pytest.raises(KeyError, match="no "):
        call(value)
    first = value[0] if which == 0 else value
    if isinstance(first, torch.Tensor):
        assert first.add(1).tolist() == [1, 2, 3]
        assert copy.copy(first).tolist() == [0, 1, 2]


def test_an_error_in_the_middle_leaves_the_memo_as_torch_does():
    def memo_after(device):
        x = torch.arange(3.0, device=device)
        memo = {}
        with pytest.raises(KeyError):
            copy.deepcopy([x, x[1:], Raising(x)], memo)
        made = copy.deepcopy([x, x[1:]], memo)
        made[0][1] = 9
        known = memo[id(x)]
        return known is made[0], len(memo["torch"]), made[1].tolist(), x.tolist()

    assert memo_after("cuda") == memo_after("cpu")


def test_an_error_in_the_middle_keeps_nothing_alive():
    x = torch.ones(1000, 1000, device="cuda")
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        with contextlib.suppress(KeyError):
            copy.deepcopy([x, Raising(x)])
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_an_inner_loop_over_a_deep_copy_is_as_on_the_host():
    def losses(device):
        torch.manual_seed(0)
        net = nn.Linear(3, 1).to(device)
        x = torch.linspace(-1, 1, 12).view(4, 3).to(device)
        outer = torch.optim.SGD(net.parameters(), 0.1)
        told = []
        for _ in range(3):
            inner = copy.deepcopy(net)
            steps = torch.optim.SGD(inner.parameters(), 0.5)
            for _ in range(2):
                loss = inner(x).square().mean()
                loss.backward()
                steps.step()
                told.append(loss.item())
            outer.zero_grad()
            inner(x).square().mean().backward()
            for mine, theirs in zip(net.parameters(), inner.parameters(), strict=True):
                mine.grad = theirs.grad.clone()
            outer.step()
        return told

    assert losses("cuda") == losses("cpu")


def test_a_deep_copied_optimizer_follows_its_deep_copied_module():
    net = nn.Linear(2, 1).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    twin, steps = copy.deepcopy((net, optimizer))
    assert steps.param_groups[0]["params"][0] is twin.weight
    assert steps.state[twin.weight]["exp_avg"].data_ptr() != (
        optimizer.state[net.weight]["exp_avg"].data_ptr()
    )


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_optimizers_hold_no_attribute_of_ours(optimizer):
    net = nn.Linear(2, 1).cuda()
    made = optimizer(net.parameters(), 0.1)
    net(torch.ones(1, 2, device="cuda")).sum().backward()
    made.step()
    assert [name for name in vars(made) if "jgpu" in name] == []


def converted(where):
    """A gradient's object after each conversion of its module."""
    net = nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    grad, told = net.weight.grad, []
    for change in (nn.Module.double, lambda m: m.to(where), nn.Module.float, nn.Module.cpu):
        change(net)
        told += [net.weight.grad is grad, str(grad.dtype), grad.tolist()]
    return told


def test_a_gradient_stays_the_same_object_in_every_conversion():
    assert converted("cuda") == converted("cpu")


LAZY = {
    "double": lambda d: nn.LazyLinear(3).double().to(d),
    "double later": lambda d: nn.LazyLinear(3).to(d).double(),
    "made there": lambda d: nn.LazyLinear(3, device=d, dtype=torch.float64),
    "copied": lambda d: copy.deepcopy(nn.LazyLinear(3, device=d)),
    "moved and copied": lambda d: copy.deepcopy(nn.LazyLinear(3).to(d)),
    "norm": lambda d: nn.LazyBatchNorm1d().to(d),
    "norm made there": lambda d: nn.LazyBatchNorm1d(device=d),
    "half": lambda d: nn.LazyLinear(3).half().to(d).float(),
    "in a sequence": lambda d: nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).to(d),
    "away and back": lambda d: nn.LazyLinear(3).to(d).cpu().to(d),
    "loaded": lambda d: (lambda m: (m.load_state_dict(nn.Linear(2, 3).state_dict()), m)[1])(
        nn.LazyLinear(3, device=d)
    ),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_modules_are_made_on_the_device(name):
    def outcome(device):
        torch.manual_seed(0)
        net = LAZY[name](device)
        first = next(net.parameters())
        told = [type(net).__name__, str(first.dtype), first.device.type == device]
        made = net(torch.ones(4, 2, device=device, dtype=first.dtype))
        made.sum().backward()
        told += [type(net).__name__, made.dtype, made.device.type == device, tuple(made.shape)]
        for each in (*net.parameters(), *net.buffers()):
            told += [isinstance(each, nn.Parameter), each.dtype, each.device.type == device]
            told += [tuple(each.shape)]
        return told

    assert outcome("cuda") == outcome("cpu")


def test_a_lazy_module_that_came_back_is_made_on_the_host():
    net = nn.LazyLinear(3).cuda().cpu()
    assert net(torch.ones(1, 2)).device.type == "cpu"
    assert net.weight.device.type == "cpu"


def test_an_optimizer_keeps_the_lazy_parameters_that_it_was_given():
    net = nn.LazyLinear(3).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.ones(1, 2, device="cuda")).sum().backward()
    assert optimizer.param_groups[0]["params"][0] is net.weight
