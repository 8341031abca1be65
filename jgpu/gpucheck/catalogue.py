"""The list of cases: what each is about, how long it may take, what runs beside it."""

from dataclasses import dataclass
from typing import Final

__all__ = ["CASES", "GpuCase", "by_name"]


@dataclass(frozen=True, slots=True)
class GpuCase:
    """One case: `function` of `jgpu.gpucheck.cases.<module>`."""

    name: str
    module: str
    about: str
    #: seconds after which it counts as hanging
    limit_s: float
    #: it takes times: nothing runs beside it
    alone: bool = False
    #: one of the first three minutes'
    soon: bool = False

    @property
    def function(self) -> str:
        """Its function's name."""
        return self.name.replace("-", "_")


#: The order is that of running. The first decides whether there is anything to go on with.
CASES: Final = (
    GpuCase(
        "discovery", "first", "driver, torch and executor see one GPU, and use it", 90, soon=True
    ),
    GpuCase("calls", "first", "streams, events, copies, limits and pinned memory", 60, soon=True),
    GpuCase(
        "attention", "identity", "attention and dropout, the same bits as native", 90, soon=True
    ),
    GpuCase("dense", "identity", "layers and optimizers, likewise", 90, soon=True),
    GpuCase("images", "identity", "convolutions and batch norm, likewise", 90, soon=True),
    GpuCase("recurrent", "identity", "LSTM, GRU and RNN, likewise", 90, soon=True),
    GpuCase("random", "identity", "random numbers of the same seed, likewise", 90, soon=True),
    GpuCase("indices", "values", "bad labels, tokens and indices are IndexErrors", 90, soon=True),
    GpuCase("asserted", "values", "what kernels assert is an error, and no more", 90, soon=True),
    GpuCase(
        "full", "memory", "memory that is full: errors on their lines, and recovery", 120, soon=True
    ),
    GpuCase("broken", "faults", "a broken device: who did it, who is told, a new executor", 120),
    GpuCase("mixed", "identity", "halves, autocast and scaled gradients, the same bits", 120),
    GpuCase("first-difference", "identity", "the first op of such a step that has other bits", 120),
    GpuCase("flags", "identity", "switches of torch, read back and computed with", 90),
    GpuCase("neighbours", "identity", "the same bits beside others, moved away and back", 120),
    GpuCase("moves", "memory", "lanes share, move, free and spill: every sum is right", 120),
    GpuCase("stale", "values", "nobody sees bytes that others freed", 90),
    GpuCase("strict", "faults", "launches never make the host wait", 90),
    GpuCase("memcheck", "faults", "compute-sanitizer finds nothing", 120),
    GpuCase("strides", "databases", "what is learnt of PyTorch's own database of ops", 120),
    GpuCase("graphs", "graphs", "CUDA graphs: feasibility alone", 60),
    GpuCase("second-gpu", "first", "an executor of the second GPU sees that one alone", 90),
    GpuCase("overhead", "sharing", "steps of 1 and 10 ms against native", 90, alone=True),
    GpuCase("waits", "sharing", "a value asked for, alone and beside what waits", 60, alone=True),
    GpuCase("fairness", "sharing", "two users share; switches are short", 60, alone=True),
    GpuCase("throughput", "throughput", "8 programs, shared and each for itself", 240, alone=True),
    GpuCase("pump", "sharing", "launches a second", 90, alone=True),
    GpuCase("events", "sharing", "events tell native times", 60, alone=True),
    GpuCase("transfers", "memory", "copies of all sizes, and their speed", 60, alone=True),
)


def by_name(name: str) -> GpuCase:
    """The case of this name; `KeyError` if there is none."""
    return {case.name: case for case in CASES}[name]
