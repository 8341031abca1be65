"""What all identities share and each of them can fill: kept by bytes, and evicted fairly.

An entry belongs to the identity that brought it; once another one asks for it, it is everybody's.
Where there is too much, the identity that holds most gives up what it used least recently if it
holds more than an eighth of what there may be; else whoever holds most, everybody among them. So
whoever fills it makes room by what they brought themselves. Not safe for threads.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

__all__ = ["EVERYBODY", "SharedEntries"]

T = TypeVar("T")

#: owner of what several identities have asked for
EVERYBODY: Final = ""
#: one identity alone may hold this part of everything undisturbed
_PART: Final = 8


class SharedEntries(Generic[T]):
    """At most `most` entries of at most `most_bytes` together, by a key that is itself small."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most = most
        self.most_bytes = most_bytes
        #: bytes of all entries; those that `add` was told
        self.nbytes = 0
        self._owners: dict[bytes, str] = {}
        #: by owner, what it holds, least recently used first; no empty entries
        self._kept: dict[str, OrderedDict[bytes, tuple[T, int]]] = {}
        #: by owner, the bytes of it
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[T]:
        return (value for kept in self._kept.values() for value, _ in kept.values())

    def held(self, owner: str) -> int:
        """Bytes of what an identity holds."""
        return self._held.get(owner, 0)

    def get(self, key: bytes, asker: str = EVERYBODY) -> T | None:
        """An entry, if it is (still) there."""
        owner = self._owners.get(key)
        if owner is None:
            return None
        kept = self._kept[owner]
        if owner in (asker, EVERYBODY):
            kept.move_to_end(key)
            return kept[key][0]
        value, nbytes = self._take(key)
        self._put(key, EVERYBODY, value, nbytes)
        return value

    def add(self, key: bytes, owner: str, value: T, nbytes: int) -> None:
        """Keep an entry that is not there, and let go what is too much; it may be the entry."""
        assert key not in self._owners
        self._put(key, owner, value, nbytes)
        while len(self) > self.most or (self.nbytes > self.most_bytes and len(self) > 1):
            self._take(next(iter(self._kept[self._greediest()])))

    def _greediest(self) -> str:
        """Who is to give something up, by the limit that is passed."""
        if len(self) > self.most:
            limit, amounts = self.most, {owner: len(kept) for owner, kept in self._kept.items()}
        else:
            limit, amounts = self.most_bytes, self._held
        alone = max((o for o in amounts if o != EVERYBODY), key=amounts.__getitem__, default="")
        if alone and _PART * amounts[alone] > limit:
            return alone
        return max(amounts, key=amounts.__getitem__)

    def _put(self, key: bytes, owner: str, value: T, nbytes: int) -> None:
        self._owners[key] = owner
        self._kept.setdefault(owner, OrderedDict())[key] = value, nbytes
        self._held[owner] = self._held.get(owner, 0) + nbytes
        self.nbytes += nbytes

    def _take(self, key: bytes) -> tuple[T, int]:
        owner = self._owners.pop(key)
        value, nbytes = self._kept[owner].pop(key)
        self.nbytes -= nbytes
        self._held[owner] -= nbytes
        if not self._kept[owner]:
            del self._kept[owner], self._held[owner]
        return value, nbytes

    def validate(self) -> None:
        """Check the sums and the limits."""
        assert self._owners == {key: owner for owner, kept in self._kept.items() for key in kept}
        for owner, kept in self._kept.items():
            assert kept
            assert self._held[owner] == sum(nbytes for _, nbytes in kept.values())
        assert self._held.keys() == self._kept.keys()
        assert self.nbytes == sum(self._held.values())
        assert len(self) <= self.most
        assert self.nbytes <= self.most_bytes or len(self) == 1
