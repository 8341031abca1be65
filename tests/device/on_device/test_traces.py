"""`torch.jit.trace` on the device: a trace computes with other inputs what eager code does."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def numbers(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)


X1, X2, X3 = numbers(2, 3, 8), numbers(2, 3, 8, 8), numbers(2, 3, 5, 5, 5)
FUNCTIONS = {
    "conv1d": (lambda a: F.conv1d(a, numbers(3, 3, 3).to(a.device), padding=1) + a, X1),
    "conv2d": (lambda a: F.conv2d(a, numbers(3, 3, 3, 3).to(a.device), padding=1) + a, X2),
    "conv3d": (lambda a: F.conv3d(a, numbers(4, 3, 3, 3, 3).to(a.device), stride=2), X3),
    "conv_transpose1d": (lambda a: F.conv_transpose1d(a, numbers(3, 4, 3).to(a.device)), X1),
    "conv_transpose2d": (lambda a: F.conv_transpose2d(a, numbers(3, 4, 3, 3).to(a.device)), X2),
    "conv_transpose3d": (lambda a: F.conv_transpose3d(a, numbers(3, 2, 3, 3, 3).to(a.device)), X3),
    "same": (lambda a: F.conv2d(a, numbers(3, 3, 3, 3).to(a.device), padding="same"), X2),
    "upload by name": (lambda a: a + numbers(8).to("cuda" if a.is_cuda else "cpu"), X1),
    "download and upload": (lambda a: (a.cpu() * 2).to(a.device), X1),
    "sizes": (lambda a: a.view(a.size(0), -1) / a.shape[1], X1),
    "attention": (lambda a: F.scaled_dot_product_attention(a, a, a), X2),
    "cross entropy": (lambda a: F.cross_entropy(a, a[:, 0].long().abs()), X2),
}
MODULES = {
    "LSTM": lambda: nn.LSTM(8, 4, 2, bidirectional=True),
    "GRU": lambda: nn.GRU(8, 4),
    "RNN": lambda: nn.RNN(8, 4),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).eval(),
    "group norm": lambda: nn.GroupNorm(3, 3),
    "bilinear upsampling": lambda: nn.Sequential(
        nn.Unflatten(0, (1, 2)), nn.Upsample(scale_factor=2, mode="bilinear")
    ),
}
CELLS = {"LSTMCell": nn.LSTMCell, "GRUCell": nn.GRUCell, "RNNCell": nn.RNNCell}


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


def check(function, given):
    other = given * 0 + 0.5
    traced = torch.jit.trace(function, (given,), check_trace=False)
    for eager, replayed in zip(flat(function(other)), flat(traced(other)), strict=True):
        assert replayed.device == eager.device
        assert torch.equal(eager, replayed)
    return traced


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_traced_function_computes_with_other_inputs(name, device):
    function, given = FUNCTIONS[name]
    traced = check(function, given.to(device))
    assert "CUDAFloatType" not in str(traced.graph) or device == "cuda"


@pytest.mark.parametrize("name", [*MODULES, *CELLS])
def test_a_traced_module_computes_with_other_inputs(name):
    torch.manual_seed(0)
    if name in CELLS:
        check(CELLS[name](8, 4).cuda(), X1[0].cuda())
    else:
        check(MODULES[name]().cuda(), X1.cuda())


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
            nn.ConvTranspose2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(256, 3),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)

    def twice(self, x):
        return self.layers[0](x) * 2


def network():
    torch.manual_seed(0)
    return Network().eval().cuda()


def test_a_trace_is_frozen_scripted_and_traced_by_method():
    net, given = network(), X2.cuda()
    other = given * 0 + 0.5
    traced = torch.jit.trace(net, given)
    assert torch.equal(traced(other), net(other))
    torch.testing.assert_close(torch.jit.freeze(traced)(other), net(other).detach())
    both = torch.jit.trace_module(net, {"forward": given, "twice": given})
    assert torch.equal(both.twice(other), net.twice(other))
    assert torch.equal(torch.fx.symbolic_trace(net)(other), net(other))


def test_a_trace_is_saved_and_loaded_on_the_host_and_the_device():
    net, given = network(), X2.cuda()
    other = given * 0 + 0.5
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(net, given), file)
    for device in ("cuda", "cpu"):
        file.seek(0)
        loaded = torch.jit.load(file, map_location=device)
        assert torch.equal(loaded(other.to(device)), net.to(device)(other.to(device)))
    traced = torch.jit.trace(net.cpu(), X2)
    assert torch.equal(traced.cuda()(other), net.cuda()(other))


def test_a_traced_network_trains_as_the_eager_one():
    net, given = network(), X2.cuda()
    traced = torch.jit.trace(net, given)
    traced(given).pow(2).sum().backward()
    found = [each.grad.clone() for each in net.parameters()]
    net.zero_grad()
    net(given).pow(2).sum().backward()
    for one, other in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def test_onnx_files_have_each_weight():
    onnx = pytest.importorskip("onnx")
    from onnx import numpy_helper

    def weights(device):
        file = io.BytesIO()
        torch.onnx.export(network().to(device), (X2.to(device),), file, dynamo=False)
        graph = onnx.load_from_string(file.getvalue()).graph
        made = {each.name: numpy_helper.to_array(each).tolist() for each in graph.initializer}
        return [node.op_type for node in graph.node], made

    assert weights("cpu") == weights("cuda")
