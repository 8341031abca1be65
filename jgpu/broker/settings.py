"""Frozen settings that the control process hands to an executor process; torch-free.

The administrator's side of these (traitlets, units, help texts) is `jgpu.broker.control`'s.
"""

from typing import Final

import msgspec

__all__ = ["DEVICE_FAULT", "GPU_LANES", "ExecutorSettings"]

#: most lanes of a GPU: torch has 32 streams, 16 are for lanes that are given up, 2 for copies
GPU_LANES: Final = 14
#: exit status of an executor whose device broke under one of the programs in flight
DEVICE_FAULT: Final = 4


class ExecutorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One executor: which device, how much of it, how it is shared."""

    #: "cuda", "cpu" or "null"; for tests also "cuda-on-host"
    device: str
    #: what decides, on a `cuda-on-host` device, what runs before what
    seed: int = 0
    #: what a `null` device says it is, "null", "cpu" or "cuda": tests see what clients then do
    poses_as: str = "null"
    #: index among the host's devices of that kind; an executor sees its own alone, as number 0
    index: int = 0
    #: bytes that sessions may use together; 0: what the device has, less a margin
    capacity: int = 0
    #: most lanes open at once
    lanes: int = 2
    #: cpu threads of a lane; 0: cores / lanes
    threads: int = 0
    #: name of the scheduling policy
    policy: str = "fair"
    #: bytes of host memory for what is spilled; more goes to a file in `spool`
    host_pool: int = 0
    #: seconds without work after which a session's ephemeral memory is spilled though nobody waits
    #: for it, and after which its model is, too; 0: never
    spill_after_s: float = 0.0
    evict_after_s: float = 0.0
    #: directory for files of spilled memory and crash notes; exists, mode 0700
    spool: str = ""
    #: file for the times of the works, written at the end; empty: none are taken
    trace: str = ""
    #: file for a recording of what the scheduler is told; "" for none
    record: str = ""
    log_level: str = "WARNING"
