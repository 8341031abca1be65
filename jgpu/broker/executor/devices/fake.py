"""A recording fake of the CUDA calls: streams and events on paper, ops on the CPU.

It knows, as the driver does, what must have happened before what: each stream has a clock, an
event remembers the clocks that its stream had seen, a wait adds them to another stream's. Every
storage that an op touches is noted with its stream's clock, and two rules are checked:

* a use on one stream of what another touched last has a wait between;
* a block is dropped only when every other stream's last use is before its own stream's present,
  or before an event that the host has seen reached.

Ops compute at once; events are reached when `advance` says so.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.lazybits import lazy_bits
from jgpu.wire.messages import DeviceFacts

__all__ = ["FakeEvent", "FakeStream", "RecordingCalls", "StreamRuleBroken"]

#: what has been seen of each stream: its number and how far it was
_Clocks = dict[int, int]


class StreamRuleBroken(AssertionError):
    """On a GPU this would have been a race."""


@dataclass(eq=False)
class FakeStream:
    """A stream: how far it is, and what it has waited for."""

    number: int
    clocks: _Clocks = field(default_factory=dict)
    #: events recorded here and not reached, in order
    pending: list["FakeEvent"] = field(default_factory=list)

    def tick(self) -> int:
        """One more thing on this stream."""
        self.clocks[self.number] = self.clocks.get(self.number, 0) + 1
        return self.clocks[self.number]


@dataclass(eq=False)
class FakeEvent:
    """An event: the clocks of its stream when it was recorded."""

    clocks: _Clocks = field(default_factory=dict)
    recorded: bool = False
    reached: bool = False
    at_s: float = 0.0


@dataclass
class _Block:
    """A storage: the stream that it belongs to, and each stream's last touch."""

    home: FakeStream
    touched: _Clocks


