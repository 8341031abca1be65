"""`torch.compile`: on the device what is written runs and is recorded, on the host torch's own."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from jgpu.device import current
from jgpu.errors import NotSupported

#: what importing torch's own compiler says
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture
def counting():
    """The graphs that Dynamo made, and the backend that notes them."""
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    return calls, backend


def training(wrap):
    """Losses of a few steps, and the programs that the last one sent."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to("cuda")
    model = wrap(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    x, y = torch.randn(5, 8).cuda(), torch.tensor([0, 1, 2, 0, 1]).cuda()
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.cuda.synchronize()
    return losses, [cut.compiled.hash for _, cut in current.session.outbox.runs][-2:]


@pytest.mark.parametrize(
    "wrap",
    [
        torch.compile,
        lambda net: torch.compile(net, fullgraph=True, mode="max-autotune"),
        lambda net: torch.compile(lambda x: net(x)),
        lambda net: net.compile() or net,
    ],
    ids=["module", "full graph", "function", "Module.compile"],
)
def test_a_compiled_model_trains_as_the_plain_one_by_the_same_programs(wrap):
    assert training(wrap) == training(lambda net: net)


def test_a_compiled_module_keeps_its_face():
    net = nn.Linear(2, 2).cuda()
    made = torch.compile(net)
    assert isinstance(made, type(torch.compile(nn.Linear(2, 2))))
    assert list(made.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    assert made.weight is net.weight


def test_what_a_function_sees_beside_its_arguments_counts():
    weight = torch.full((3,), 2.0, device="cuda")

    @torch.compile(fullgraph=True)
    def scaled():
        return weight * 3

    assert scaled().tolist() == [6.0, 6.0, 6.0]


@dataclass(slots=True)
class Held:
    """A class without a dictionary."""

    tensor: Any


torch.utils._pytree.register_dataclass(Held)


@pytest.mark.parametrize("hold", [lambda x: [x], lambda x: {"a": (x,)}, lambda x: x, Held])
def test_tensors_inside_of_arguments_count(hold, counting):
    calls, backend = counting

    @torch.compile(backend=backend)
    def total(value):
        leaves = torch.utils._pytree.tree_leaves(value)
        return sum(leaf.sum() for leaf in leaves)

    assert total(hold(torch.ones(3, device="cuda"))).item() == 3.0
    assert calls == []


def test_on_the_host_it_is_torchs_own_compiler(counting):
    calls, backend = counting

    @torch.compile(backend=backend)
    def doubled(x):
        return torch.sin(x) * 2

    x = torch.linspace(0, 1, 5)
    assert torch.equal(doubled(x), torch.sin(x) * 2)
    assert len(calls) == 1


def test_a_disabled_compiler_gives_the_function_back():
    def same(x):
        return x

    assert torch.compile(same, disable=True)(torch.ones(1, device="cuda")).item() == 1.0


def test_exports_are_refused_where_they_would_end_the_process():
    net = nn.Linear(2, 2)
    assert torch.export.export(net, (torch.ones(1, 2),)).graph is not None
    with pytest.raises(NotSupported, match="export the model on the CPU"):
        torch.export.export(net.cuda(), (torch.ones(1, 2, device="cuda"),))
