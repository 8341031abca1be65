"""The device is called `cuda` and its tensors `Tensor`, whoever speaks of them."""

import pickle
import re
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from jgpu.device.tensor import DeviceTensor

#: what only this package and torch's C++ know the device and its tensors by
INNER = re.compile(r"PrivateUse|privateuse|jgpu|\bDeviceTensor\b|\bFace\b|\bmeta\b|\bMeta\b")


def said(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def errors_of(op):
    """What is said of each of an operator's wrong calls, until one of them cannot be made."""
    try:
        for each in op.error_inputs("cuda"):
            given = each.sample_input
            try:
                op(given.input, *given.args, **given.kwargs)
                torch.cuda.synchronize()
            except Exception as error:
                yield f"{type(error).__name__}: {error}"
    except RuntimeError as error:
        yield f"{type(error).__name__}: {error}"


@pytest.fixture
def x():
    return torch.arange(6.0, device="cuda")


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_no_error_of_the_operator_database_shows_an_inner_name():
    texts = [(op.name, text) for op in op_db if op.error_inputs_func for text in errors_of(op)]
    assert [each for each in texts if INNER.search(each[1])] == []
    assert len(texts) > 600


ERRORS = {
    "split by what is on the device": (
        lambda x: x.tensor_split(torch.tensor([2, 3], device="cuda")),
        "RuntimeError: tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
        "cuda:0",
    ),
    "a gradient of the host": (
        lambda x: setattr(x.requires_grad_(), "grad", torch.ones(6)),
        "RuntimeError: attempting to assign a gradient with device type 'cpu' to a tensor with "
        "device type 'cuda'. Please ensure that the gradient and the tensor are on the same device",
    ),
    "a gradient of the device": (
        lambda x: setattr(torch.ones(6, requires_grad=True), "grad", x),
        "RuntimeError: attempting to assign a gradient with device type 'cuda' to a tensor with "
        "device type 'cpu'. Please ensure that the gradient and the tensor are on the same device",
    ),
    "a generator of the host": (
        lambda x: torch.randn(2, device="cuda", generator=torch.Generator()),
        "RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "plus a text": (
        lambda x: x + "1",
        "TypeError: unsupported operand type(s) for +: 'Tensor' and 'str'",
    ),
    "less than nothing": (
        lambda x: x < None,
        "TypeError: '<' not supported between instances of 'Tensor' and 'NoneType'",
    ),
    "called": (lambda x: x(), "TypeError: 'Tensor' object is not callable"),
    "an attribute": (lambda x: x.foo, "AttributeError: 'Tensor' object has no attribute 'foo'"),
    "a text put in": (
        lambda x: x.__setitem__(0, "a"),
        "TypeError: can't assign a str to a torch.cuda.FloatTensor",
    ),
    "of a sparse one": (
        lambda x: torch.eye(2, device="cuda").to_sparse() + "1",
        "TypeError: unsupported operand type(s) for +: 'Tensor' and 'str'",
    ),
    "more than 64 dimensions": (
        lambda x: torch.ones([1] * 65, device="cuda"),
        "RuntimeError: Received a tensor with 65 dimensions, but only tensors with up to 64 dims "
        "are supported!",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_cuda(name, x):
    call, expected = ERRORS[name]
    assert said(lambda: call(x)) == expected


def test_a_tensor_of_too_many_dimensions_harms_no_other(x):
    y = x * 2
    with pytest.raises(RuntimeError, match="up to 64 dims"):
        y.view([1] * 64 + [6])
    assert y.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


# -- the device ----------------------------------------------------------------------------------


def test_there_is_one_cuda_device_under_all_its_names(x):
    made = {x.device, torch.device("cuda:0"), torch.device("cuda", 0), torch.device(0)}
    assert len(made) == 1
    assert str(made.pop()) == "cuda:0"
    assert repr(torch.device(0)) == "device(type='cuda', index=0)"
    assert pickle.loads(pickle.dumps(torch.device(0))) == x.device
    assert torch.Generator("cuda").device == x.device
    assert x.new_empty(1, device=torch.device(0)).device == torch.ones(1).to(0).device == x.device


def test_a_tensors_class_is_shown_as_torchs():
    assert repr(DeviceTensor) == repr(torch.Tensor) == "<class 'torch.Tensor'>"
    assert torch.typename(torch.ones(1, device="cuda")) == "torch.cuda.FloatTensor"


def test_no_other_name_of_the_device_is_to_be_found():
    assert not hasattr(torch, "jgpu")
    assert not hasattr(torch.Tensor, "is_jgpu")
    with pytest.raises(RuntimeError, match="at start of device string: jgpu"):
        torch.ones(1, device="jgpu")
    assert torch.ones(1, device="privateuseone").device == torch.device("cuda:0")


# -- what torch makes of the name ----------------------------------------------------------------


def test_storages_are_made_on_the_device(x):
    assert torch.UntypedStorage(8, device="cuda").nbytes() == 8
    assert list(torch.UntypedStorage([1, 2], device="cuda").cpu()) == [1, 2]
    assert torch.UntypedStorage(8).device == torch.device("cpu")
    assert list(torch.UntypedStorage([1, 2])) == [1, 2]
    assert isinstance(x.untyped_storage(), torch.UntypedStorage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # typed storages are deprecated
        assert x.storage().device == x.device
        assert x.storage().size() == 6


def test_autocast_of_the_old_names_is_that_of_the_device():
    assert torch.get_autocast_dtype("cuda") == torch.float16
    assert not torch.is_autocast_enabled()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
    with torch.autocast("cpu"):
        assert not torch.is_autocast_enabled("cuda")
