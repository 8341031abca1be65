"""Rules about sessions that have rested for long: what they give up though nobody waits for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jgpu.sched import MemoryPart

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["NEVER", "Rests"]


@dataclass(frozen=True, slots=True)
class Rests:
    """After how many seconds without work; 0 for never."""

    #: what is not the model's goes to the host
    spill_after_s: float = 0.0
    #: the model goes, too
    evict_after_s: float = 0.0

    def asks(self, session: "ExecutorSession") -> bool:
        """Whether something will have to be asked of a resting session."""
        last = (
            MemoryPart.ALL
            if self.evict_after_s
            else MemoryPart.KEPT
            if self.spill_after_s
            else None
        )
        return last is not None and session.rest_asked is not last

    def due(self, session: "ExecutorSession", now: float) -> MemoryPart | None:
        """Return what a session that rests is to give up now."""
        rested_s = now - session.rests_since
        if self.evict_after_s and rested_s >= self.evict_after_s:
            return MemoryPart.ALL
        if self.spill_after_s and rested_s >= self.spill_after_s and session.rest_asked is None:
            return MemoryPart.KEPT
        return None


NEVER: Final = Rests()
