"""Checks of tensors without elements and of unusual lists of dimensions, which meta kernels lack.

Native kernels refuse many inputs and outputs with zero elements: pictures without pixels, medians
of nothing, indices into a dimension of size 0. Such a call costs nothing, so the host's own kernel
is called with tensors of the same sizes.

Covers the ops in `_CHECKED`, whose errors do not depend on the values of their tensors, except for
indices: if an index is out of bounds, only the device knows which one, and the op has to wait.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from jgpu.device.geometry import InternedGeometry
from jgpu.device.likenative import words
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor

__all__ = ["must_wait"]

_CHECKED: Final = re.compile(
    r"aten::_?(upsample_\w+|adaptive_\w+|(avg|max)_pool\w+|(reflection|replication)_pad\w+"
    r"|constant_pad_nd|grid_sampler\w*|im2col|col2im|pixel_(un)?shuffle|channel_shuffle"
    r"|scatter\w*|gather|index_(select|add|copy|reduce)|take|put|embedding|roll"
    r"|(nan)?median|mode|kthvalue|max|min|aminmax|amax|amin|argmax|argmin|topk|sort"
    r"|logsumexp|log_softmax|softmax|linalg_vector_norm|norm|nansum|mean)_?(\..*)?"
)
#: Arguments that list dimensions, or go with such a list.
_LISTS: Final = ("dim", "dims", "shifts")
_OUT_OF_BOUNDS: Final = re.compile(r"index .*out of (bounds|range)")


def must_wait(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: Iterable[InternedGeometry],
    outs: Iterable[InternedGeometry | int | None],
) -> bool:
    """Raise the error that a native kernel raises for these sizes.

    Return whether the op fails at an index that only the device can name.
    """
    made = [out for out in outs if isinstance(out, InternedGeometry)]
    empty = any(geometry.numel == 0 for geometry in (*geometries, *made))
    if not (empty or _has_odd_list(info, args)) or _CHECKED.fullmatch(info.name) is None:
        return False
    if not all(words.is_computed_on_host(geometry.dtype) for geometry in geometries):
        return False
    try:
        words.raise_as_native(info, args, kwargs)
    except NotImplementedError:  # of types, of which CUDA takes more
        return False
    except (IndexError, RuntimeError) as error:
        if _OUT_OF_BOUNDS.match(str(error)) is None:
            raise
        return True
    return False


def _has_odd_list(info: OpInfo, args: tuple[Any, ...]) -> bool:
    """Whether a list of dimensions is empty or names one twice."""
    named = zip(info.arguments, args, strict=False)
    lists = [value for each, value in named if each.name in _LISTS and isinstance(value, list)]
    dims = args[0].dim() if lists and isinstance(args[0], DeviceTensor) else 0
    return any(
        not value or len({dim % max(dims, 1) for dim in value}) < len(value) for value in lists
    )
