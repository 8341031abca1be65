"""Nested tensors: the jagged layout is as on the host, the strided one is refused in a sentence."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jgpu.device.recording.ops import info_of
from jgpu.errors import NotSupported

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


def parts(where):
    return [torch.linspace(-1, 1, 12).view(2, 6).to(where), torch.arange(24.0).view(4, 6).to(where)]


def jagged(where, **more):
    return torch.nested.nested_tensor(parts(where), layout=torch.jagged, **more)


def heads(x):
    return x.unflatten(-1, (2, 3)).transpose(1, 2)


def layer(where):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)).to(where)


CALLS = {
    "values": lambda at: jagged(at).values(),
    "offsets": lambda at: jagged(at).offsets(),
    "sums": lambda at: (lambda x: x * 2 + x.sin().cos())(jagged(at)).unbind(),
    "from host": lambda at: jagged("cpu").to(at).values(),
    "as_nested_tensor": lambda at: torch.nested.as_nested_tensor(
        parts(at), layout=torch.jagged
    ).values(),
    "from values and offsets": lambda at: torch.nested.nested_tensor_from_jagged(
        torch.cat(parts(at)), torch.tensor([0, 2, 6]).to(at)
    ).unbind(),
    "padded": lambda at: torch.nested.to_padded_tensor(jagged(at), -1.0),
    "narrow": lambda at: torch.nested.narrow(
        torch.arange(20.0).view(2, 5, 2).to(at),
        1,
        0,
        torch.tensor([2, 3]).to(at),
        layout=torch.jagged,
    ).unbind(),
    "masked_select": lambda at: torch.nested.masked_select(
        parts(at)[0], parts(at)[0] > -0.5
    ).values(),
    "softmax": lambda at: F.softmax(jagged(at), -1).values(),
    "mean": lambda at: jagged(at).mean(-1).values(),
    "a layer": lambda at: layer(at)(jagged(at)).values(),
    "attention": lambda at: F.scaled_dot_product_attention(
        *(heads(jagged(at)) for _ in range(3))
    ).values(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_jagged_tensor_is_as_on_the_host(call):
    torch.testing.assert_close(call("cuda"), call("cpu"), check_device=False)


def test_jagged_tensors_train():
    grads = []
    for where in ("cuda", "cpu"):
        given, net = jagged(where, requires_grad=True), layer(where)
        query = heads(given)
        made = F.scaled_dot_product_attention(query, query, query).transpose(1, 2).flatten(-2)
        loss = net(made + given).values().square().sum()
        padded = torch.nested.to_padded_tensor(given, 0.0).square().sum()
        (loss + padded).backward()
        grads.append([given.grad.values(), *(parameter.grad for parameter in net.parameters())])
    torch.testing.assert_close(*grads, check_device=False)


def test_it_is_as_ever_where_its_op_was_looked_at_before():
    info_of(torch.ops.aten._nested_view_from_jagged.default)
    torch.testing.assert_close(jagged("cuda").values().cpu(), jagged("cpu").values())


def test_it_says_that_it_is_on_the_device():
    made = jagged("cuda")
    assert made.device == torch.device("cuda:0")
    assert made.is_nested
    assert "device='cuda:0'" in repr(made)
    assert made.cpu().values().device.type == "cpu"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor(parts("cuda")),
        lambda: torch.nested.nested_tensor(parts("cpu"), device="cuda"),
        lambda: torch.nested.nested_tensor([[1.0], [1.0, 2.0]], device="cuda"),
        lambda: torch.nested.as_nested_tensor(parts("cuda")),
        lambda: torch.nested.nested_tensor(parts("cpu")).cuda(),
        lambda: torch.nested.nested_tensor(parts("cpu")).to("cuda"),
    ],
)
def test_the_strided_layout_is_refused_in_a_sentence(make):
    with pytest.raises(NotSupported, match=r"make them with layout=torch\.jagged, or pad them\.$"):
        make()


def test_an_encoder_pads_where_natively_it_would_nest():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=True).eval()
    given, mask = torch.rand(2, 5, 8), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    with torch.no_grad():
        natively = encoder(given, src_key_padding_mask=mask)
        made = encoder.cuda()(given.cuda(), src_key_padding_mask=mask.cuda()).cpu()
    torch.testing.assert_close(made[~mask], natively[~mask])
