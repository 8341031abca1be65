"""Host tensors without dimensions are numbers to elementwise ops."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

NUMBERS = [torch.tensor(2.0), torch.tensor(3), torch.tensor(True), torch.tensor(2.0).double()]
BINARY = [
    "logical_and", "logical_or", "logical_xor", "floor_divide", "copysign", "fmod", "remainder",
    "atan2", "hypot", "heaviside", "nextafter", "pow", "xlogy", "maximum", "minimum", "eq", "lt",
    "bitwise_and", "bitwise_left_shift", "gcd", "lcm", "true_divide", "add", "mul", "float_power",
    "fmax", "fmin", "logaddexp", "igamma", "sub",
]  # fmt: skip
_ONE_DEVICE = "Expected all tensors to be on the same device"


def outcome(call, *args):
    try:
        made = call(*args)
        return made.shape, made.dtype, repr(made.tolist())
    except (RuntimeError, TypeError) as error:
        return str(error).partition("\n")[0]


def agree(made, expected):
    """Errors of types may come later, and in words that name the device."""
    if isinstance(expected, str):
        return isinstance(made, str)
    return made == expected or (isinstance(made, str) and made.startswith(_ONE_DEVICE))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_an_operand_may_be_a_number_of_the_host(name, dtype):
    op, written = getattr(torch, name), getattr(torch.Tensor, f"{name}_", None)
    vector = torch.tensor([1, 5, 7], dtype=dtype)
    for number in NUMBERS:
        ours = vector.cuda()
        assert agree(outcome(op, ours, number), outcome(op, vector, number)), number
        assert agree(outcome(op, number, ours), outcome(op, number, vector)), number
        if written is not None:
            expected = outcome(written, vector.clone(), number)
            assert agree(outcome(written, ours, number), expected), number


def test_division_by_a_number_of_the_host_rounds_as_natively():
    vector = torch.tensor([-7, 5, 7])
    ours = vector.cuda()
    two = torch.tensor(2)
    for mode in ("floor", "trunc", None):
        expected = torch.div(vector, two, rounding_mode=mode).tolist()
        assert torch.div(ours, two, rounding_mode=mode).tolist() == expected
        assert ours.float().div_(two, rounding_mode=mode).tolist() == expected
    assert (two // ours).tolist() == (two // vector).tolist()
    assert ours.index_fill(0, torch.tensor([1]).cuda(), two).tolist() == [-7, 2, 7]


def test_a_host_tensor_takes_the_size_of_a_device_tensor():
    made = torch.tensor(2.0).resize_as_(torch.ones(2, 3, device="cuda"))
    assert made.shape == (2, 3)
    assert made.device.type == "cpu"


def test_every_binary_op_of_torch_takes_a_number_or_names_the_devices():
    failed = {}
    for op in op_db:
        if type(op).__name__ != "BinaryUfuncInfo" or torch.float32 not in op.dtypes:
            continue
        if op.name.startswith(("jiterator", "__")):
            continue
        vector, number = torch.tensor([1.0, 5.0, 7.0]), torch.tensor(2.0)
        expected, made = outcome(op, vector, number), outcome(op, vector.cuda(), number)
        if not agree(made, expected):
            failed[op.name] = expected, made
    assert failed == {}
