"""What keeps tensors for a backward, by the names of what has to go for them to be freed.

Which tensors a node of a graph keeps cannot be read without unpacking them; that nodes of its kind
keep any can.
"""

from typing import Any, Final

import torch

from jgpu.device.magics.reading import following_of, has_member
from jgpu.device.magics.walk import FoundStorage

__all__ = ["Graphs"]

#: as many are named, and one more, so that it is known whether there are others
_MOST_NAMES: Final = 4
#: of all graphs together; what is behind them is taken to keep something
_MOST_NODES: Final = 100_000
#: begins the name of what a node of torch's, or of people's own functions, keeps
_SAVED: Final = "_raw_saved_"


class Graphs:
    """The first tensors of a walk whose graph keeps something."""

    def __init__(self) -> None:
        self.names: list[str] = []
        #: by id; kept, so that an id is nobody else's meanwhile
        self._tensors: dict[int, Any] = {}
        self._barren: dict[int, Any] = {}

    def see(self, found: FoundStorage) -> None:
        """A tensor that a walk has come to."""
        tensor = found.tensor
        if tensor is None or len(self.names) >= _MOST_NAMES or id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = tensor
        with torch._C.DisableTorchFunctionSubclass():
            node = tensor.grad_fn
        if node is not None and self._keeps(node):
            self.names.append(found.name)

    def _keeps(self, node: Any) -> bool:
        """Whether a node, or one behind it, keeps a tensor."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if id(node) in self._barren:
                continue
            kind = type(node)
            if len(self._barren) >= _MOST_NODES or has_member(kind, _SAVED):
                return True
            self._barren[id(node)] = node
            following = following_of(kind)
            if following is not None:
                waiting += [each for each, _ in following.__get__(node) if each is not None]
        return False
