"""A tensor's buffer, geometry and offset, whoever made its wrapper: the accelerator, or Python."""

import gc
import sys
import weakref

import pytest
import torch

from jgpu.device import current, tensor
from jgpu.device.geometry import intern
from jgpu.device.tensor import DeviceTensor, new_buffer, rebind

PAIR = intern(torch.float32, (2,), (1,))
THREE = intern(torch.float32, (3,), (1,))


def made(form, geometry=PAIR, offset=0):
    buffer = new_buffer(16, current.session.buffers.graveyard)
    return form(buffer, geometry, offset), buffer


FORMS = pytest.mark.parametrize("form", [tensor.wrap, tensor._wrap], ids=["as it is", "in Python"])


@FORMS
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_it_shows_what_it_was_made_with(form, offset):
    shown, buffer = made(form, offset=offset)
    assert type(shown) is DeviceTensor
    assert shown._b is buffer
    assert (shown._g, shown._o) == (PAIR, offset)
    detached = shown.detach()
    assert detached._b is buffer
    assert (detached._g, detached._o, detached.storage_offset()) == (PAIR, offset, offset)


@FORMS
def test_it_shows_what_it_was_given(form):
    shown, _ = made(form)
    other = new_buffer(16, current.session.buffers.graveyard)
    rebind(shown, other, THREE, 1)
    assert shown._b is other
    assert (shown._g, shown._o) == (THREE, 1)
    assert (tuple(shown.shape), shown.storage_offset()) == ((3,), 1)


@FORMS
def test_it_holds_its_buffer_as_long_as_it_lives_and_once(form):
    shown, buffer = made(form)
    gone, before = weakref.ref(buffer), sys.getrefcount(buffer)
    detached = shown.detach()
    assert sys.getrefcount(buffer) == before + 1
    del detached
    assert sys.getrefcount(buffer) == before
    del buffer
    assert gone() is shown._b
    del shown
    gc.collect()
    assert gone() is None


@FORMS
def test_without_a_buffer_there_is_none_to_ask_for(form):
    shown, _ = made(form)
    del shown._b
    with pytest.raises(AttributeError, match="_b"):
        shown._b  # noqa: B018


def test_a_graph_keeps_the_buffer_of_what_it_saved():
    x = torch.ones(4, device="cuda", requires_grad=True)
    product = x.exp()
    held = weakref.ref(product._b)
    total = product.sum()
    del product
    torch.cuda.synchronize()  # the log holds nothing of it any more
    assert held() is not None  # by the node of `exp` alone
    total.backward()
    del total
    torch.cuda.synchronize()
    gc.collect()
    assert held() is None


def test_a_parameter_that_moves_keeps_its_place_and_what_was_attached():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.mark = "mine"
    layer = torch.nn.Module()
    layer.weight = weight
    layer.cuda()
    assert layer.weight is weight
    assert (weight._g, weight._o, weight.mark) == (THREE, 0, "mine")
    buffer = weight._b
    weight.data = weight.data.clone()
    assert weight._b is not buffer
    assert not {"_b", "_g", "_o"} & {*vars(layer.cpu().weight)}
