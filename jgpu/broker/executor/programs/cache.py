"""The definitions that an executor keeps, by content hash, for all sessions; bounded.

The rule that must not be broken: the key is computed here, from the bytes, never believed.
"""

from collections import OrderedDict
from collections.abc import Iterator

from jgpu.broker.executor.programs.definition import Definition, DeviceKind, define
from jgpu.wire.program import program_hash

__all__ = ["DefinitionCache"]


class DefinitionCache:
    """Least recently used definitions go first, past `most` definitions or `most_bytes` of form."""

    def __init__(self, device: DeviceKind, most: int = 4096, most_bytes: int = 256 << 20) -> None:
        self.device: DeviceKind = device
        self.most = most
        self.most_bytes = most_bytes
        #: bytes of the forms kept
        self.nbytes = 0
        self._kept: OrderedDict[bytes, tuple[Definition, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Definition]:
        return (definition for definition, _ in self._kept.values())

    def define(self, data: bytes) -> Definition:
        """The definition of these bytes, checked now or earlier; raises `ProgramError`."""
        found = self.get(program_hash(data))
        return found if found is not None else self.add(define(data, self.device), len(data))

    def get(self, key: bytes) -> Definition | None:
        """The definition with this hash, if it is (still) known."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def add(self, definition: Definition, nbytes: int) -> Definition:
        """Keep a definition that was checked elsewhere (in a helper thread)."""
        known = self._kept.get(definition.hash)
        if known is not None:
            return known[0]
        self._kept[definition.hash] = (definition, nbytes)
        self.nbytes += nbytes
        while len(self._kept) > self.most or (self.nbytes > self.most_bytes and len(self) > 1):
            _, (_, dropped) = self._kept.popitem(last=False)
            self.nbytes -= dropped
        return definition
