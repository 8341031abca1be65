"""A run is taken out of the log, its outputs get their ids, the forgotten go: loops of each cut.

`take` says what names the program and what a run of it is given; `settle` which outputs somebody
needs, by the references that there are to them once the log has let go; `bury` what Python has
forgotten. All are the accelerator's where there is one; the plain forms here are what it is held
to. Does not cover what a program is (`recorder`), nor what is told of it.

Invariant: both forms return and leave behind the same, whatever the log.
"""

from array import array
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Final, Protocol

from jgpu.accelerator import loading
from jgpu.device.recording.infer import OpPlan
from jgpu.device.tensor import BufferHandle

__all__ = [
    "Entry",
    "Given",
    "Known",
    "bury",
    "bury_in_python",
    "settle",
    "settle_in_python",
    "take",
    "take_in_python",
]

#: plan, tensor arguments' buffers, their offsets, new buffers, numbers, notebook line
Entry = tuple[
    OpPlan, Sequence[BufferHandle], Sequence[int], tuple[BufferHandle, ...], Sequence[Any], int
]


class _Known(Protocol):
    """What knows programs by the bytes that name them."""

    def get(self, key: bytes, /) -> Any: ...


#: What names the program, in 64-bit integers; what is known by that name; the inputs' ids, the
#: outputs, the numbers and each op's line.
Taken = tuple[bytes, Any, tuple[int, ...], list[BufferHandle], tuple[Any, ...], list[int]]


#: Most tensors, results and numbers of one program, unless its first op has more.
MOST_REFERENCES: Final = 8192


def fitting_in_python(entries: list[Entry], count: int) -> int:
    """Return how many of the first `count` entries fit in one program."""
    references = 0
    for at, (_, buffers, _, outs, numbers, _) in enumerate(entries[:count]):
        references += len(buffers) + len(outs) + len(numbers)
        if references > MOST_REFERENCES and at:
            return at
    return count


def take_in_python(entries: list[Entry], count: int, switches: int, known: _Known) -> Taken:
    """The first `count` entries as a run, under switches of that number; fewer if so many fit.

    They are gone from the list where the program is known, and are to be taken out once it is made.
    Inputs count up from 0 in order of first use, what is made inside counts down from -1.
    """
    count = fitting_in_python(entries, count)
    inputs: list[BufferHandle] = []
    outputs: list[BufferHandle] = []
    slots: dict[BufferHandle, int] = {}
    sequence = [switches]
    params: list[Any] = []
    lines: list[int] = []
    say, slot_of = sequence.append, slots.get
    for plan, buffers, offsets, outs, numbers, line in entries[:count]:
        say(plan.ident)
        k = 0
        for buffer in buffers:
            slot = slot_of(buffer)
            if slot is None:
                slot = slots[buffer] = len(inputs)
                inputs.append(buffer)
            offset = offsets[k]
            say(slot)
            if slot < 0:
                say(offset)
            elif offset == 0 and plan.geometries[k].nbytes == buffer.nbytes:
                say(0)
            else:
                say(-1)
                params.append(offset)
            k += 1  # noqa: SIM113 - `enumerate` costs a tenth of what a cut does
        for buffer in outs:
            outputs.append(buffer)
            slots[buffer] = -len(outputs)
        if numbers:
            params += numbers
        lines.append(line)
    if params and complex in map(type, params):
        params = [(each.real, each.imag) if type(each) is complex else each for each in params]
    key = array("q", sequence).tobytes()
    found = known.get(key)
    if found is not None:
        del entries[:count]
    return key, found, tuple([buffer.id for buffer in inputs]), outputs, tuple(params), lines


def _references(buffers: list[BufferHandle]) -> list[int]:
    """How many references there are to each, those that counting takes among them."""
    return list(map(getrefcount, buffers))


#: what is counted where only the list holds it; versions of Python differ
_ALONE: Final = _references([BufferHandle(0, [])])[0]


def settle_in_python(
    outputs: list[BufferHandle], fresh: int, first: int, sizes: dict[int, int]
) -> tuple[bytes, int]:
    """Give those of the outputs that somebody else holds their ids, which count up from `first`.

    A bit for each of the `fresh` ones says which; their bytes are put into `sizes`, and summed up.
    The list lets go of all of them.
    """
    live, nbytes, number = bytearray((fresh + 7) >> 3), 0, first
    for references in _references(outputs):
        if references > _ALONE:
            at = number - first
            buffer = outputs[at]
            buffer.settle(number)
            sizes[number] = buffer.nbytes
            nbytes += buffer.nbytes
            live[at >> 3] |= 1 << (at & 7)
        number += 1
    outputs.clear()
    return bytes(live), nbytes


#: sizes by buffer, then whatever else is known of buffers by their ids
Known = tuple[dict[int, int], *tuple[dict[int, Any], ...]]
#: of a run: ids of its inputs, of its first output, how many outputs, and a bit for each that lives
Given = tuple[tuple[int, ...], int, int, bytes]
#: bits of the outputs that live still, of the inputs that nobody needs behind it; ids of other
#: buffers that nobody needs, and the bytes of all that were forgotten
Buried = tuple[bytes, bytes, tuple[int, ...], int]


def bury_in_python(graveyard: list[int], known: Known, run: Given) -> Buried:
    """What Python has forgotten until now, as a run tells of it; nothing more is known of it."""
    inputs, first, fresh, told = run
    buried = graveyard[:]
    del graveyard[: len(buried)]
    sizes, *others = known
    live, dead, nbytes = bytearray(told), 0, 0
    free: list[int] = []
    places = {number: at for at, number in enumerate(inputs)}
    for number in buried:
        for each in others:
            each.pop(number, None)
        nbytes += sizes.pop(number, 0)
        if first <= number < first + fresh:  # forgotten since it was settled
            live[number - first >> 3] &= ~(1 << (number - first & 7))
        elif (at := places.get(number)) is not None:
            dead |= 1 << at
        else:
            free.append(number)
    bits = dead.to_bytes((len(inputs) + 7) >> 3, "little") if dead else b""
    return bytes(live), bits, tuple(free), nbytes


_library: Final = loading.load()
take: Callable[[list[Entry], int, int, _Known], Taken] = getattr(_library, "take", take_in_python)
settle: Callable[[list[BufferHandle], int, int, dict[int, int]], tuple[bytes, int]] = getattr(
    _library, "settle", settle_in_python
)
bury: Callable[[list[int], Known, Given], Buried] = getattr(_library, "bury", bury_in_python)
