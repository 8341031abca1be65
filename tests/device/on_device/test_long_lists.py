"""Ops on lists of more tensors than one instruction may take compute what native PyTorch does.

Compared with torch on the host are values, types, strides and errors. Calls that no program can
hold are refused on their line, and everything else keeps its value.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.device.recording.cuts.taking import MOST_REFERENCES
from jgpu.device.recording.longlists.splitting import LONG, PART
from jgpu.device.tensors.splits import GROUP
from jgpu.wire import limits

MANY = limits.MAX_LIST + 700  # what the executor accepts in one list, and more


def on_both(make):
    """What `make` returns of tensors on the host and of tensors on the device."""
    return make("cpu"), make("cuda")


def assert_alike(native, shared):
    assert shared.dtype is native.dtype
    assert shared.shape == native.shape
    assert shared.stride() == native.stride()
    assert torch.equal(shared.cpu(), native)


def numbered(count, device, *shape):
    """So many tensors, views of one, each of its own values."""
    whole = torch.arange(count * torch.Size(shape).numel(), dtype=torch.float32, device=device)
    return list(whole.view(count, *shape).unbind())


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dim", [0, -1])
def test_many_tensors_are_stacked(shape, dim):
    assert_alike(*on_both(lambda device: torch.stack(numbered(MANY, device, *shape), dim)))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_many_tensors_are_joined(dim):
    assert_alike(*on_both(lambda device: torch.cat(numbered(MANY, device, 2, 3), dim)))


@pytest.mark.parametrize("count", [LONG, LONG + 1, LONG + PART])
def test_lists_near_the_length_of_a_part_are_joined(count):
    assert_alike(*on_both(lambda device: torch.cat(numbered(count, device, 2))))


def test_many_tensors_of_several_types_and_forms_are_joined():
    def joined(device):
        rows = numbered(LONG, device, 2, 3)
        rows[5] = rows[5].long() + (1 << 53)
        rows[7] = rows[7].half()
        rows[8] = torch.empty(0, device=device)  # which `cat` ignores
        rows[9] = rows[9].t().contiguous().t()
        rows += [row.double()[:, :1] for row in rows[LONG // 2 + 10 :]]
        return torch.cat(rows, 1)

    assert_alike(*on_both(joined))


def test_many_images_that_are_channels_last_are_joined_so():
    def joined(device):
        images = numbered(LONG + 8, device, 1, 2, 2, 2)
        return torch.cat([i.contiguous(memory_format=torch.channels_last) for i in images])

    assert_alike(*on_both(joined))


def test_gradients_pass_through_a_join_of_many():
    def gradients(device):
        leaves = [row.requires_grad_() for row in numbered(LONG + 5, device, 2)]
        (torch.cat(leaves) * torch.arange(2.0 * len(leaves), device=device)).sum().backward()
        return torch.stack([leaf.grad for leaf in leaves])

    assert_alike(*on_both(gradients))


@pytest.mark.parametrize("at", [3, LONG + 3])
def test_a_tensor_that_does_not_fit_among_many_is_refused_as_native_does(at):
    for join in (torch.cat, torch.stack):

        def wrong(device, join=join):
            rows = numbered(LONG + 9, device, 2, 2)
            rows[at] = rows[at][:, :1]
            with pytest.raises(RuntimeError) as raised:
                join(rows)
            return str(raised.value)

        native, shared = on_both(wrong)
        assert shared == native


FOREACH = {
    "in place with a number": lambda xs: torch._foreach_add_(xs, 2),
    "with a number": lambda xs: torch._foreach_mul(xs, 1.5),
    "with a number each": lambda xs: torch._foreach_sub(xs, [float(k % 5) for k in range(len(xs))]),
    "in place with a list": lambda xs: torch._foreach_add_(xs, xs[::-1], alpha=3),
    "with three lists": lambda xs: torch._foreach_addcdiv(xs, xs, torch._foreach_add(xs, 1)),
    "norms": lambda xs: torch._foreach_norm(xs),
    "maxima": lambda xs: torch._foreach_max(xs),
    "zeros": lambda xs: torch._foreach_zero_(xs),
    "copies": lambda xs: torch._foreach_copy_(xs, xs[::-1]),
    "with a tensor": lambda xs: torch._foreach_mul_(xs, xs[3].sum()),
    "mixed types": lambda xs: torch._foreach_exp([*map(torch.Tensor.half, xs[:9]), *xs[9:]]),
}  # fmt: skip


@pytest.mark.parametrize("op", FOREACH.values(), ids=FOREACH)
def test_list_ops_of_many_tensors_compute_as_native_ones(op):
    def computed(device):
        tensors = [x.clone() for x in numbered(LONG + 100, device, 2)]
        made = op(tensors)
        rows = tensors if made is None else made
        return torch.stack([row.reshape(-1).double() for row in rows])

    assert_alike(*on_both(computed))


def test_infinities_are_found_in_any_part_of_a_long_list():
    def unscaled(device, at):
        grads = [x.clone() for x in numbered(LONG + 100, device, 2)]
        grads[at][1] = float("inf")
        found = torch.zeros(1, device=device)
        scale = torch.full((1,), 0.5, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
        return torch.cat([*grads, found])

    for at in (0, LONG + 99):
        assert_alike(*on_both(lambda device, at=at: unscaled(device, at)))


OPTIMIZERS = {
    "in lists": lambda weights: torch.optim.SGD(weights, momentum=0.9, foreach=True),
    "fused": lambda weights: torch.optim.Adam(weights, fused=True),
}


@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_steps_many_parameters(made):
    def trained(device):
        weights = [torch.nn.Parameter(x.clone()) for x in numbered(LONG + 60, device, 2)]
        optimizer = made(weights)
        for step in range(2):
            for k, weight in enumerate(weights):
                weight.grad = weight.detach() * 0.25 + (k % 7) + step
            optimizer.step()
        return torch.stack([weight.detach() for weight in weights])

    assert_alike(*on_both(trained))


def test_what_is_recorded_with_many_arguments_is_sent_in_several_programs():
    tensors = numbered(LONG // 2, "cuda", 1)
    whole = torch.stack(tensors)
    joined = [torch.stack(tensors[k:] + tensors[:k]) for k in range(2 * MOST_REFERENCES // LONG)]
    for k, each in enumerate(joined):
        assert torch.equal(each, whole.roll(-k, 0))


def test_a_call_that_no_program_can_hold_is_refused_and_leaves_everything_else():
    kept = torch.ones(3, device="cuda") * 2
    with pytest.raises(RuntimeError, match="Split the call into several"):
        torch.unbind_copy(torch.ones(MANY, device="cuda"))
    assert kept.tolist() == [2, 2, 2]


@pytest.mark.parametrize("join", [torch.cat, torch.stack])
def test_many_tensors_are_joined_into_a_tensor_that_is_there(join):
    def joined(device):
        out = torch.empty(0, device=device)
        assert join(numbered(MANY, device, 2), out=out) is out
        return out

    assert_alike(*on_both(joined))


def test_a_text_that_is_too_long_for_a_program_is_refused_as_native_does():
    def raised(device):
        with pytest.raises(RuntimeError) as found:
            torch.nn.functional.gelu(torch.ones(2, device=device), approximate="x" * 300)
        return str(found.value)

    native, shared = on_both(raised)
    assert shared == native


LARGEST = {
    "a size": lambda: torch.zeros(0, 1 << 62, device="cuda").sum(),
    "the largest size": lambda: torch.zeros(0, (1 << 63) - 1, device="cuda").sum(),
    "a stride": lambda: torch.empty_strided((1,), (1 << 62,), device="cuda").fill_(1),
}


@pytest.mark.parametrize("call", LARGEST.values(), ids=LARGEST)
def test_sizes_that_are_too_large_for_a_program_are_refused_and_leave_everything_else(call):
    kept = torch.ones(3, device="cuda") * 2
    with pytest.raises(RuntimeError, match="sizes and strides below"):
        call()
    assert kept.tolist() == [2, 2, 2]


class SizesOfSplits(TorchDispatchMode):
    """Counts the sizes that autograd keeps: all of a call with each of its pieces."""

    kept = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.split_with_sizes.default:
            self.kept += len(args[1]) ** 2
        return func(*args, **(kwargs or {}))


def sizes(count):
    """So many sizes, zeros among them."""
    return [k % 3 for k in range(count)]


SPLITS = {
    "a method": lambda x, sizes: x.split(sizes),
    "a method at a dimension": lambda x, sizes: x.split(sizes, 0),
    "its other name": lambda x, sizes: x.split_with_sizes(sizes, -2),
    "a function": lambda x, sizes: torch.split(x, sizes),
    "a function of the other name": lambda x, sizes: torch.split_with_sizes(x, sizes),
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("count", [GROUP, GROUP + 1, 5000])
def test_a_split_into_many_pieces_is_the_native_one(split, count):
    def pieces(device):
        many = sizes(count)
        x = torch.arange(2.0 * sum(many), device=device).view(-1, 2).requires_grad_()
        found = split(x, many)
        (torch.cat(found[1:]) ** 2).sum().backward()
        return found, x

    (native, of), (shared, shared_of) = on_both(pieces)
    assert type(shared) is type(native)
    assert len(shared) == len(native)
    for one, other in zip(native, shared, strict=True):
        assert other.shape == one.shape
        assert other.stride() == one.stride()
        assert other.storage_offset() == one.storage_offset()
        assert other._base is shared_of._base
        assert type(other.grad_fn).__name__ == type(one.grad_fn).__name__
    assert_alike(of.grad, shared_of.grad)


def test_a_split_into_twice_as_many_pieces_keeps_twice_as_many_sizes():
    kept = []
    for count in (4000, 8000):
        with SizesOfSplits() as counter:
            torch.ones(sum(sizes(count)), device="cuda").split(sizes(count))
        kept.append(counter.kept)
    assert kept[1] / kept[0] < 2.2
    assert kept[1] < 8000 * 2 * GROUP


@pytest.mark.parametrize("wrong", [[1] * 99, [1] * 100 + [-1, 1], [1] * 99 + [0.5]])
def test_a_split_by_sizes_that_do_not_fit_raises_as_native_does(wrong):
    def raised(device):
        with pytest.raises((RuntimeError, TypeError)) as found:
            torch.ones(100, device=device).split(wrong)
        return type(found.value), str(found.value)

    native, shared = on_both(raised)
    assert shared == native
