"""What an op returns for tensors of known geometry, where that is a formula: for both ends.

Sequences that grow bring new sizes with every step, and torch's meta kernels, many of them written
in Python, take up to milliseconds for each. A formula takes microseconds. It answers for arguments
as nearly all programs have them and says None to whatever is unusual: other types, lazy bits,
sizes that do not fit, strides that a kernel may answer otherwise. Whoever asks goes on to the meta
kernels then, which also have torch's words for what is wrong.

Does not cover values, nor ops that write what they are given.

Invariant: what a formula answers is what the host's kernel returns, and torch's meta kernel, too,
but for steps along dimensions of one element; neither of them raises or warns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jgpu.wire.formulas import attention, elementwise, joining, layers, products, reductions
from jgpu.wire.formulas.shapes import MOST_ELEMENTS, elements
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS", "returned"]

#: what ops return, by their full name: called with their arguments, tensors as geometries
FORMULAS: Final[dict[str, Callable[..., tuple[Geometry | None, ...] | None]]] = {
    f"aten::{name}": formula
    for part in (attention, elementwise, joining, layers, products, reductions)
    for name, formula in part.FORMULAS.items()
}


def returned(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Geometry | None, ...] | None:
    """What the op returns, None for an undefined tensor; None where no formula answers.

    `args` and `kwargs` are those of a call, with a `Geometry` for each tensor (its offset does not
    matter) and any number of the right type for a number that is not known.
    """
    formula = FORMULAS.get(name)
    if formula is None:
        return None
    try:
        made = formula(*args, **kwargs)
    except TypeError:  # arguments that this op had in no release so far
        return None
    if made is None:
        return None
    fits = all(each is None or elements(each.shape) <= MOST_ELEMENTS for each in made)
    return made if fits else None
