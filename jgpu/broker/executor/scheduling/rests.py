"""Rules about sessions that have rested for long: what they give up though nobody waits for it."""

from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from jgpu.sched import MemoryPart

__all__ = ["NEVER", "Rest", "Rests"]


@dataclass(slots=True)
class Rest:
    """How long one session has had nothing to do; it means nothing while it has."""

    #: when it was last seen to have no work
    since: float = field(default_factory=monotonic)
    #: what a rule asked of it since
    asked: MemoryPart | None = None
    #: whether the scheduler was told that the session is idle
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class Rests:
    """After how many seconds without work; 0 for never."""

    #: what is not the model's goes to the host
    spill_after_s: float = 0.0
    #: the model goes, too
    evict_after_s: float = 0.0

    def asks(self, rest: Rest) -> bool:
        """Whether something will have to be asked of a resting session."""
        last = (
            MemoryPart.ALL
            if self.evict_after_s
            else MemoryPart.KEPT
            if self.spill_after_s
            else None
        )
        return last is not None and rest.asked is not last

    def due(self, rest: Rest, now: float) -> MemoryPart | None:
        """Return what a session that rests is to give up now."""
        rested_s = now - rest.since
        if self.evict_after_s and rested_s >= self.evict_after_s:
            return MemoryPart.ALL
        if self.spill_after_s and rested_s >= self.spill_after_s and rest.asked is None:
            return MemoryPart.KEPT
        return None


NEVER: Final = Rests()