class RecordingCalls:
    """`Calls` without a GPU; see the module."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.torch_device = torch.device("cpu")
        self.capacity = capacity
        self.streams: list[FakeStream] = []
        self.current: FakeStream | None = None
        #: the calls, in words, for exact tests
        self.log: list[str] = []
        self._blocks: dict[int, _Block] = {}
        #: pinned memory, which is no block of the device; kept, so that no block gets its address
        self._host_memory: dict[int, torch.Tensor] = {}
        #: clocks that the host has seen reached
        self._host: _Clocks = {}
        self._now_s = 0.0

    # -- time --------------------------------------------------------------------------------

    def advance(self, stream: FakeStream, events: int = 1) -> None:
        """Let a stream reach its next events (those that it has)."""
        for event in stream.pending[:events]:
            self._now_s += 0.001
            event.reached, event.at_s = True, self._now_s
        del stream.pending[:events]

    def advance_all(self) -> None:
        """Let everything be over."""
        for stream in self.streams:
            self.advance(stream, len(stream.pending))

    # -- the calls ---------------------------------------------------------------------------

    def facts(self, capacity: int) -> DeviceFacts:
        """A device that does not exist."""
        return DeviceFacts("cuda", "fake (shared)", capacity, 1, (9, 0), 132)

    def free_bytes(self) -> tuple[int, int]:
        """All of it."""
        return self.capacity, self.capacity

    def limit_bytes(self, nbytes: int) -> None:
        """Nothing enforces it."""

    def stream(self) -> FakeStream:
        """A new stream."""
        if len(self.streams) == 32:
            raise StreamRuleBroken("The 33rd stream is the first one again.")
        self.streams.append(FakeStream(len(self.streams)))
        return self.streams[-1]

    def set_stream(self, stream: FakeStream) -> None:
        """Ops are noted for this stream from here on."""
        self.current = stream

    def event(self) -> FakeEvent:
        """A new event."""
        return FakeEvent()

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        """Note what the stream has seen."""
        stream.tick()
        event.clocks, event.recorded, event.reached = dict(stream.clocks), True, False
        stream.pending.append(event)
        self.log.append(f"record {stream.number}")

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        """The stream has seen what the event's stream had."""
        if not event.recorded:
            raise StreamRuleBroken("A wait for an event that was never recorded waits for nothing.")
        for number, clock in event.clocks.items():
            stream.clocks[number] = max(stream.clocks.get(number, 0), clock)
        self.log.append(f"wait {stream.number}")

    def done(self, event: FakeEvent) -> bool:
        """The host knows, from here on, what the event knew."""
        if event.reached:
            for number, clock in event.clocks.items():
                self._host[number] = max(self._host.get(number, 0), clock)
        return event.reached

    def synchronize(self, event: FakeEvent) -> None:
        """The event's stream goes on until there."""
        stream = next(each for each in self.streams if event in each.pending)
        self.advance(stream, stream.pending.index(event) + 1)
        self.done(event)

    def elapsed_s(self, begin: FakeEvent, end: FakeEvent) -> float:
        """A millisecond for each event that was reached."""
        if not (begin.reached and end.reached):
            raise StreamRuleBroken("The time between events that were not reached is unknown.")
        return max(0.0, end.at_s - begin.at_s)

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Note every op's storages."""
        with _Watch(self):
            yield

    def asking(self) -> AbstractContextManager[None]:
        """Nothing is noted."""
        return nullcontext()

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory."""
        made = torch.empty(nbytes, dtype=torch.uint8)
        self._host_memory[made.untyped_storage().data_ptr()] = made
        return made

    def is_pinned(self, host: torch.Tensor) -> bool:
        """None is."""
        return False

    def register(self, address: int, nbytes: int) -> bool:
        """The host does not allow it."""
        return False

    def unregister(self, address: int) -> None:
        """Never asked."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """At once."""
        target.copy_(source)

    def release(self, buffer: Buffer) -> None:
        """Check that nobody else can still be using the block."""
        base = buffer.base
        if base is not None:
            key = base.untyped_storage().data_ptr()
            block = self._blocks.pop(key, None)
            if block is not None:
                self._check_drop(buffer, block)
        self.log.append("release")
        buffer.release()

    def generator(self) -> torch.Generator:
        """A generator of the CPU kind."""
        return torch.Generator()

    def mender(self) -> None:
        """Ops of torch do it."""

    def watch_peak(self) -> Callable[[int], int]:
        """The host's allocator keeps no statistics: nothing beyond what is counted."""
        return lambda kept: 0

    # -- the rules ---------------------------------------------------------------------------

    def touch(self, storage: torch.UntypedStorage, *, fresh: bool) -> None:
        """An op on the current stream uses a storage, or has just made it."""
        stream, key = self.current, storage.data_ptr()
        if stream is None or key == 0 or key in self._host_memory:
            return
        clock = stream.tick()
        block = self._blocks.get(key)
        if block is None or fresh:
            block = self._blocks[key] = _Block(stream, {})
        for number, touched in block.touched.items():
            if number != stream.number and stream.clocks.get(number, 0) < touched:
                raise StreamRuleBroken(
                    f"Stream {stream.number} uses a block that stream {number} may still use."
                )
        block.touched[stream.number] = clock

    def _check_drop(self, buffer: Buffer, block: _Block) -> None:
        home = block.home
        for number, touched in block.touched.items():
            seen = max(home.clocks.get(number, 0), self._host.get(number, 0))
            if number != home.number and seen < touched:
                raise StreamRuleBroken(
                    f"Buffer {buffer.id} goes back to stream {home.number} while stream {number} "
                    "may still use it."
                )


class _Watch(TorchDispatchMode):
    """Tells of every storage that an op touches."""

    def __init__(self, calls: RecordingCalls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        for tensor in _tensors((args, kwargs)):
            self._calls.touch(tensor.untyped_storage(), fresh=False)
        with lazy_bits():
            result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                # `set_` lays a tensor over a storage that was there; all else is new.
                self._calls.touch(storage, fresh="set_" not in str(func))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves, _ = tree_flatten(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
