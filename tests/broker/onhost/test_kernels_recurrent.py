"""Recurrent layers of cuDNN on the host: beside torch's modules, and what is cuDNN's alone."""

import pytest
import torch

from jgpu.broker.executor.devices.onhost.kernels import KERNELS, Philox
from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import increment, numbers
from jgpu.broker.executor.devices.onhost.kernels.philox import uniforms
from jgpu.broker.executor.devices.onhost.kernels.recurrent.packing import Layers

aten = torch.ops.aten
MODES = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}
FORWARD, BACKWARD = KERNELS[aten._cudnn_rnn.default], KERNELS[aten._cudnn_rnn_backward.default]
FLATTEN = KERNELS[aten._cudnn_rnn_flatten_weight.default]
INIT = KERNELS[aten._cudnn_init_dropout_state.default]
#: other sums in another order; halves are computed in float32 there as here
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def module_of(mode, dtype=torch.float64, **options):
    torch.manual_seed(3)
    if mode in ("relu", "tanh"):
        return torch.nn.RNN(5, 6, nonlinearity=mode, dtype=dtype, **options)
    return {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[mode](5, 6, dtype=dtype, **options)


class Layer:
    """A module's layers by the host kernels; calls forward and backward as autograd would."""

    def __init__(self, mode, module, *, dropout=0.0, state=None):
        self.mode, self.module, self.dropout, self.state = MODES[mode], module, dropout, state
        self.weights = [weight.detach().clone() for weight in module._flat_weights]
        self.each = len(self.weights) // module.num_layers // (1 + module.bidirectional)
        self.buffer = FLATTEN(
            self.weights, self.each, module.input_size, self.mode, module.hidden_size,
            module.proj_size, module.num_layers, module.batch_first, module.bidirectional,
        )  # fmt: skip
        self.rest = (
            self.mode, module.hidden_size, module.proj_size, module.num_layers,
            module.batch_first, dropout,
        )  # fmt: skip

    def forward(self, given, hx, cx, train=True, sizes=()):
        self.last = (train, self.module.bidirectional, list(sizes), self.state)
        self.given = given, self.weights, self.each, self.buffer, hx, cx
        return FORWARD(*self.given, *self.rest, *self.last)

    def backward(self, output, grads, reserve, wanted=(True,) * 4):
        return BACKWARD(*self.given, output, *grads, *self.rest, *self.last, reserve, list(wanted))


def states(module, batch, dtype=torch.float64):
    count = module.num_layers * (1 + module.bidirectional)
    shown = module.proj_size or module.hidden_size
    hx = torch.randn(count, batch, shown, dtype=dtype)
    cx = torch.randn(count, batch, module.hidden_size, dtype=dtype)
    return hx, cx if module.mode == "LSTM" else None


def compared(mode, dtype=torch.float64, packed=False, **options):
    """Every return of forward and backward against the module's own, by autograd."""
    module = module_of(mode, dtype, **options)
    batch, steps = 3, 4
    given = torch.randn(batch, steps, 5, dtype=dtype)
    given = given if module.batch_first else given.transpose(0, 1)
    sizes = []
    if packed:
        lengths = torch.tensor([4, 3, 1])
        sequence = torch.nn.utils.rnn.pack_padded_sequence(given, lengths, module.batch_first)
        given, sizes = sequence.data, sequence.batch_sizes.tolist()
    hx, cx = states(module, batch, dtype)
    tracked = [each.clone().requires_grad_() for each in (given, hx, cx) if each is not None]
    first = tuple(tracked[1:]) if cx is not None else tracked[1]
    native = tracked[0]
    if packed:
        native = torch.nn.utils.rnn.PackedSequence(native, sequence.batch_sizes)
    output, last = module(native, first)
    output = output.data if packed else output
    results = [output, *(last if cx is not None else (last,))]
    grads = [torch.randn_like(each) for each in results]
    wanted = torch.autograd.grad(results, [*tracked, *module._flat_weights], grads)

    layer = Layer(mode, module)
    made = layer.forward(given, hx, cx, sizes=sizes)
    found = layer.backward(made[0], (*grads, None)[:3], made[3])

    def close(one, other):
        torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    for one, other in zip(made, results, strict=False):
        close(one, other)
    gradients = [each for each in (*found[:3], *found[3]) if each is not None]
    assert len(gradients) == len(wanted)
    for one, other in zip(gradients, wanted, strict=True):
        close(one, other)
    return layer, made, found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 3},
        {"bidirectional": True},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"num_layers": 2, "bias": False},
    ],
    ids=str,
)
def test_layers_compute_what_torchs_own_do_forward_and_backward(mode, options):
    compared(mode, **options)


@pytest.mark.parametrize("mode", MODES)
def test_packed_sequences_end_where_they_end_in_both_directions(mode):
    compared(mode, packed=True, num_layers=2, bidirectional=True)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=str)
