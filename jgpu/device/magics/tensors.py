"""The storages that this notebook has on the device, and what keeps each of them there.

Found by asking Python's collector for all there are, so that none is left out, and by walking from
what a person can name: their variables, IPython's outputs, errors of failed cells, functions that
run. What only torch's C++ holds is kept for a backward.

Holds no tensor when it returns, and computes nothing. The sum of the sizes is what the session
counts, unless another thread computes meanwhile.
"""

import gc
import re
import sys
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from jgpu.device.client.session import ClientSession
from jgpu.device.hooks.ipython import shell
from jgpu.device.magics.graphs import Graphs
from jgpu.device.magics.walk import FoundStorage, Walk, is_closed, locals_of
from jgpu.device.tensor import BufferHandle, DeviceTensor

if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "ERROR",
    "GRAPH",
    "HIDDEN",
    "OUTPUT",
    "RUNNING",
    "VARIABLE",
    "HeldTensors",
    "held",
    "of_errors",
]

#: kinds of holders, the one that a storage is listed under first
VARIABLE: Final = "variable"
OUTPUT: Final = "output"
ERROR: Final = "error"
RUNNING: Final = "running"
GRAPH: Final = "graph"
HIDDEN: Final = "hidden"
#: storages without a name whose holders are looked for
_MOST_UNNAMED: Final = 64


@dataclass(slots=True)
class HeldTensors:
    """One storage: its bytes, its largest tensor, and who holds it."""

    nbytes: int
    is_model: bool
    dtype: str = ""
    shape: tuple[int, ...] = ()
    #: bytes that the largest tensor with a name shows
    shown: int = 0
    #: by kind of holder, the names, that of the largest tensor first and its views after it
    names: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of its first holder."""
        return next(iter(self.names))


class _Storage:
    """What is found out about a storage."""

    __slots__ = ("buffer", "held", "tensors")

    def __init__(self, buffer: BufferHandle, nbytes: int) -> None:
        self.buffer = buffer
        self.held = HeldTensors(nbytes, buffer.resident)
        #: with a name, by kind
        self.tensors: dict[str, list[FoundStorage]] = {}


def held(session: ClientSession) -> list[HeldTensors]:
    """All storages of this session, the largest first."""
    storages = _storages(session)
    namespace = _namespace()
    graphs = Graphs()
    for kind, roots in _roots(namespace):
        closed = () if kind == VARIABLE else _variables(namespace)
        for found in Walk(closed).from_roots(roots):
            graphs.see(found)
            storage = storages.get(id(found.buffer))
            if storage is not None:
                storage.tensors.setdefault(kind, []).append(found)
    nameless = sorted(
        (each for each in storages.values() if not each.tensors), key=lambda s: -s.held.nbytes
    )
    _name_the_rest(nameless, graphs.names)
    for storage in storages.values():
        _describe(storage)
    listed = [storage.held for storage in storages.values()]
    return sorted(listed, key=_place)


def _place(each: HeldTensors) -> tuple[int, bool, str]:
    """The largest come first, of two those with a name, and then by it."""
    name = next(iter(each.names.values()))[0]
    return -each.nbytes, HIDDEN in each.names, name


def of_errors() -> bool:
    """Whether errors of failed cells hold tensors of the device."""
    return next(Walk(_variables(_namespace())).from_roots(_errors()), None) is not None


def _storages(session: ClientSession) -> dict[int, _Storage]:
    """By the id of its buffer, each storage that lives in the session."""
    found = {}
    for buffer in [each for each in gc.get_objects() if issubclass(type(each), BufferHandle)]:
        if buffer.graveyard is session.buffers.graveyard:
            nbytes = session.buffers.held.of((buffer.id,)) if buffer.id else buffer.nbytes
            if nbytes:
                found[id(buffer)] = _Storage(buffer, nbytes)
    return found


# -- where names are -----------------------------------------------------------------------------


def _namespace() -> dict[str, Any]:
    """The notebook's variables, and IPython's own among them."""
    ipython = shell()
    found: dict[str, Any] = vars(sys.modules["__main__"]) if ipython is None else ipython.user_ns
    return found


def _variables(namespace: dict[str, Any]) -> tuple[object, ...]:
    """Ways to the notebook's variables, which are looked through by themselves."""
    return namespace, sys.modules.get("__main__")


def _roots(namespace: dict[str, Any]) -> Iterator[tuple[str, Iterable[tuple[str, Any]]]]:
    hidden = getattr(shell(), "user_ns_hidden", {})
    own = {
        name: value
        for name, value in namespace.copy().items()
        if not (_is_output(name) or name in ("In", "Out") or name in hidden)
        and not (name.startswith("__") and name.endswith("__"))
    }
    yield VARIABLE, own.items()
    yield OUTPUT, _outputs(namespace)
    yield ERROR, _errors()
    yield RUNNING, _running(namespace)


