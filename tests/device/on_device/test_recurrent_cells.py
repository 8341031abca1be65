"""Recurrent cells in a loop: native bits, forward, back and once more, and torch's own errors."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from jgpu.device.composed import composites


def results(cell, where):
    """Outputs, gradients and gradients of these, of a loop over cells."""
    cell, x = copy.deepcopy(cell).to(where), torch.linspace(-1, 1, 60).view(5, 3, 4).to(where)
    given = [x.requires_grad_(), *cell.parameters()]
    state, seen = None, []
    for step in x:
        state = cell(step, state)
        seen.append(state[0] if isinstance(state, tuple) else state)
    total = torch.stack(seen).pow(2).sum()
    first = torch.autograd.grad(total, given, create_graph=True)
    second = torch.autograd.grad(sum(each.pow(2).sum() for each in first), given)
    return [each.detach().cpu() for each in (*seen, *first, *second)]


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_in_a_loop_have_native_bits(kind, bias):
    torch.manual_seed(0)
    cell = kind(4, 8, bias=bias)
    native = results(cell, "cpu")
    for _ in range(3):
        shared = results(cell, "cuda")
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(shared, native, strict=True))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells_need_no_stand_ins(kind, monkeypatch):
    def refuse(tensor):
        raise AssertionError("a stand-in was made")

    monkeypatch.setattr(composites, "face_of", refuse)
    cell = kind(4, 8).cuda()
    out = cell(torch.ones(3, 4, device="cuda"))
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    with torch.no_grad():
        cell(torch.ones(3, 4, device="cuda"))
    with torch.inference_mode():
        cell(torch.ones(3, 4, device="cuda"))


def arguments(where, name, rows=3, width=8, features=4, batch=3):
    gates = 4 if name == "lstm_cell" else 3
    state = torch.zeros(rows, width, device=where)
    weights = (
        torch.zeros(gates * 8, 4, device=where),
        torch.zeros(gates * 8, 8, device=where),
        torch.zeros(gates * 8, device=where),
        torch.zeros(gates * 8, device=where),
    )
    state = [state, torch.zeros(3, 8, device=where)] if name == "lstm_cell" else state
    return torch.zeros(batch, features, device=where), state, *weights


@pytest.mark.parametrize("name", ["lstm_cell", "gru_cell"])
@pytest.mark.parametrize("wrong", [{"rows": 2}, {"width": 7}, {"features": 5}, {"batch": 1}])
def test_what_does_not_go_together_is_refused_in_torchs_words(name, wrong):
    said = []
    for where in ("cpu", "cuda"):
        with pytest.raises(RuntimeError) as raised:
            getattr(torch, name)(*arguments(where, name, **wrong))
        said.append(str(raised.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("unwatched", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_have_native_bits_without_gradients(kind, unwatched, batch_first):
    """`matmul` chooses by whether weights want gradients, in evaluation, too."""
    torch.manual_seed(1)
    layer = getattr(torch.nn, kind)(6, 8, 2, batch_first=batch_first, dtype=torch.float64).eval()
    for length in (1, 2, 5):
        x = torch.randn(3, length, 6, dtype=torch.float64)
        with unwatched():
            native = layer.cpu()(x)[0]
        shared = copy.deepcopy(layer).cuda()
        for _ in range(3):
            with unwatched():
                assert torch.equal(shared(x.cuda())[0].cpu(), native)


@pytest.mark.parametrize("unwatched", [torch.no_grad, torch.inference_mode])
def test_products_with_weights_have_native_bits_without_gradients(unwatched):
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(8, 6))
    x, shared = torch.randn(3, 5, 6), torch.nn.Parameter(weight.detach().cuda())
    with unwatched():
        turned, there = x.transpose(0, 1), x.cuda().transpose(0, 1)
        for _ in range(3):
            assert torch.equal(linear(there, shared).cpu(), linear(turned, weight))
            assert torch.equal((there @ shared.t()).cpu(), turned @ weight.t())
            assert shared.t().is_inference() == weight.t().is_inference()