def test_lstms_with_projections(options):
    compared("lstm", proj_size=4, **options)
    compared("lstm", proj_size=4, bias=False, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_other_types_are_computed_in_float32(mode, dtype):
    compared(mode, dtype, num_layers=2)


def test_returns_are_shaped_and_laid_out_as_cudnn_leaves_them():
    layer, made, found = compared("lstm", batch_first=True)
    output, hy, cy, reserve, buffer = made
    assert output.shape == (3, 4, 6)
    assert output.transpose(0, 1).is_contiguous()
    assert found[0].transpose(0, 1).is_contiguous()
    assert (hy.is_contiguous(), cy.is_contiguous()) == (True, True)
    assert (reserve.dtype, reserve.dim()) == (torch.uint8, 1)
    assert buffer is layer.buffer


def test_a_layer_without_a_cell_returns_an_empty_one_and_no_gradient_of_it():
    _, made, found = compared("gru")
    assert made[2].shape == (0,)
    assert found[2] is None


def test_evaluation_reserves_nothing_and_has_no_backward():
    module = module_of("lstm")
    layer = Layer("lstm", module)
    given, (hx, cx) = torch.randn(4, 3, 5, dtype=torch.float64), states(module, 3)
    trained, made = layer.forward(given, hx, cx), layer.forward(given, hx, cx, train=False)
    assert torch.equal(made[0], trained[0])
    assert made[3].shape == (0,)
    with pytest.raises(RuntimeError, match="training mode"):
        layer.backward(made[0], (made[0], None, None), made[3])


def test_weights_become_views_of_one_buffer_matrices_first():
    module = module_of("gru", num_layers=2)
    layer = Layer("gru", module)
    for weight, original in zip(layer.weights, module._flat_weights, strict=True):
        assert torch.equal(weight, original)
        assert weight.untyped_storage().data_ptr() == layer.buffer.untyped_storage().data_ptr()
    places = [weight.storage_offset() for weight in layer.weights]
    matrices = [place for place, w in zip(places, layer.weights, strict=True) if w.dim() == 2]
    biases = [place for place, w in zip(places, layer.weights, strict=True) if w.dim() == 1]
    assert matrices == sorted(matrices)
    assert max(matrices) < min(biases)
    assert layer.buffer.numel() == sum(weight.numel() for weight in layer.weights)


def test_the_buffer_is_what_counts_not_the_list_of_weights():
    module = module_of("tanh")
    layer = Layer("tanh", module)
    given, (hx, _) = torch.randn(4, 3, 5, dtype=torch.float64), states(module, 3)
    before = layer.forward(given, hx, None)[0]
    layer.weights = [torch.full_like(weight, torch.nan) for weight in layer.weights]
    assert torch.equal(layer.forward(given, hx, None)[0], before)


def test_room_for_biases_is_kept_where_there_are_none():
    buffer = Layer("lstm", module_of("lstm", bias=False)).buffer
    assert buffer.numel() == Layers(2, 5, 6, 0, 1, 1).elements() == 24 * (5 + 6 + 2)
    assert not bool(buffer[24 * 11 :].any())


@pytest.mark.parametrize("each", range(3))
def test_a_gradient_that_is_not_given_is_zero(each):
    module = module_of("lstm", num_layers=2)
    layer = Layer("lstm", module)
    given, (hx, cx) = torch.randn(4, 3, 5, dtype=torch.float64), states(module, 3)
    made = layer.forward(given, hx, cx)
    one = [torch.randn_like(made[k]) if k == each else None for k in range(3)]
    full = [torch.zeros_like(made[k]) if g is None else g for k, g in enumerate(one)]
    few = layer.backward(made[0], one, made[3])
    all_ = layer.backward(made[0], full, made[3])
    for left, right in zip((*few[:3], *few[3]), (*all_[:3], *all_[3]), strict=True):
        assert torch.equal(left, right)
    assert layer.backward(made[0], one, made[3], (True, True, True, False))[3] == []


def test_dropout_between_layers_is_drawn_from_the_state_and_moves_it_on():
    module = module_of("gru", num_layers=2)
    state = INIT(0.5, True, 77, dtype=torch.uint8)
    layer = Layer("gru", module, dropout=0.5, state=state)
    given, (hx, _) = torch.randn(4, 3, 5, dtype=torch.float64), states(module, 3)
    made = layer.forward(given, hx, None)
    assert state[:16].view(torch.int64).tolist() == [77, increment(4 * 3 * 6)]
    grad = torch.randn_like(made[0])
    found = layer.backward(made[0], (grad, None, None), made[3])

    mask = (numbers(Philox(77, 0), 72, uniforms) < 0.5).view(4, 3, 6) * 2.0
    one, two = (module_of("gru"), torch.nn.GRU(6, 6, dtype=torch.float64))
    one._flat_weights = list(module._flat_weights[:4])
    two._flat_weights = list(module._flat_weights[4:])
    tracked = given.clone().requires_grad_()
    expected, _ = two(one(tracked, hx[:1])[0] * mask, hx[1:])
    torch.testing.assert_close(made[0], expected)
    wanted = torch.autograd.grad(expected, [tracked, *module._flat_weights], grad)
    for left, right in zip((found[0], *found[3]), wanted, strict=True):
        torch.testing.assert_close(left, right)
    assert not torch.equal(layer.forward(given, hx, None)[0], made[0])
    assert torch.equal(layer.forward(given, hx, None, train=False)[0],
                       layer.forward(given, hx, None, train=False)[0])  # fmt: skip


def test_the_backward_reads_what_the_forward_reserved():
    """So that a reserve that was freed or overwritten in between shows."""
    module = module_of("lstm")
    layer = Layer("lstm", module)
    given, (hx, cx) = torch.randn(4, 3, 5, dtype=torch.float64), states(module, 3)
    made = layer.forward(given, hx, cx)
    grads = torch.ones_like(made[0]), None, None
    before = layer.backward(made[0], grads, made[3])
    after = layer.backward(made[0], grads, torch.full_like(made[3], 0x5A))
    assert not torch.equal(before[0], after[0])
    with pytest.raises(RuntimeError, match="bytes"):
        layer.backward(made[0], grads, made[3][:-1])


def test_a_state_of_dropout_is_of_one_size_and_begins_with_its_seed():
    one, two = INIT(0.5, True, 5, dtype=torch.uint8), INIT(0.1, True, 6, dtype=torch.uint8)
    assert one.shape == two.shape
    assert not torch.equal(one, two)
    with pytest.raises(RuntimeError, match="nonzero"):
        INIT(0.0, True, 5)
