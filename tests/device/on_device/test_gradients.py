"""Gradients and lists of tensors of two devices, and of losses at their edges: as natively."""

import pytest
import torch
from torch.nn import functional


class Returns(torch.autograd.Function):
    """A function whose backward returns what it was made with."""

    @staticmethod
    def forward(ctx, gradient, x):
        ctx.gradient = gradient
        return x * 2

    @staticmethod
    def backward(ctx, incoming):
        return None, ctx.gradient


class Moves(torch.autograd.Function):
    """To the device, and back with the gradient where `back`."""

    @staticmethod
    def forward(ctx, x, back):
        ctx.back = back
        return x.cuda()

    @staticmethod
    def backward(ctx, incoming):
        return (incoming.cpu() if ctx.back else incoming), None


def weight(device):
    return torch.ones(3, device=device, requires_grad=True)


@pytest.mark.parametrize(("own", "other"), [("cuda:0", "cpu"), ("cpu", "cuda:0")])
@pytest.mark.parametrize(
    "begin",
    [
        lambda y, w, given: y.backward(given),
        lambda y, w, given: torch.autograd.grad(y, w, given),
        lambda y, w, given: torch.autograd.backward([y.sum(), y], [None, given]),
    ],
)
def test_a_backward_is_given_gradients_of_its_own_device(begin, own, other):
    w = weight(own)
    with pytest.raises(RuntimeError) as info:
        begin(w * 2, w, torch.ones(3, device=other))
    place = int("sum" in begin.__code__.co_names)
    assert str(info.value) == (
        f"invalid gradient at index {place} - expected device {own} but got {other}"
    )
    assert w.grad is None


def test_a_gradient_without_dimensions_is_moved():
    w = torch.ones((), device="cuda", requires_grad=True)
    (w * 2).backward(torch.tensor(3.0))
    assert (w.grad.item(), w.grad.device.type) == (6.0, "cuda")
    Returns.apply(torch.tensor(5.0), w).backward()
    assert w.grad.item() == 11.0
    Returns.apply(None, w).backward()
    assert w.grad.item() == 11.0


@pytest.mark.parametrize(("own", "other"), [("cuda:0", "cpu"), ("cpu", "cuda:0")])
def test_a_backward_that_somebody_wrote_returns_gradients_of_its_inputs_device(own, other):
    w = weight(own)
    with pytest.raises(RuntimeError) as info:
        Returns.apply(torch.ones(3, device=other), w).sum().backward()
    assert str(info.value) == (
        "Function ReturnsBackward returned an invalid gradient at index 1 - expected device "
        f"{own} but got {other}"
    )
    assert w.grad is None


def test_a_backward_may_change_the_device_as_its_forward_did():
    w = weight("cpu")
    Moves.apply(w, True).square().sum().backward()
    assert w.grad.tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="expected device cpu but got cuda:0"):
        Moves.apply(w, False).square().sum().backward()


def pairs(device):
    return [torch.arange(1.0, 3.0, device=device), torch.ones(3, device=device)]


def outcome(op, device):
    """Its result or error."""
    try:
        found = op(pairs(device))
    except RuntimeError as error:
        return str(error)
    assert [each.device.type for each in found[:2]] == [device] * 2
    return [each.tolist() for each in found]


