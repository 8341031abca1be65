"""Buffers: one storage on the device, owned by one session, and the views programs take of it.

A buffer knows its storage, how many bytes it has, and whether what it should hold could not be
computed. It does not know sessions, lanes or accounting; those are the pump's.

Invariant: nothing but the buffer (and a run in progress) refers to its storage, so that `release`
really gives the memory back. Cached views are therefore few, private and dropped with the storage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from jgpu.broker.executor.programs.geometry import ViewSpec

if TYPE_CHECKING:
    from jgpu.broker.executor.programs.checking.proofs import Proof

__all__ = ["Buffer", "Failure", "release_all", "views_of", "views_over"]

#: Most cached views of one buffer; a parameter is seen straight, transposed, and not much else.
_MAX_VIEWS: Final = 8
#: of buffers without cached views, all of them; never changed
_NONE: Final = dict[ViewSpec, torch.Tensor]()


@dataclass(frozen=True, slots=True)
class Failure:
    """An op that failed on the device: where, and the exception's type name and text."""

    work: int
    #: index of the op in its program
    op: int
    #: the op's name, such as "aten::index_select.default"
    name: str
    #: the exception's type name, such as "IndexError"
    error: str
    text: str


class OnHost(Protocol):
    """Where the bytes of a spilled buffer are."""

    def drop(self) -> None:
        """They are not needed any more."""


class Buffer:
    """A slot's storage. Exactly one of `base` and (`poison` or "spilled") holds.

    `base` is any tensor over the whole storage (its own geometry means nothing); None where the
    buffer is spilled, released or poisoned.
    """

    __slots__ = (
        *("_seen", "_views", "aside", "base", "id", "nbytes", "place", "poison", "proof"),
        *("resident", "saved", "stale"),
    )

    def __init__(
        self,
        id: int,  # noqa: A002 - the session's number for it, as in the messages
        base: torch.Tensor | None,
        nbytes: int | None = None,
        *,
        poison: Failure | None = None,
        resident: bool = False,
        seen: ViewSpec | None = None,
    ) -> None:
        """`nbytes` where they are known; `seen`: what `base` itself shows, where that is known."""
        self.id = id
        self.base = base
        #: bytes of the storage; kept while the buffer is spilled
        self.nbytes = (
            base.untyped_storage().nbytes()
            if nbytes is None and base is not None
            else (nbytes or 0)
        )
        #: where a released storage was; a kernel may return one that is not on its own device
        self.place: torch.device | None = None
        #: why the content could not be computed
        self.poison = poison
        #: part of the model (`Tag`), not of the work in progress
        self.resident = resident
        #: made in a cell that failed: nobody is expected to use it again
        self.stale = False
        #: its bytes on the host, while it is spilled
        self.saved: OnHost | None = None
        #: what is known of its bytes; None once something may have written it
        self.proof: Proof | None = None
        #: spilled, and comes back only when it is named
        self.aside = False
        #: what `base` itself shows, where that is known; there is a `base` then
        self._seen = seen if base is not None else None
        #: other views; a session may have a million buffers, most of which have none
        self._views = _NONE

    @classmethod
    def allocate(cls, id: int, nbytes: int, device: torch.device) -> "Buffer":  # noqa: A002
        """A zero-filled buffer; raises `torch.OutOfMemoryError` or RuntimeError as torch does."""
        return cls(id, torch.zeros(nbytes, dtype=torch.uint8, device=device))

    def view(self, spec: ViewSpec) -> torch.Tensor:
        """The storage seen through `spec`, which the caller has checked against `nbytes`."""
        if spec is self._seen:
            return self._present()
        found = self._views.get(spec)
        if found is None:
            base = self.base
            found = spec.over(self._present() if base is None else base)
            self._keep(spec, found)
        return found

    def _keep(self, spec: ViewSpec, view: torch.Tensor) -> None:
        if not self._views:
            self._views = {}
        elif len(self._views) >= _MAX_VIEWS:
            del self._views[next(iter(self._views))]
        self._views[spec] = view

    def private_view(self, spec: ViewSpec, offset: int) -> torch.Tensor:
        """The same, uncached, at an offset (in elements) that is given at run time.

        Many rows may be taken of one upload, which arrives as bytes: from here on `base` has their
        type, so that each of them is laid over it by one call.
        """
        base = self._present()
        if base.dtype is not spec.dtype and not spec.bits:
            if self._seen is not None:
                self._keep(self._seen, base)
                self._seen = None
            empty = torch.empty(0, dtype=spec.dtype, device=base.device)
            base = self.base = empty.set_(base.untyped_storage(), 0, (0,), (1,))
        return spec.over(base, offset)

    def bytes(self) -> torch.Tensor:
        """The whole storage as a 1-d uint8 tensor, for copies in and out."""
        storage = self._present().untyped_storage()
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    @property
    def address(self) -> int:
        """Where the storage begins; 0 where there is none."""
        return 0 if self.base is None else self.base.untyped_storage().data_ptr()

    def release(self) -> torch.Tensor | None:
        """Forget the storage and all views of it; returns the base for whoever copies it away."""
        base, self.base, self.proof = self.base, None, None
        if base is not None:
            self.place = base.device
        self._seen, self._views = None, _NONE
        return base

    def restore(self, base: torch.Tensor) -> None:
        """Have a storage again, with at least `nbytes` bytes, after `release`.

        It must be where the one before was: some kernels read a number from host memory.
        """
        assert self.place is None or self.place == base.device, "a storage lives where it was made"
        self.base = base

    def remeasure(self) -> int:
        """Read `nbytes` from the storage again, after an op that may have resized it."""
        if self.base is not None:
            self.nbytes = self.base.untyped_storage().nbytes()
        return self.nbytes

    def _present(self) -> torch.Tensor:
        if self.base is None:
            raise RuntimeError(f"Buffer {self.id} is not on the device.")
        return self.base


def release_all(buffers: Iterable[Buffer]) -> None:
    """`release` each, without a call for each: a step drops as many as it makes."""
    for buffer in buffers:
        buffer.base = buffer.proof = buffer._seen = None
        buffer._views = _NONE


def views_of(
    buffers: Sequence[Buffer], taken: Iterable[tuple[int, ViewSpec]]
) -> list[torch.Tensor]:
    """Views (slot, spec) of buffers, in order, those made before without a call."""
    views = []
    for slot, spec in taken:
        buffer = buffers[slot]
        known = buffer.base if spec is buffer._seen else buffer._views.get(spec)
        views.append(buffer.view(spec) if known is None else known)
    return views


def views_over(
    buffers: Sequence[Buffer],
    taken: Iterable[tuple[int, int, str]],
    views: Sequence[tuple[ViewSpec, int]],
    params: Sequence[Any],
) -> dict[str, torch.Tensor]:
    """Views (slot, view, name) of buffers by name, those made before without a call.

    `views` are specs, each with the place of its offset in `params`, or -1.
    """
    found = {}
    for slot, view, name in taken:
        spec, param = views[view]
        buffer = buffers[slot]
        if param >= 0:
            found[name] = buffer.private_view(spec, params[param])
            continue
        known = buffer.base if spec is buffer._seen else buffer._views.get(spec)
        found[name] = buffer.view(spec) if known is None else known
    return found
