"""`torch.func` and forward-mode derivatives; torch scripts its formulas at their first use."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

# what torch says of its own use of TorchScript and of traced constants
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert:UserWarning"),
]

X = torch.linspace(-1, 1, 6).view(2, 3)


def both(function):
    native, shared = function(X), function(X.cuda())
    assert shared.device.type == "cuda"
    assert torch.equal(native, shared.cpu())


def test_jvp():
    both(lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1])


def test_hessian():
    both(lambda x: torch.func.hessian(lambda a: (a**3).sum())(x))


def test_jacobians():
    both(torch.func.jacrev(torch.tanh))
    both(torch.func.jacfwd(torch.tanh))


def test_vmap_and_gradients_per_sample():
    both(torch.func.vmap(torch.func.grad(lambda row: row.exp().sum() ** 2)))


def test_linearize():
    both(lambda x: torch.func.linearize(torch.cos, x)[1](torch.ones_like(x)))


def test_a_traced_graph_computes_anew():
    weight = torch.full((2, 3), 2.0, device="cuda")
    graph = make_fx(lambda x: (x * weight).sin() + torch.zeros_like(x))(torch.ones_like(weight))
    y = X.cuda()
    assert torch.equal(graph(y), (y * weight).sin())


def test_scripted_functions_know_the_factories():
    @torch.jit.script
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(x) + torch.zeros_like(x)

    assert torch.equal(like(X.cuda()).cpu(), torch.ones(2, 3))
