"""`torch.cuda`, `torch.accelerator` and their like, as a notebook asks them."""

import os
import sys
import time
import warnings

import processes
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from jgpu import errors
from jgpu.device import current


def test_there_is_one_device():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.backends.cuda.is_built()
    torch.cuda.set_device(0)
    torch.cuda.set_device("cuda")
    torch.cuda.set_device(torch.device("cuda:0"))
    with torch.cuda.device(0), torch.cuda.device("cuda"), torch.cuda.device(-1):
        assert torch.empty(1, device="cuda").device.index == 0
    with torch.cuda.device_of(torch.empty(1, device="cuda")):
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.device("cuda:1"),
        lambda: torch.cuda.get_device_name(1),
        lambda: torch.cuda.synchronize(2),
        lambda: torch.cuda.memory_allocated("cuda:3"),
        lambda: torch.cuda.Stream(1),
    ],
)
def test_there_is_no_other_device(use):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        use()


def test_the_host_is_no_cuda_device():
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.get_device_properties("cpu")


def test_properties_are_the_executors():
    facts = current.session.device_facts()
    properties = torch.cuda.get_device_properties()
    assert torch.cuda.get_device_name(0) == properties.name == facts.name
    assert properties.name.endswith("(shared)")
    assert properties.total_memory == facts.capacity
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability()
    assert properties.multi_processor_count >= 1
    assert "(shared)" in repr(properties)
    assert torch.cuda.is_bf16_supported()


def test_a_process_has_not_used_the_device_before_it_does():
    source = (
        "import torch\n"
        "assert not torch.cuda.is_initialized() and not torch.cuda._initialized\n"
        "torch.manual_seed(1); torch.cuda.is_available(); torch.cuda.current_device()\n"
        "torch.cuda.set_device(0); torch.cuda.empty_cache(); torch.cuda.max_memory_allocated()\n"
        "torch.cuda.Event().record(); torch.cuda.current_stream()\n"
        "assert not torch.cuda.is_initialized()\n"
        "from jgpu.device import current; assert not current.session.is_connected\n"
        "torch.cuda.init(); assert torch.cuda.is_initialized() and torch.cuda._initialized\n"
    )
    processes.run([sys.executable, "-c", source], check=True, timeout=100)


# -- memory ----------------------------------------------------------------------------------


def test_who_waits_for_the_device_has_told_it_what_was_forgotten():
    gone = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    del gone
    assert current.session.buffers.graveyard
    torch.cuda.synchronize()
    assert not current.session.buffers.graveyard


def test_memory_figures_follow_the_tensors():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    kept = torch.empty(1000, 250, device="cuda")
    assert torch.cuda.memory_allocated() == before + 1_000_000
    gone = kept + 1
    del gone
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == before + 1_000_000
    assert torch.cuda.max_memory_allocated() >= before + 2_000_000
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before + 1_000_000
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total - 1_000_000
    assert total == torch.cuda.get_device_properties().total_memory
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == before + 1_000_000
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] > 0
    assert "allocated now" in torch.cuda.memory_summary()
    del kept
    assert torch.cuda.memory_allocated() == before


def test_a_fraction_is_remembered_and_said_not_to_be_enforced():
    with pytest.warns(UserWarning, match="does not enforce"):
        torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    with pytest.raises(ValueError, match="Invalid fraction value"):
        torch.cuda.set_per_process_memory_fraction(1.5)


# -- streams and events ----------------------------------------------------------------------


def test_streams_share_one_order():
    stream = torch.cuda.Stream()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("cuda:0")
    x = torch.ones(4, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        with torch.cuda.stream(None):
            y = x * 2
        event = stream.record_event()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.current_stream().wait_event(event)
    x.record_stream(stream)
    assert y.sum().item() == 8
    stream.synchronize()
    assert stream.query()
    assert torch.cuda.Stream.priority_range() == (0, -1)
    assert torch.cuda.Stream(priority=-5).priority == -1
    assert stream != torch.cuda.Stream()
    assert isinstance(torch.Stream("cuda"), torch.cuda.Stream)


def test_events_tell_the_time_between_them():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(300, 300, device="cuda")
    torch.cuda.synchronize()
    start.record()
    for _ in range(20):
        x = x @ x * 1e-3
    end.record()
    end.synchronize()
    assert end.query()
    assert start.query()
    elapsed_ms = start.elapsed_time(end)
    assert 0 < elapsed_ms < 60_000
    assert end.elapsed_time(start) == -elapsed_ms


def test_the_time_between_events_is_the_devices_and_grows_with_the_work():
    x = torch.rand(400, 400, device="cuda") / 400

    def elapsed_ms(products):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        before_ns, result = time.monotonic_ns(), x
        start.record()
        for _ in range(products):
            result = result @ x
        end.record()
        torch.cuda.synchronize()
        assert start.query()
        assert end.query()
        elapsed_ms = start.elapsed_time(end)
        assert elapsed_ms <= (time.monotonic_ns() - before_ns) / 1e6
        return elapsed_ms

    elapsed_ms(1)
    little, much = (min(elapsed_ms(n) for _ in range(3)) for n in (1, 40))
    assert 0 < little < much


def test_an_event_that_tells_the_time_begins_with_the_device():
    """Connecting and first imports lie before it, as a context's creation does natively."""
    source = (
        "import torch\n"
        "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "start.record()\n"
        "from jgpu.device import current; assert current.session.is_connected\n"
        "end.record()\n"
        "assert 0 < start.elapsed_time(end) < 1000\n"
    )
    processes.run([sys.executable, "-c", source], check=True, timeout=100)


def test_recording_an_event_waits_for_nothing():
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    before = current.session.round_trips
    event = torch.cuda.Event()
    (x + 1).sum()
    event.record()
    event.wait(torch.cuda.current_stream())
    event.query()
    assert current.session.round_trips == before
    event.synchronize()
    assert current.session.round_trips <= before + 1


def test_times_of_events_that_have_none_are_refused():
    plain, timed = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="enable_timing"):
        timed.elapsed_time(plain)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))
    assert plain.query()


