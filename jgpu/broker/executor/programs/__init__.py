"""The program side of an executor: checking, compiling and running what clients record.

`define` turns a program's bytes into a `Definition`, `Definition.run` runs it over a session's
`Buffer`s, `Prober` asks kernels for the geometry of what they return, `Chooser`
asks torch what it would choose on this device, `DefinitionCache` keeps
definitions for all sessions. Nothing here knows of sessions, lanes, sockets or scheduling.
"""

from jgpu.broker.executor.programs.asking.choices import Chooser, choice_of
from jgpu.broker.executor.programs.asking.probe import HANDS, Prober, question_of, scratch_bytes
from jgpu.broker.executor.programs.buffers import Buffer, Failure
from jgpu.broker.executor.programs.cache import DefinitionCache
from jgpu.broker.executor.programs.definition import Definition, Masks, define
from jgpu.broker.executor.programs.flags import gate
from jgpu.broker.executor.programs.kinds import KINDS, DeviceKind
from jgpu.broker.executor.programs.outcome import (
    NeverFits,
    Outcome,
    RunContext,
    Stopped,
    Suspended,
)
from jgpu.broker.executor.programs.plan import bits
from jgpu.broker.executor.programs.running.run import Running, has_written_resident

__all__ = [
    "HANDS",
    "KINDS",
    "Buffer",
    "Chooser",
    "Definition",
    "DefinitionCache",
    "DeviceKind",
    "Failure",
    "Masks",
    "NeverFits",
    "Outcome",
    "Prober",
    "RunContext",
    "Running",
    "Stopped",
    "Suspended",
    "bits",
    "choice_of",
    "define",
    "gate",
    "has_written_resident",
    "question_of",
    "scratch_bytes",
]