def _is_output(name: str) -> bool:
    """Whether IPython keeps an output, or what was typed, under this name."""
    return re.fullmatch(r"_+(i?\d+|i+)?", name) is not None


def _outputs(namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kept = namespace.get("Out")
    if isinstance(kept, dict):
        yield from ((f"Out[{number}]", value) for number, value in kept.copy().items())
    yield from ((name, value) for name, value in namespace.copy().items() if _is_output(name))
    result = getattr(shell(), "last_execution_result", None)
    yield "the last cell's result", getattr(result, "result", None)


def _errors() -> Iterator[tuple[str, Any]]:
    """What Python and IPython keep of the last error, for `%debug` and `%tb`."""
    ipython = shell()
    result = getattr(ipython, "last_execution_result", None)
    for where, name in (
        (sys, "last_exc"), (sys, "last_value"), (sys, "last_traceback"),
        (result, "error_in_exec"), (result, "error_before_exec"),
        (getattr(ipython, "InteractiveTB", None), "tb"),
    ):  # fmt: skip
        yield "a failed cell's error", getattr(where, name, None)


def _running(namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Variables of functions that run, in whatever thread."""
    for outermost in sys._current_frames().values():
        frame: FrameType | None = outermost
        while frame is not None:
            if frame.f_code.co_name != "<module>" and not is_closed(
                frame.f_globals.get("__name__")
            ):
                yield from (
                    (name, value) for name, value in locals_of(frame) if value is not namespace
                )
            frame = frame.f_back


# -- what has no name ----------------------------------------------------------------------------


def _name_the_rest(storages: list[_Storage], graphs: list[str]) -> None:
    """Say what holds storages that no walk has found: torch's graph, or something in Python."""
    looked_at = {id(each.buffer): each.held for each in storages[:_MOST_UNNAMED]}
    tensors = _tensors_over(looked_at)
    referrers = _referrers(tensors)
    over_none = looked_at.keys() - {id(tensor._b) for tensor in tensors}
    for storage in storages:
        key = id(storage.buffer)
        if key not in looked_at or key in over_none:
            name, kind = "no variable, but something in Python", HIDDEN
        elif key in referrers:
            name, kind = f"no variable, but something in Python (a {referrers[key]})", HIDDEN
        else:
            name, kind = f"PyTorch, for the backward of {_listed(graphs)}", GRAPH
        storage.held.names[kind] = [name]
    for tensor in tensors:
        _show(looked_at[id(tensor._b)], tensor)


def _tensors_over(buffers: Container[int]) -> list[DeviceTensor]:
    """All tensors that show one of these, by the ids of buffers."""
    return [
        each for each in gc.get_objects() if type(each) is DeviceTensor and id(each._b) in buffers
    ]


def _referrers(tensors: list[DeviceTensor]) -> dict[int, str]:
    """By the id of its buffer, the kind of object in Python that holds a tensor over it."""
    found: dict[int, str] = {}
    for referrer in gc.get_referrers(*tensors) if tensors else ():
        if referrer is not tensors:
            for each in gc.get_referents(referrer):
                if type(each) is DeviceTensor:
                    found.setdefault(id(each._b), type(referrer).__name__)
    return found


def _listed(graphs: list[str]) -> str:
    return ", ".join(graphs[:3]) + ", …" * (len(graphs) > 3) if graphs else "what has no name"


# -- what is said of one -------------------------------------------------------------------------


def _bytes(tensor: DeviceTensor) -> int:
    count = 1
    for length in tensor._g.shape:
        count *= length
    return int(count * tensor._g.dtype.itemsize)


def _show(made: HeldTensors, tensor: DeviceTensor) -> None:
    """Let the storage look like this tensor if it is the largest so far."""
    nbytes = _bytes(tensor)
    if nbytes > made.shown or not made.dtype:
        made.shown, made.shape = nbytes, tuple(tensor._g.shape)
        made.dtype = str(tensor._g.dtype).removeprefix("torch.")


def _describe(storage: _Storage) -> None:
    """Order the names: those of the largest tensor first, its views after it."""
    for found in chain.from_iterable(storage.tensors.values()):
        if found.tensor is not None:
            _show(storage.held, found.tensor)
    for kind, listed in storage.tensors.items():
        sizes: dict[str, int] = {}
        for found in listed:
            nbytes = found.buffer.nbytes if found.tensor is None else _bytes(found.tensor)
            sizes.setdefault(found.name, nbytes)
        ordered = sorted(sizes, key=lambda name: -sizes[name])
        storage.held.names[kind] = [
            name if sizes[name] >= storage.held.nbytes else f"{name} (a view)" for name in ordered
        ]
