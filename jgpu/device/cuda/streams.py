"""Streams and events: accepted, and all in the session's one order of work.

Work on the shared device runs in the order in which the notebook asked for it, so whatever two
streams could do, they do one after the other; results never differ from a correct use of streams.
An event is a request that the executor answers when everything before it is done, with the time at
which it was: nobody waits until the time is read.
"""

import threading
import time
from typing import Any, ClassVar

import torch

from jgpu.device import current
from jgpu.device.cuda.devices import check_index
from jgpu.device.errors import refused
from jgpu.device.hooks.alias import Alias
from jgpu.device.tensor import CUDA
from jgpu.wire import messages as m

__all__ = ["REPLACED", "Event", "Stream", "install"]

_HostStream: Any = torch.Stream
_HostEvent: Any = torch.Event
_CUDA_TYPE = 1
_thread = threading.local()


class Stream(_HostStream):
    """One of many names of the session's order of work."""

    _next: ClassVar[int] = 1
    priority: int

    def __new__(
        cls, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **kwargs: Any
    ) -> "Stream":
        check_index(device)
        if stream_id is None:
            stream_id = Stream._next
            Stream._next += 1
        made: Stream = super().__new__(
            cls, stream_id=stream_id, device_index=0, device_type=_CUDA_TYPE
        )
        made.priority = max(-1, min(int(priority), 0))
        return made

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority."""
        return 0, -1

    @property
    def device(self) -> torch.device:
        """cuda:0"""
        return CUDA

    @property
    def cuda_stream(self) -> int:
        """A number; no library may use it as a stream's address."""
        return int(self.stream_id)

    native_handle = cuda_stream
    _as_parameter_ = cuda_stream

    def query(self) -> bool:
        """Whether all work is done."""
        return current.session.settled or _tail().query()

    def synchronize(self) -> None:
        """Wait until all work is done."""
        current.session.synchronize()

    def record_event(self, event: Any = None) -> Any:
        """Record an event here; returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Nothing: what was recorded before is done before."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing: what was asked for before is done before."""

    def is_capturing(self) -> bool:
        """No graph is ever captured in a kernel."""
        return False

    def __enter__(self) -> "Stream":
        previous = getattr(_thread, "previous", None)
        if previous is None:
            previous = _thread.previous = []
        previous.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *args: object) -> None:
        set_stream(_thread.previous.pop())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x}>"


class Event:
    """A point in the session's order of work, and the time at which the device reached it."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        **kwargs: Any,
    ) -> None:
        if interprocess:
            raise refused("events shared between processes", "synchronize before sending")
        self.enable_timing = enable_timing
        self.device = CUDA
        self._recorded = False
        self._pending = 0
        self._at_ns = 0

    def record(self, stream: Any = None) -> None:
        """Mark this place in the order of work."""
        session = current.session
        if not session.used and not self.enable_timing:  # a time needs the device's clock
            self._asked()
            self._arrived(None)
            return
        session.ask(lambda work, request: m.Sync(work, request, False), self._asked, self._arrived)

    def _asked(self) -> None:
        self._recorded = True
        self._pending += 1

    def _arrived(self, reply: m.Synced | None) -> None:
        self._pending -= 1
        self._at_ns = (reply.at_ns if reply is not None else 0) or time.monotonic_ns()

    def wait(self, stream: Any = None) -> None:
        """Nothing: what was recorded before is done before."""

    def query(self) -> bool:
        """Whether the work before it is done (also if nothing was recorded)."""
        if self._pending:
            current.session.poll()
        return self._pending == 0

    def synchronize(self) -> None:
        """Wait until the work before it is done."""
        if self._pending:
            current.session.wait_until(lambda: self._pending == 0)

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds between two recorded events, on the device's clock; waits for both."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._recorded and end_event._recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        end_event.synchronize()
        self.synchronize()
        return (end_event._at_ns - self._at_ns) / 1e6

    @property
    def cuda_event(self) -> int:
        """A number; no library may use it as an event's address."""
        return id(self)

    event_id = cuda_event
    _as_parameter_ = cuda_event

    def ipc_handle(self) -> bytes:
        """Refused."""
        raise refused("events shared between processes", "synchronize before sending")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> "Event":
        """Refused."""
        raise refused("events shared between processes", "synchronize before sending")

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {id(self):#x}>"


class _Tail:
    """The end of the work asked for so far, for `Stream.query`."""

    event: ClassVar[Event] = Event()
    position: ClassVar[Any] = None


def _tail() -> Event:
    session = current.session
    if _Tail.position != session.outbox.position:
        _Tail.event = Event()
        _Tail.event.record()
        _Tail.position = session.outbox.position
    return _Tail.event


class StreamContext:
    """What `torch.cuda.stream` returns: the given stream is the current one inside."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *args: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*args)


def stream(stream: Any) -> StreamContext:
    """A context in which `stream` is the current one."""
    return StreamContext(stream)


def default_stream(device: Any = None) -> Stream:
    """The stream number 0."""
    check_index(device)
    return _default


def current_stream(device: Any = None) -> Stream:
    """The stream that was set last in this thread."""
    check_index(device)
    found: Stream = getattr(_thread, "current", None) or _default
    return found


def set_stream(stream: Any) -> None:
    """Make `stream` the current one of this thread."""
    if stream is None:
        return
    if not isinstance(stream, Stream):
        raise TypeError(f"set_stream() takes a torch.cuda.Stream, not {type(stream).__name__}")
    _thread.current = stream


class ExternalStream(Stream):
    """Streams of other libraries are unknown to the shared device."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "ExternalStream":
        raise refused("streams of other libraries", "use torch.cuda.Stream()")


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(_default if stream_id == 0 else Stream(stream_id=stream_id))


_default = Stream(stream_id=0)


def _generic(device: Any) -> bool:
    return device is None or torch.device(device).type == "cuda"


class _AnyStream(metaclass=Alias, of=(_HostStream,)):
    """`torch.Stream`: the device's, or another device's of torch's own kind."""

    @staticmethod
    def make(device: Any = None, **kwargs: Any) -> Any:
        """What calling the class returns."""
        if "device_type" in kwargs and kwargs["device_type"] != _CUDA_TYPE:
            return _HostStream(device, **kwargs)
        return Stream(device, **kwargs) if _generic(device) else _HostStream(device, **kwargs)


class _AnyEvent(metaclass=Alias, of=(_HostEvent, Event)):
    """`torch.Event`: the device's, or another device's of torch's own kind."""

    @staticmethod
    def make(device: Any = None, **kwargs: Any) -> Any:
        """What calling the class returns."""
        return Event(**kwargs) if _generic(device) else _HostEvent(device, **kwargs)


def install() -> None:
    """The kinds that belong to no device."""
    torch.Stream = _AnyStream  # type: ignore[assignment,misc]
    torch.Event = _AnyEvent  # type: ignore[assignment,misc]


REPLACED: dict[str, dict[str, Any]] = {
    "": {
        "StreamContext": StreamContext,
        "stream": stream,
        "default_stream": default_stream,
        "current_stream": current_stream,
        "set_stream": set_stream,
        "_set_stream_by_id": _set_stream_by_id,
    },
    "streams": {"Stream": Stream, "Event": Event, "ExternalStream": ExternalStream},
}