# -- what cannot be had ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.cuda.CUDAGraph(),
        lambda: torch.cuda.graph(None),
        lambda: torch.cuda.make_graphed_callables(None, ()),
        lambda: torch.cuda.MemPool(),
        lambda: torch.cuda.ExternalStream(1),
        lambda: torch.cuda.cudart(),
        lambda: torch.cuda.utilization(),
        lambda: torch.cuda.memory._snapshot(),
        lambda: torch.cuda.caching_allocator_alloc(100),
        lambda: torch.cuda.Event(interprocess=True),
    ],
)
def test_what_needs_a_device_of_ones_own_is_refused_with_a_sentence(use):
    with pytest.raises(errors.NotSupported, match=r"^The shared device does not support .*: .*\.$"):
        use()


def test_what_needs_nothing_does_nothing():
    torch.cuda.ipc_collect()
    torch.cuda.nvtx.mark("here")
    with torch.cuda.nvtx.range("there"):
        torch.cuda.profiler.start()
    assert not torch.cuda.is_current_stream_capturing()
    assert not torch.cuda.can_device_access_peer(0, 0)


# -- old tensor types ------------------------------------------------------------------------


def test_old_tensor_types_make_and_name_tensors():
    x = torch.cuda.FloatTensor([1, 2])
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert x.tolist() == [1.0, 2.0]
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert torch.cuda.DoubleTensor().numel() == 0
    assert torch.ones(2).type(torch.cuda.DoubleTensor).type() == "torch.cuda.DoubleTensor"
    assert torch.ones(2).type("torch.cuda.HalfTensor").is_cuda
    assert x.type(torch.cuda.LongTensor).dtype == torch.int64
    assert torch.ones(2).type(torch.float64).type() == "torch.DoubleTensor"


def test_the_default_tensor_type_can_be_the_devices():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_tensor_type(torch.cuda.DoubleTensor)
        try:
            assert torch.zeros(2).type() == "torch.cuda.DoubleTensor"
        finally:
            torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.zeros(2).type() == "torch.FloatTensor"


# -- accelerator and data loading ------------------------------------------------------------


def test_the_accelerator_is_cuda():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    assert not torch.accelerator.current_stream().is_capturing()
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert torch.get_device_module("cuda") is torch.cuda


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_from_workers(workers):
    data = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    seen = []
    for x, y in DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True):
        assert x.is_pinned()
        seen.append((x.cuda(non_blocking=True).sum() + y.to("cuda", non_blocking=True)).tolist())
    assert len(seen) == 5
    assert seen[0] == [28.0, 29.0, 30.0, 31.0]


def test_the_default_device_can_be_cuda():
    torch.set_default_device("cuda")
    try:
        assert torch.empty(2).is_cuda
        assert torch.get_default_device() == torch.device("cuda:0")
        data = TensorDataset(torch.arange(6.0))
        generator = torch.Generator(device="cuda").manual_seed(1)
        batches = [x for (x,) in DataLoader(data, 2, shuffle=True, generator=generator)]
        assert sorted(torch.cat(batches).tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert f"{torch.ones(())}" == "1.0"
    finally:
        torch.set_default_device(None)


def test_data_parallel_has_one_device():
    model = torch.nn.Linear(4, 2).cuda()
    x = torch.ones(3, 4)
    parallel = torch.nn.DataParallel(model)
    assert parallel.device_ids == [0]
    assert torch.equal(parallel(x), model(x.cuda()))
    parallel(x).sum().backward()
    assert model.weight.grad is not None


def test_the_profiler_says_that_it_sees_the_notebooks_side_alone(capfd):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    # so that torch 2.11 has nothing of its own to warn of
    profile = torch.profiler.profile(activities=activities, acc_events=True)
    with pytest.warns(UserWarning, match="notebook's own side"):
        profile.start()
    torch.ones(2, device="cuda").sum().item()
    profile.stop()
    assert "aten::sum" in profile.key_averages().table(sort_by="self_cuda_time_total")
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_a_forked_child_may_seed_and_not_compute():
    torch.ones(1, device="cuda")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.manual_seed(1)
            torch.ones(2, device="cuda").cpu()
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert b"Cannot re-initialize CUDA in forked subprocess" in os.read(reading, 4096)
    assert torch.ones(2, device="cuda").sum().item() == 2
