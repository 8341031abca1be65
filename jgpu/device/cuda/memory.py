"""Memory figures: what this session uses, as the executor counts it, and what its user may have.

Each figure waits for the work that was asked for before, so that it says what a reader of the
notebook expects. Bytes are those that were asked for; there is no cache of this session's own, so
"reserved" is "allocated".
"""

import collections
import contextlib
import warnings
from typing import Any

from jgpu.device import current
from jgpu.device.cuda.devices import check_index
from jgpu.device.cuda.refusals import refused_class
from jgpu.device.errors import refused
from jgpu.wire.sizes import short_size

__all__ = ["REPLACED"]

_fraction = 1.0
#: groups of counters that `torch.cuda.memory_summary` reads
_COUNTERS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
    "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_POOLS = ("all", "large_pool", "small_pool")
_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_SINGLE = (
    "num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams",
    "num_device_alloc", "num_device_free", "oversize_allocations.current",
    "oversize_allocations.peak", "oversize_allocations.allocated", "oversize_allocations.freed",
    "oversize_segments.current", "oversize_segments.peak", "oversize_segments.allocated",
    "oversize_segments.freed",
)  # fmt: skip


def _used(device: Any) -> int:
    check_index(device)
    return current.session.memory().used if current.session.used else 0


def _peak(device: Any) -> int:
    check_index(device)
    return current.session.memory().peak if current.session.used else 0


def memory_allocated(device: Any = None) -> int:
    """Bytes of this session's tensors."""
    return _used(device)


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes so far, with what ops needed in between."""
    return _peak(device)


def memory_reserved(device: Any = None) -> int:
    """Bytes of this session's tensors: nothing is kept beside them."""
    return _used(device)


def max_memory_reserved(device: Any = None) -> int:
    """As `max_memory_allocated`."""
    return _peak(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Count the peak anew from here."""
    check_index(device)
    if current.session.used:
        current.session.memory(reset_peak=True)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Totals since the start are not counted."""
    check_index(device)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes free and in all for this user, who may have a limit."""
    check_index(device)
    memory = current.session.memory()
    return memory.free, memory.total


def empty_cache() -> None:
    """Tell the broker what was forgotten; there is no cache of this session's own."""
    if current.session.used:
        current.session.cut()
        current.session.release()


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Torch's names for the figures; what is not counted is 0."""
    check_index(device)
    stats = {
        f"{counter}.{pool}.{what}": 0
        for counter in _COUNTERS
        for pool in _POOLS
        for what in ("current", "peak", "allocated", "freed")
    }
    stats.update(dict.fromkeys(_SINGLE, 0))
    if current.session.used:
        memory = current.session.memory()
        for name in _BYTES:
            stats[f"{name}.all.current"] = stats[f"{name}.large_pool.current"] = memory.used
            stats[f"{name}.all.peak"] = stats[f"{name}.large_pool.peak"] = memory.peak
    return collections.OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats` with a dict for each dot."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def memory_snapshot(mempool_id: Any = None, *args: Any, **kwargs: Any) -> list[Any]:
    """The device's allocator belongs to all users; nothing of it is shown."""
    return []


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Remembered, and not enforced: what a user may have is the administrator's affair."""
    global _fraction
    check_index(device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _fraction = fraction
    warnings.warn(
        "The shared device does not enforce set_per_process_memory_fraction; "
        "the limit of each user is set with `jgpu quota`.",
        stacklevel=2,
    )


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What was set last."""
    check_index(device)
    return _fraction


def get_allocator_backend() -> str:
    """The name of torch's usual allocator."""
    return "native"


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """What this notebook has on the device and may have, in lines for people."""
    free, total = mem_get_info(device)
    rows = (
        ("allocated now", _used(device)),
        ("the most so far", _peak(device)),
        ("free for this user", free),
        ("in all for this user", total),
    )
    lines = [f"{name:22} {short_size(count):>10}" for name, count in rows]
    return "\n".join(["Memory of this notebook on the shared device", *lines])


def _host_stats(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return collections.OrderedDict()


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Accepted without effect."""


def _refusing(what: str, instead: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refused(what, instead)

    return refuse


REPLACED: dict[str, dict[str, Any]] = {
    "memory": {
        function.__name__: function
        for function in (
            memory_allocated, max_memory_allocated, memory_reserved, max_memory_reserved,
            reset_peak_memory_stats, reset_accumulated_memory_stats, mem_get_info, empty_cache,
            memory_stats, memory_stats_as_nested_dict, memory_snapshot, memory_summary,
            set_per_process_memory_fraction, get_per_process_memory_fraction,
            get_allocator_backend,
        )
    }
    | {
        "memory_cached": memory_reserved,
        "max_memory_cached": max_memory_reserved,
        "reset_max_memory_allocated": reset_peak_memory_stats,
        "reset_max_memory_cached": reset_peak_memory_stats,
        "host_memory_stats": _host_stats,
        "host_memory_stats_as_nested_dict": _host_stats,
        "reset_accumulated_host_memory_stats": _nothing,
        "reset_peak_host_memory_stats": _nothing,
        "_record_memory_history": _nothing,
        "_set_allocator_settings": _nothing,
        "caching_allocator_enable": _nothing,
        "caching_allocator_disabled": contextlib.nullcontext,
        "_snapshot": _refusing("memory snapshots", "use torch.cuda.memory_summary()"),
        "_dump_snapshot": _refusing("memory snapshots", "use torch.cuda.memory_summary()"),
        "caching_allocator_alloc": _refusing("raw device memory", "use torch.empty()"),
        "caching_allocator_delete": _refusing("raw device memory", "use torch.empty()"),
        "change_current_allocator": _refusing("allocators of one's own", "leave the call out"),
        "CUDAPluggableAllocator": refused_class(
            "CUDAPluggableAllocator", "allocators of one's own", "leave the call out"
        ),
        "MemPool": refused_class("MemPool", "memory pools", "leave the pool out"),
        "use_mem_pool": _refusing("memory pools", "leave the pool out"),
    }
}  # fmt: skip
