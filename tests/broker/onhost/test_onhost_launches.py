"""Ops on shadows: their numbers are the CPU's, later; what CUDA waits for is waited for."""

import pytest
import torch

from jgpu.broker.executor.devices.onhost import launches
from jgpu.broker.executor.devices.onhost.calls import HostCalls
from jgpu.broker.executor.devices.onhost.kernels import KERNELS
from jgpu.broker.executor.devices.onhost.kernels.unset import STALE

META = torch.device("meta")


class Gpu:
    """Two streams, and ways to and from the device that wait."""

    def __init__(self, seed=0, **options):
        self.calls = HostCalls(seed, **options)
        self.first, self.second = self.calls.stream(), self.calls.stream()
        self.calls.set_stream(self.first)

    def bring(self, host):
        with self.calls.launching():
            made = torch.empty(host.shape, dtype=host.dtype, device=META)
        self.calls.copy(made, host)
        return made

    def fetch(self, shadow):
        host = torch.empty_strided(shadow.shape, shadow.stride(), dtype=shadow.dtype)
        self.calls.copy(host, shadow)
        return host

    def settle(self):
        event = self.calls.event()
        self.calls.record(event, self.first)
        self.calls.synchronize(event)


@pytest.fixture
def gpu():
    return Gpu()


def matrix():
    return torch.arange(20.0).view(4, 5).sub_(7.5)


