"""An executor with something taken out, or watched: for what must be tried and never happens.

    python executor.py plain|strict|unguarded SETTINGS DESCRIPTOR PAGE

"unguarded": guards of indices let every value through. "strict": torch raises where a launch makes
the host wait for the GPU, but for ops that are known to.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from jgpu.broker.executor.process import main


def unguard() -> None:
    """Have kernels get what they were sent."""
    from jgpu.broker.executor.programs.running import compile as compiling
    from jgpu.broker.executor.programs.running import interpret

    def let_through(name: str, values: Any, guard: Any, notes: Any, op: int) -> Any:
        return values

    modules: tuple[Any, ...] = (compiling, interpret)
    for module in modules:
        module.clamped = let_through


def watch_waits() -> None:
    """Raise where the pump would wait, but in ops that wait until their stream is empty."""
    from jgpu.broker.executor.devices.calls import CudaCalls
    from jgpu.broker.executor.devices.gpu.port import StreamPort

    pauses = StreamPort.pauses

    def seen(self: Any, done: int, *, waits: bool) -> bool:
        torch.cuda.set_sync_debug_mode("default" if waits else "error")
        return pauses(self, done, waits=waits)

    @contextlib.contextmanager
    def launching(self: Any) -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    StreamPort.pauses = seen  # type: ignore[method-assign]
    CudaCalls.launching = launching  # type: ignore[method-assign]


CHANGES = {"plain": lambda: None, "strict": watch_waits, "unguarded": unguard}

if __name__ == "__main__":
    CHANGES[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
