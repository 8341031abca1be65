"""What one session has with the helper threads, and what of its programs is being cleared up.

Covers counts and marks; who is asked for a definition, and what comes of it, is the message
handler's.
"""

from dataclasses import dataclass, field

__all__ = ["PendingPrograms"]


@dataclass(slots=True)
class PendingPrograms:
    """One session's."""

    #: probes and definitions that helper threads have
    helping: int = 0
    #: bytes of what they, and those that wait for them, hold, roughly
    nbytes: int = 0
    #: numbers of works whose definition was asked for again; their Run comes again, too
    asked: set[int] = field(default_factory=set)
    #: hashes of programs whose learnt geometry the client was told, or needs not be told
    told: set[bytes] = field(default_factory=set)

    def begin(self, nbytes: int) -> None:
        """A helper thread is to look at something that takes so many bytes."""
        self.helping += 1
        self.nbytes += nbytes

    def end(self, nbytes: int) -> None:
        """It is through with something that was begun with so many bytes."""
        self.helping -= 1
        self.nbytes -= nbytes

    def validate(self) -> None:
        """Check what must always hold."""
        assert min(self.helping, self.nbytes) >= 0