PROGRAMS = {
    "sums": lambda a: (a @ a.t()).softmax(-1).sum(0),
    "views": lambda a: a.t()[1:].unflatten(0, (2, 2)).flip(0) + 1,
    "in place": lambda a: a.clone().mul_(2).t().add_(1).relu_(),
    "a view written": lambda a: (b := a.clone(), b[1].zero_(), b)[2],
    "into": lambda a: torch.add(a, a, out=torch.empty(0, device=a.device)),
    "lists": lambda a: torch._foreach_add([a, a[0]], 1.5)[1],
    "parts": lambda a: a.split(2)[1] + torch.stack(a.unbind(0))[:2],
    "a mask": lambda a: a[a > 0],
    "places": lambda a: a[torch.arange(3, 0, -2, device=a.device)],
    "places of it": lambda a: torch.nonzero(a > 3),
    "a number": lambda a: a * a.max().item(),
    "solved": lambda a: torch.linalg.solve(
        a[:, :4] + 9 * torch.eye(4, device=a.device), torch.ones(4, device=a.device)
    ),
    "grown": lambda a: a.clone().resize_(5, 5)[:4],
    "complex": lambda a: torch.complex(a, a).conj().mul(2).imag,
    "types": lambda a: a.to(torch.float64).mean() + a.long().sum(),
    "one that draws nothing": lambda a: torch.nn.functional.dropout(a, 0.5, training=False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_later_or_at_once_the_numbers_are_the_cpus(gpu, name):
    program = PROGRAMS[name]
    for _ in range(3):
        shadow = gpu.bring(matrix())
        with gpu.calls.launching():
            made = program(shadow)
        found, right = gpu.fetch(made), program(matrix())
        assert found.dtype is right.dtype
        assert torch.equal(found, right)


def test_nothing_runs_before_somebody_looks(gpu):
    shadow = gpu.bring(torch.zeros(3))
    with gpu.calls.launching():
        shadow.add_(1)
    assert len(gpu.first.tasks) > 0
    assert torch.equal(gpu.fetch(shadow), torch.ones(3))
    assert not gpu.first.tasks


def test_an_index_out_of_range_breaks_the_device_for_good(gpu):
    rows, index = gpu.bring(torch.zeros(3)), gpu.bring(torch.tensor([5]))
    with gpu.calls.launching():
        rows[index]
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        gpu.settle()
    with pytest.raises(torch.AcceleratorError), gpu.calls.launching():
        rows + 1
    with pytest.raises(torch.AcceleratorError):
        gpu.calls.done(gpu.calls.event())


def test_what_a_library_finds_wrong_is_an_error_and_no_more(gpu):
    singular = gpu.bring(torch.zeros(2, 2))
    with pytest.raises(torch.linalg.LinAlgError), gpu.calls.launching():
        torch.linalg.inv(singular)
    gpu.settle()


def test_shapes_that_do_not_fit_are_an_error_at_the_launch(gpu):
    left = gpu.bring(torch.zeros(2, 3))
    with pytest.raises(RuntimeError), gpu.calls.launching():
        left @ left
    gpu.settle()


def test_new_memory_holds_what_a_neighbour_left(gpu):
    with gpu.calls.launching():
        made = torch.empty(100, dtype=torch.uint8, device=META)
    assert set(gpu.fetch(made).tolist()) == {STALE}


def test_what_is_dropped_goes_to_the_next_of_its_stream_and_to_no_other(gpu):
    memory = gpu.calls.memory
    with gpu.calls.launching():
        dropped = torch.zeros(100, device=META)
        block = gpu.calls.shadows.seen(dropped).block
        del dropped
        assert memory.used == 0
        gpu.calls.set_stream(gpu.second)
        elsewhere = torch.zeros(100, device=META)
        assert gpu.calls.shadows.seen(elsewhere).block is not block
        gpu.calls.set_stream(gpu.first)
        again = torch.zeros(100, device=META)
        assert gpu.calls.shadows.seen(again).block is block


def test_memory_ends_where_the_limit_is_and_what_is_kept_is_given_back_first():
    gpu = Gpu()
    gpu.calls.limit_bytes(4096)
    with gpu.calls.launching():
        half = torch.empty(2048, dtype=torch.uint8, device=META)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            torch.empty(4096, dtype=torch.uint8, device=META)
        del half
        whole = torch.empty(4096, dtype=torch.uint8, device=META)
    assert whole.shape == (4096,)


def test_what_is_drawn_is_decided_at_the_launch(gpu):
    generator = gpu.calls.generator().manual_seed(5)
    with gpu.calls.launching():
        first = torch.empty(8, device=META).normal_(generator=generator)
        gpu.calls.set_stream(gpu.second)
        second = torch.empty(8, device=META).normal_(generator=generator)
    later = gpu.fetch(second)
    gpu.calls.set_stream(gpu.first)
    earlier = gpu.fetch(first)
    again = gpu.calls.generator().manual_seed(5)
    with gpu.calls.launching():
        both = [torch.empty(8, device=META).normal_(generator=again) for _ in range(2)]
    assert torch.equal(gpu.fetch(both[0]), earlier)
    assert torch.equal(gpu.fetch(both[1]), later)
    assert not torch.equal(earlier, later)


def test_what_meta_kernels_draw_from_no_generator_is_drawn_all_the_same(gpu):
    with gpu.calls.launching():
        made = torch.empty(64, device=META).exponential_(
            2.0, generator=gpu.calls.generator().manual_seed(5)
        )
    assert (gpu.fetch(made) > 0).all()


def test_a_composite_that_reads_a_value_is_waited_for(gpu):
    """Without autograd `bool` and `item` arrive as one op."""
    one = gpu.bring(torch.tensor([7]))
    with gpu.calls.launching(), torch._C._AutoDispatchBelowAutograd():
        one.add_(1)
        assert bool((one > 7).any())
        assert (one.item(), float(one.sum())) == (8, 8.0)


def test_a_state_is_a_seed_and_an_offset(gpu):
    generator = gpu.calls.generator().manual_seed(7)
    with gpu.calls.launching():
        torch.empty(8, device=META).uniform_(generator=generator)
    state = generator.get_state()
    assert state.shape == (16,)
    with gpu.calls.launching():
        first = torch.empty(8, device=META).uniform_(generator=generator)
    generator.set_state(state)
    with gpu.calls.launching():
        second = torch.empty(8, device=META).uniform_(generator=generator)
    assert torch.equal(gpu.fetch(first), gpu.fetch(second))
    with pytest.raises(RuntimeError, match="wrong size"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))


def test_a_kernel_that_returns_otherwise_than_was_said_is_right(gpu, monkeypatch):
    """Results of trials are kept per op, geometries and numbers."""
    op = torch.ops.aten.clamp_min.default
    monkeypatch.setitem(KERNELS, op, lambda a, least: a[: len(a) - int(least)].clone())
    shadow = gpu.bring(torch.arange(4.0))
    with gpu.calls.launching():
        shorter, as_long = torch.clamp_min(shadow, 2), torch.clamp_min(shadow, 0)
        other = torch.clamp_min(shadow[:3], 2)
    assert [len(each) for each in (shorter, as_long, other)] == [2, 4, 1]
    assert torch.equal(gpu.fetch(shorter), torch.tensor([0.0, 1.0]))


def test_a_few_thousand_tried_calls_are_remembered(gpu, monkeypatch):
    monkeypatch.setattr(launches, "_MOST", 3)
    shadow = gpu.bring(torch.zeros(3))
    with gpu.calls.launching():
        for number in range(5):
            shadow.add(number)
    assert len(gpu.calls.launcher._tried) == 3


def test_a_copy_from_memory_that_is_not_pinned_is_taken_at_once(gpu):
    host = torch.ones(4)
    shadow = gpu.bring(host)
    host.zero_()
    assert torch.equal(gpu.fetch(shadow), torch.ones(4))


def test_a_copy_from_pinned_memory_reads_it_later(gpu):
    pinned = gpu.calls.pinned(4)
    pinned.fill_(1)
    with gpu.calls.launching():
        shadow = torch.empty(4, dtype=torch.uint8, device=META)
    gpu.calls.copy(shadow, pinned[:])
    pinned.fill_(2)
    assert gpu.fetch(shadow).tolist() == [2, 2, 2, 2]


def test_the_thirty_third_stream_is_refused(gpu):
    for _ in range(30):
        gpu.calls.stream()
    with pytest.raises(RuntimeError, match="32 streams"):
        gpu.calls.stream()


def test_a_wait_that_is_over_is_nothing_to_wait_for(gpu):
    calls = gpu.calls
    event = calls.event()
    calls.record(event, gpu.first)
    calls.synchronize(event)
    calls.wait(gpu.second, event)
    calls.streams.drain_all()
    assert not gpu.second.tasks


def test_a_draw_that_torch_knows_without_a_generator_alone_takes_one(gpu):
    found = []
    for _ in range(2):
        own = gpu.calls.generator().manual_seed(3)
        shadow = gpu.bring(torch.zeros(4))
        with gpu.calls.launching():
            shadow.exponential_(generator=own)
        found.append(gpu.fetch(shadow))
    assert torch.equal(*found)
    assert (found[0] > 0).all()


def test_what_answers_with_a_number_is_waited_for(gpu):
    shadow = gpu.bring(torch.tensor([True]))
    # below autograd torch does not decompose the op
    with torch._C._AutoDispatchBelowAutograd(), gpu.calls.launching():
        assert bool(shadow)
        assert not bool(~shadow)


#: calls that CUDA refuses on the host: for sizes, types, numbers, or memory that arguments share
REFUSED = {
    "types that differ": lambda x: torch.complex(x, x.double()),
    "a type without a kernel": lambda x: torch.gcd(x, x),
    "a mask of bytes": lambda x: x.masked_scatter(torch.ones_like(x).byte(), x),
    "boundaries in rows": lambda x: torch.bucketize(x, torch.ones(2, 2, device=x.device)),
    "a source of other sizes": lambda x: x.index_add(
        0, torch.arange(2, device=x.device), torch.ones(2, 4, device=x.device)
    ),
    "no dilation": lambda x: torch.nn.functional.conv2d(
        x.view(1, 1, 4, 5), torch.ones(1, 1, 2, 2, device=x.device), dilation=0
    ),
    "places past the storage": lambda x: x.as_strided_scatter(x, (4, 5), (200, 1)),
    "a result without memory of its own": lambda x: torch.index_select(
        x, 0, torch.arange(2, device=x.device), out=torch.empty(1, device=x.device).expand(2, 5)
    ),
    "a result over an argument": lambda x: torch.bitwise_not(
        x.view(torch.int32)[:3], out=x.view(torch.int32)[1:]
    ),
    "more than there is to draw from": lambda x: x.abs().multinomial(6),
    "a result of another type": lambda x: x.abs().multinomial(
        2, out=torch.empty(0, dtype=torch.float64, device=x.device)
    ),
}


def raised(call):
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_refused_call_is_an_error_of_the_launch_and_breaks_nothing(gpu, refused):
    shadow, right = gpu.bring(matrix()), raised(lambda: refused(matrix()))
    assert right is not None
    generator = gpu.calls.generator()
    for _ in range(2):  # also where something of it is remembered
        with gpu.calls.launching():
            assert raised(lambda: generator.lend(refused, shadow)) == right
    assert generator.place.offset == 0
    assert torch.equal(gpu.fetch(shadow), matrix())


def test_a_refused_call_waits_for_nothing(gpu):
    shadow = gpu.bring(matrix())
    with gpu.calls.launching():
        shadow.add_(1)
        before = len(gpu.first.tasks)
        with pytest.raises(RuntimeError, match="scalar type"):
            torch.complex(shadow, shadow.double())
    assert len(gpu.first.tasks) >= before > 0


LARGE = (1 << 20) + 1


def test_a_refused_call_with_large_tensors_is_an_error_of_the_launch(gpu):
    shadow = gpu.bring(torch.zeros(LARGE))
    with gpu.calls.launching(), pytest.raises(RuntimeError, match="scalar type"):
        torch.complex(shadow, shadow.double())
    gpu.settle()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_large_index_out_of_range_breaks_the_device(gpu, is_known):
    rows, index = gpu.bring(torch.zeros(3)), torch.zeros(LARGE, dtype=torch.int64)
    if is_known:
        with gpu.calls.launching():
            rows.gather(0, gpu.bring(index))
    index[-1] = 5
    places = gpu.bring(index)

    def gather():
        with gpu.calls.launching():
            rows.gather(0, places)
        gpu.settle()

    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        gather()


def test_only_the_first_call_with_large_tensors_is_waited_for(gpu):
    shadow = gpu.bring(torch.zeros(LARGE))
    for waits in (True, False):
        with gpu.calls.launching():
            shadow.add_(1)
        assert (not gpu.first.tasks) is waits
    assert gpu.fetch(shadow)[-1] == 2


def test_a_kernel_that_only_zeros_stop_is_not_waited_for(gpu):
    shadow = gpu.bring(torch.tensor([1, 2, 5]))
    with gpu.calls.launching():
        made = torch.div(10, shadow, rounding_mode="floor")
    assert gpu.first.tasks
    assert gpu.fetch(made).tolist() == [10, 5, 2]


@pytest.mark.parametrize("op", [torch.floor_divide, torch.copysign, torch.heaviside])
def test_a_number_of_the_host_may_be_on_either_side(gpu, op):
    number, vector = torch.tensor(2.0), torch.tensor([1.0, 5.0, -7.0])
    shadow = gpu.bring(vector)
    with gpu.calls.launching():
        made = op(shadow, number), op(number, shadow)
    assert torch.equal(gpu.fetch(made[0]), op(vector, number))
    assert torch.equal(gpu.fetch(made[1]), op(number, vector))


def test_a_trial_tells_no_dimensions_from_all(gpu):
    shadow = gpu.bring(matrix())
    for dims in (None, [], None):
        with gpu.calls.launching():
            made = torch.ops.aten.any.dims(shadow, dims)
        assert torch.equal(gpu.fetch(made), torch.ops.aten.any.dims(matrix(), dims))
