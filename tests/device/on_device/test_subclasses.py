"""Tensors of a notebook's own class: refused in words, never taken for plain ones in silence."""

import pytest
import torch
from torch import nn

from jgpu.errors import NotSupported

REFUSED = r"does not support tensors of a class of one's own \((Points|Angle|Turn)\): keep them on"


class Points(torch.Tensor):
    """Nothing but a name."""


class Angle(nn.Parameter):
    """What an optimizer might look for."""


class Turn(nn.Parameter):
    """As above, made as libraries do."""

    def __new__(cls, data=None, requires_grad=True):
        return torch.Tensor._make_subclass(cls, data, requires_grad)


class Net(nn.Module):
    """With such a parameter."""

    def __init__(self):
        super().__init__()
        self.turn = Turn(torch.ones(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, device="cuda").as_subclass(Points),
        lambda: torch.ones(3).as_subclass(Points).cuda(),
        lambda: torch.ones(3).as_subclass(Points).to("cuda"),
        lambda: Angle(torch.ones(3, device="cuda")),
        lambda: Net().cuda(),
        lambda: nn.ParameterList([Angle(torch.ones(3))]).to("cuda"),
    ],
)
def test_a_class_of_ones_own_does_not_come_to_the_device(make):
    with pytest.raises(NotSupported, match=REFUSED):
        make()


def test_a_refused_module_stays_as_it_was():
    net = Net()
    with pytest.raises(NotSupported, match=REFUSED):
        net.cuda()
    assert type(net.turn) is Turn
    assert net.turn.tolist() == [1.0, 1.0, 1.0]


def test_torchs_own_classes_and_the_hosts_are_as_ever():
    d = torch.ones(3, device="cuda")
    assert type(torch.ones(3).as_subclass(Points)) is Points
    assert type(Angle(torch.ones(3))) is Angle
    assert isinstance(nn.Parameter(d), nn.Parameter)
    assert isinstance(nn.Buffer(d), nn.Buffer)
    assert d.as_subclass(torch.Tensor).data_ptr() == d.data_ptr()
    lazy = nn.LazyLinear(3).cuda()
    assert lazy(torch.ones(1, 2, device="cuda")).shape == (1, 3)
    assert isinstance(lazy.weight, nn.Parameter)
