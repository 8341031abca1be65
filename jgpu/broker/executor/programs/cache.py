"""The definitions that an executor keeps, by content hash, for all sessions; bounded.

The key is computed here, from the bytes, never believed.
"""

from collections.abc import Iterator

from jgpu.broker.executor.programs.definition import Definition, define
from jgpu.broker.executor.programs.kinds import DeviceKind
from jgpu.broker.executor.programs.shared import SharedEntries
from jgpu.wire.program import program_hash

__all__ = ["DefinitionCache"]


class DefinitionCache:
    """At most `most` definitions, or `most_bytes` of form; see `shared` for who makes room."""

    def __init__(self, device: DeviceKind, most: int = 4096, most_bytes: int = 64 << 20) -> None:
        self.device: DeviceKind = device
        self._entries: SharedEntries[Definition] = SharedEntries(most, most_bytes)
        #: the definition with this hash, if it is (still) known; who asks for it
        self.get = self._entries.get

    @property
    def nbytes(self) -> int:
        """Bytes of the forms kept."""
        return self._entries.nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._entries)

    def define(self, data: bytes, identity: str = "") -> Definition:
        """The definition of these bytes, checked now or earlier; raises `ProgramError`."""
        found = self.get(program_hash(data), identity)
        return found or self.add(define(data, self.device), len(data), identity)

    def add(self, definition: Definition, nbytes: int, identity: str = "") -> Definition:
        """Keep a definition that was checked elsewhere (in a helper thread)."""
        known = self._entries.get(definition.hash, identity)
        if known is not None:
            return known
        self._entries.add(definition.hash, identity, definition, nbytes)
        return definition