#: ops on lists of which something is on the host
LISTS = {
    "numbers": lambda x: torch._foreach_addcdiv(x, x, x, torch.tensor([1.0, 2.0])),
    "numbers in place": lambda x: torch._foreach_addcmul_(x, x, x, torch.tensor([1.0, 2.0])),
    "wrong numbers": lambda x: torch._foreach_addcdiv(x, x, x, torch.ones(3)),
    "a vector": lambda x: torch._foreach_mul(x, torch.ones(2)),
    "a number": lambda x: torch._foreach_mul(x, torch.tensor(2.0)),
    "a number among them": lambda x: torch._foreach_add(x, [x[0], torch.tensor(2.0)]),
    "both": lambda x: torch._foreach_mul([*x, torch.ones(2)], 3.0),
    "copies": lambda x: torch._foreach_copy_(x, [torch.zeros(2), torch.zeros(3)]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_with_tensors_of_the_host_are_computed_as_natively(name):
    expected = outcome(LISTS[name], "cpu")
    assert [outcome(LISTS[name], "cuda") for _ in range(3)] == [expected] * 3


def test_numbers_in_a_tensor_belong_on_the_host():
    with pytest.raises(RuntimeError, match=r"^Expected scalars to be on CPU, got cuda:0 inst"):
        torch._foreach_addcdiv(*[pairs("cuda")] * 3, torch.ones(2, device="cuda"))


def test_lists_of_two_devices_do_not_meet():
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
        torch._foreach_mul(pairs("cuda"), pairs("cpu"))


def both_ways(make):
    """A loss and gradients natively and on the device, there at the third time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return make("cpu"), [make("cuda") for _ in range(3)][-1]
    finally:
        torch.set_num_threads(threads)


def bits_of(tensors):
    return [(each.shape, each.stride(), each.numpy().tobytes()) for each in tensors]


@pytest.mark.parametrize("left_out", [-100, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [True, False])
def test_classes_that_are_left_out_weigh_nothing_to_the_last_bit(
    weighted, reduction, smoothing, left_out
):
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        given = torch.randn(6, 5, 3, 2, generator=generator)
        classes = torch.randint(0, 5, (6, 3, 2), generator=generator)
        weight = torch.rand(5, generator=generator) if weighted else None

        def make(device, x=given, target=classes, weights=weight):
            x = x.clone().to(device).requires_grad_()
            loss = functional.cross_entropy(
                x,
                target.to(device),
                weight=None if weights is None else weights.to(device),
                reduction=reduction,
                ignore_index=left_out,
                label_smoothing=smoothing,
            )
            loss.sum().backward()
            return loss.detach().cpu(), x.grad.cpu()

        native, shared = both_ways(make)
        assert bits_of(shared) == bits_of(native)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1])
def test_a_share_of_other_classes_that_is_none_is_refused_as_natively(smoothing):
    def make(device):
        x, target = torch.zeros(2, 3, device=device), torch.zeros(2, device=device).long()
        weight = torch.ones(3, device=device)
        try:
            made = functional.cross_entropy(x, target, weight=weight, label_smoothing=smoothing)
        except RuntimeError as error:
            return str(error)
        return made.cpu()

    native, shared = both_ways(make)
    assert shared == native


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_of_nothing_has_gradients_of_nothing(name, reduction):
    def make(device):
        x = torch.zeros(0, 3).to(device).requires_grad_()
        loss = getattr(functional, name)(x, torch.zeros(0, 3, device=device), reduction=reduction)
        loss.sum().backward()
        return loss.detach().cpu(), x.grad.cpu()

    native, shared = both_ways(make)
    assert bits_of(shared) == bits_of(native)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_a_bag_without_words_has_gradients_of_zeros(mode, dtype, offsets):
    def make(device):
        table = torch.ones(5, 4).to(device).requires_grad_()
        words = torch.tensor([], dtype=dtype, device=device)
        bags = torch.tensor(offsets, dtype=dtype, device=device)
        made = functional.embedding_bag(words, table, bags, mode=mode)
        made.sum().backward()
        return made.detach().cpu(), table.grad.cpu()

    native, shared = both_ways(make)
    assert bits_of(shared) == bits_of(native)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("word", [torch.int64, torch.int32])
@pytest.mark.parametrize("offset", [torch.int64, torch.int32])
def test_bags_take_words_and_offsets_of_two_types(mode, word, offset):
    def make(device):
        table = torch.arange(20.0).view(5, 4).to(device).requires_grad_()
        words = torch.tensor([0, 3, 2, 3], dtype=word, device=device)
        bags = torch.tensor([0, 1], dtype=offset, device=device)
        made = functional.embedding_bag(words, table, bags, mode=mode)
        made.sum().backward()
        return made.detach().cpu(), table.grad.cpu()

    native, shared = both_ways(make)
    assert bits_of(shared) == bits_of(native)
