"""Who may use how many bytes: the device's capacity and the users' limits.

What does not fit now, because others use the device, waits; that is the scheduler's affair. What
could not fit if everybody else were gone, or lies past the user's own limit, fails here.

Invariant: another user's memory is never an error.
"""

from typing import TYPE_CHECKING

from jgpu.wire.sizes import torch_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["Account"]


class Account:
    """A user on this device."""

    def __init__(self, user: str, capacity: int) -> None:
        self.user = user
        self.capacity = capacity
        #: bytes that the user may have, 0 for the whole capacity
        self.limit = 0
        #: those of them that may be models, 0 for all
        self.resident_limit = 0
        #: why new work of the user is refused; empty where it is not
        self.refusal = ""
        #: the name of the error that this is
        self.refused_as = ""
        self.sessions: list[ExecutorSession] = []
        #: bytes of the device that no session holds
        self.free_bytes: Callable[[], int] = lambda: 0
        #: device time of sessions that had ended when it was measured; the next session pays
        self.owed_s = 0.0

    @property
    def held(self) -> bool:
        """Whether the user's programs have ended executors again and again."""
        return bool(self.refusal) and self.refused_as == "HeldOff"

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what the user's sessions have sent and what is not done yet."""
        return sum(session.waiting_bytes for session in self.sessions)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the user's notebooks have not read yet."""
        return sum(session.connection.unsent_bytes for session in self.sessions)

    @property
    def used(self) -> int:
        """Bytes of all buffers of the user's sessions."""
        return sum(session.table.used for session in self.sessions)

    @property
    def resident(self) -> int:
        """Bytes of these that are models."""
        return sum(session.table.resident for session in self.sessions)

    @property
    def total(self) -> int:
        """Bytes that the user can have at most."""
        return min(self.limit, self.capacity) if self.limit else self.capacity

    def fits(self, session: "ExecutorSession", nbytes: int) -> bool:
        """Whether a session of the user can ever have so many bytes more.

        What exists may be read and written in place under any limit, for that takes no more.
        """
        if nbytes <= 0:
            return True
        table = session.table
        if table.resident + table.kept + nbytes > self.capacity:
            return False
        if self.resident_limit and self._has_too_large_models:
            return False
        return not self.limit or self.used + nbytes <= self.limit

    @property
    def _has_too_large_models(self) -> bool:
        # What is a model is known only when it is there already.
        return bool(self.resident_limit) and self.resident > self.resident_limit

    def sentence(self, session: "ExecutorSession", nbytes: int, added: int = 0) -> str:
        """Why not, in torch's manner; `added` bytes are the running program's so far."""
        if self._has_too_large_models:
            return (
                f"CUDA out of memory. The models and optimizers of {self.user} hold "
                f"{torch_size(self.resident)} on the shared device, where they may hold "
                f"{torch_size(self.resident_limit)}. Delete what is not needed."
            )
        return (
            f"CUDA out of memory. Tried to allocate {torch_size(nbytes)}. The shared device has a "
            f"total capacity of {torch_size(self.total)} for {self.user}, of which this notebook "
            f"uses {torch_size(session.table.used + added)} and all of {self.user}'s "
            f"{torch_size(self.used + added)}."
        )
