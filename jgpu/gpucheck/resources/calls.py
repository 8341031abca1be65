"""The calls that the executor's device makes of CUDA, one by one, without an executor.

    python calls.py HOW

What was found, by name: true, or a sentence. On the GPU itself, or on the host's version of it.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jgpu.broker.executor.devices.calls import Calls

#: torch hands out so many; the next would be the first again
MANY = 32
NBYTES = 8 << 20


class Around:
    """Calls and one stream, and how ops are launched there; `other` is a second one."""

    def __init__(self, calls: Calls, other: "Around | None" = None) -> None:
        self.calls = calls
        self.stream = calls.stream()
        self.other = other or self

    def launch(self, work: Callable[[], Any]) -> Any:
        """Run ops on the stream; what they made."""
        self.calls.set_stream(self.stream)
        with self.calls.launching():
            return work()

    def fill(self, value: int, nbytes: int = NBYTES) -> torch.Tensor:
        """Bytes of the device."""
        place = self.calls.torch_device
        made: torch.Tensor = self.launch(
            lambda: torch.full((nbytes,), value, dtype=torch.uint8, device=place)
        )
        return made

    def reached(self) -> Any:
        """An event behind all that was launched, when it was reached."""
        event = self.calls.event()
        self.calls.record(event, self.stream)
        deadline = time.monotonic() + 20
        while not self.calls.done(event):
            assert time.monotonic() < deadline, "the event is never reached"
            time.sleep(1e-4)
        return event

    def told(self, source: torch.Tensor) -> torch.Tensor:
        """A copy on the host."""
        host = self.calls.pinned(source.numel())
        self.calls.set_stream(self.stream)
        self.calls.copy(host, source)
        self.reached()
        return host.clone()


def streams_differ(around: Around) -> None:
    """As many as torch has are not each other; no lane may ask for more."""
    made = [around.stream, around.other.stream]
    made += [around.calls.stream() for _ in range(MANY - len(made))]
    keys = {getattr(stream, "cuda_stream", id(stream)) for stream in made}
    assert len(keys) == MANY, f"{MANY} streams are {len(keys)}"


def events_keep_time(around: Around) -> None:
    """Of two events the later one is later."""
    begin = around.reached()
    around.fill(1)
    end = around.reached()
    took_s = around.calls.elapsed_s(begin, end)
    assert 0 <= took_s < 20, f"{took_s} s between two events"


def a_stream_waits_for_another(around: Around) -> None:
    """What is written on one stream is seen on another behind a wait."""
    calls = around.calls
    for value in range(1, 9):
        made = around.fill(value)
        event = calls.event()
        calls.record(event, around.stream)
        calls.wait(around.other.stream, event)
        host = around.other.told(made)
        assert bool((host == value).all()), f"{value} is not what came"


def copies_keep_bytes(around: Around) -> None:
    """Pinned, and not pinned, there and back."""
    calls = around.calls
    plain = (torch.arange(NBYTES) % 251).to(torch.uint8)
    pinned = calls.pinned(NBYTES)
    pinned.copy_(plain)
    assert calls.is_pinned(pinned), "pinned memory does not say so"
    assert not calls.is_pinned(plain), "plain memory says that it is pinned"
    for source in (plain, pinned):
        target = around.fill(0)
        calls.copy(target, source)
        assert torch.equal(around.told(target), plain), "other bytes came back"


def arenas_are_pinned(around: Around) -> None:
    """A sealed memory file of a client's size, registered and given back."""
    calls = around.calls
    descriptor = os.memfd_create("jgpu-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 64 << 20)
    with mmap.mmap(descriptor, 64 << 20) as memory:
        view = torch.frombuffer(memory, dtype=torch.uint8)
        view[:NBYTES] = 7
        assert calls.register(view.data_ptr(), view.numel()), "the host does not pin 64 MiB"
        assert calls.is_pinned(view[:NBYTES]), "it is registered and does not say so"
        target = around.fill(0)
        calls.copy(target, view[:NBYTES])
        assert bool((around.told(target) == 7).all()), "other bytes came"
        calls.unregister(view.data_ptr())
        del view
    os.close(descriptor)


def much_is_pinned(around: Around) -> None:
    """What one spill takes."""
    for _ in range(4):
        around.calls.pinned(64 << 20).fill_(1)


def memory_is_refused_beyond_the_limit(around: Around) -> None:
    """More than the allocator may have is torch's own error, and less works right after it."""
    free, total = around.calls.free_bytes()
    assert 0 < free <= total, f"{free} of {total} bytes are free"
    limit = min(free // 2, 1 << 30)
    around.calls.limit_bytes(limit)
    try:
        around.fill(0, limit + (64 << 20))
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError(f"more than the {limit} bytes that it may have were given")
    assert bool((around.told(around.fill(5)) == 5).all())
    around.calls.limit_bytes(total)


def peaks_are_exact(around: Around) -> None:
    """What a run takes at most beyond what it keeps."""
    peak = around.calls.watch_peak()
    kept = around.fill(1)
    more = around.fill(2)
    del more
    found = peak(kept.numel())
    assert 2 * NBYTES <= found <= 2 * NBYTES + (1 << 20), f"{found} bytes for {2 * NBYTES}"


def generators_draw_alike(around: Around) -> None:
    """The same seed is the same numbers; the state brings them back."""
    place = around.calls.torch_device
    drawn = []
    for _ in range(2):
        own = around.calls.generator().manual_seed(17)
        made = around.launch(partial(torch.rand, 999, generator=own, device=place))
        drawn.append(around.told(made.view(torch.uint8)))
    assert torch.equal(*drawn), "one seed, two sequences"


CHECKS = (
    events_keep_time,
    a_stream_waits_for_another,
    copies_keep_bytes,
    arenas_are_pinned,
    much_is_pinned,
    memory_is_refused_beyond_the_limit,
    peaks_are_exact,
    generators_draw_alike,
    streams_differ,
)


def main(how: str) -> dict[str, Any]:
    """Each for itself."""
    calls: Calls
    if how == "eager":
        from jgpu.broker.executor.devices.onhost.calls import HostCalls

        calls = HostCalls()
    else:
        from jgpu.broker.executor.devices.calls import CudaCalls

        calls = CudaCalls()
    around = Around(calls, Around(calls))
    found: dict[str, Any] = {}
    for check in CHECKS:
        name = check.__name__.replace("_", " ")
        try:
            check(around)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = True
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(json.dumps(main(sys.argv[1])))
