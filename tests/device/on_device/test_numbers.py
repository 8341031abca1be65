"""`torch.tensor` of numbers: what native torch makes of them, and what it says of what is wrong."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from jgpu.device import current

MAKERS = [torch.tensor, torch.as_tensor]
NUMBERS = [
    3,
    2.5,
    True,
    1j,
    [1, 2, 3],
    (1, 2.5),
    [[1.0, 2.0], (3, 4)],
    [[[7]]],
    [True, False],
    [1, True, 2.5],
    [1j, 2],
    [[]],
    [2**40],
    [float("nan"), float("-inf"), -0.0],
    [0.1] * 100_000,
]
TYPES = [None, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool]


def bits(tensor):
    return tensor.cpu().contiguous().view(-1).view(torch.uint8).tolist() if tensor.dim() else []


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda each: repr(each)[:20])
@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_are_what_they_are_natively(make, numbers, dtype):
    made = []
    for where in ("cpu", "cuda"):
        try:
            made.append(make(numbers, dtype=dtype, device=where))
        except (RuntimeError, TypeError) as error:
            made.append((type(error), str(error)))
    native, ours = made
    if isinstance(native, tuple):
        assert ours == native
        return
    assert (ours.dtype, ours.shape, ours.stride()) == (native.dtype, native.shape, native.stride())
    assert bits(ours) == bits(native)
    assert str(ours.tolist()) == str(native.tolist())
    assert (ours.is_leaf, ours.requires_grad, ours._version) == (True, False, 0)
    assert ours.device.type == "cuda"


@pytest.mark.parametrize("numbers", [[[1, 2], [3]], [1, "a"], [2**70], "abc", [1, None]])
def test_what_is_no_tensor_is_refused_in_torchs_words(numbers):
    said = []
    for where in ("cpu", "cuda"):
        with pytest.raises((ValueError, TypeError, RuntimeError, OverflowError)) as raised:
            torch.tensor(numbers, device=where)
        said.append((raised.type, str(raised.value)))
    assert said[0] == said[1]


def test_they_go_alone_and_leave_with_what_follows():
    session = current.session
    torch.zeros(3, device="cuda").sum().item()
    recorded, trips = session.log.recorded, session.round_trips
    made = torch.tensor([1.0, 2.0], device="cuda")
    assert (session.log.recorded, session.round_trips) == (recorded, trips)
    assert made.sum().item() == 3.0


def test_more_of_them_than_may_wait_for_what_follows_all_arrive():
    made = [torch.tensor([float(at)] * 4000, device="cuda") for at in range(40)]
    assert [each.sum().item() for each in made] == [4000.0 * at for at in range(40)]


def test_tensors_among_the_numbers_are_read():
    one = torch.ones((), device="cuda")
    assert torch.tensor([2.0, one], device="cuda").tolist() == [2.0, 1.0]


def test_a_gradient_may_be_wanted():
    made = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    made.square().sum().backward()
    assert made.grad.tolist() == [2.0, 4.0]


def test_inference_and_transforms_have_tensors_of_their_own():
    with torch.inference_mode():
        assert torch.tensor([1.0], device="cuda").is_inference()

    def product(x):
        weights = torch.tensor([1.0, 2.0], device="cuda")
        weights.mul_(x)
        return weights.sum()

    x = torch.linspace(0, 1, 2, device="cuda")
    assert torch.func.grad(product)(x).tolist() == [1.0, 2.0]


def written(x):
    x[[0, 1]] = x[2:].clone()
    return x


#: ways from numbers to a tensor, given some of ones
FROM_NUMBERS = {
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "nested": lambda x: torch.tensor([[1, 2], [3, 4]], dtype=torch.float16, device=x.device),
    "one": lambda x: torch.tensor(True, device=x.device),
    "none": lambda x: torch.tensor([], device=x.device),
    "with a gradient": lambda x: torch.tensor([1.0], device=x.device, requires_grad=True).detach(),
    "as_tensor": lambda x: torch.as_tensor([1, 2], device=x.device),
    "asarray": lambda x: torch.asarray([1, 2], device=x.device),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "an index": lambda x: x[[0, 1]],
    "written by an index": written,
}


class Seen(TorchDispatchMode):
    """The ops that come by."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FROM_NUMBERS)
def test_a_mode_sees_of_them_what_it_sees_natively(name):
    for _ in range(3):
        seen = []
        for where in ("cpu", "cuda"):
            with Seen() as mode:
                made = FROM_NUMBERS[name](torch.ones(3, device=where))
            assert made.device.type == where
            seen.append((made.tolist(), made.dtype, made.stride(), mode.names))
        assert seen[0] == seen[1]


def test_in_a_mode_numbers_are_written_by_an_index():
    x = torch.ones(3, device="cuda")
    with Seen():
        x[[0, 1]] = 5
        x[2] = 3
    assert x.tolist() == [5.0, 5.0, 3.0]


def test_their_use_is_counted():
    counted = []
    for where in ("cpu", "cuda"):
        x = torch.ones(4, 4, device=where)
        with FlopCounterMode(display=False) as mode:
            (x @ x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=where)).sum()
        counted.append(mode.get_total_flops())
    assert counted == [128, 128]


def test_the_default_device_counts():
    with torch.device("cuda"):
        assert torch.tensor([1.0, 2.0]).device.type == "cuda"
    assert torch.tensor([1.0, 2.0]).device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_uploads_lie_as_they_did(dtype):
    whole = torch.arange(24).view(2, 3, 4).to(dtype)
    for each in (
        whole, whole[1], whole[:, 1], whole.transpose(0, 2), whole[..., ::2], whole[1, 2, 3],
        whole[:1].transpose(0, 1), whole[:, :, :1], whole[0, :0], whole.expand(2, 2, 3, 4),
        whole.as_strided((1, 4), (7, 1), 3),
    ):  # fmt: skip
        ours = each.cuda()
        assert torch.equal(ours.cpu(), each)
        assert ours.stride() == each.clone().stride() or ours.stride() == each.stride()
