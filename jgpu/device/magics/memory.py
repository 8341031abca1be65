"""`%jgpu memory`: what this notebook has on the device, the largest first."""

from typing import TYPE_CHECKING, Final

from jgpu.device.magics.asking import counted, report_of, session
from jgpu.errors import JgpuError
from jgpu.wire.sizes import short_size

if TYPE_CHECKING:
    from jgpu.device.client.session import ClientSession
    from jgpu.device.magics.tensors import HeldTensors

__all__ = ["rows", "table", "whole_table"]

_ROWS: Final = 20
_NAMES: Final = 3
_HEAD: Final = ("size", "", "dtype", "shape", "held by")


def table() -> str:
    """The largest storages, one a line, and what the others come to."""
    return _table(_ROWS)


def whole_table() -> str:
    """Every storage, one a line."""
    return _table(None)


def _table(most: int | None) -> str:
    mine = session()
    if mine is None:
        return "GPU: this notebook does not use it yet."
    from jgpu.device.magics.tensors import held

    before = counted(mine)
    listed = held(mine)
    total = sum(each.nbytes for each in listed)
    said = [f"GPU memory of this notebook: {_sum(listed)}", *_told(mine)]
    said += rows(listed[:most])
    if most is not None and len(listed) > most:
        said.append(f"and {_sum(listed[most:])} more; `%jgpu memory all` lists them")
    unseen = min(before, counted(mine)) - total
    if unseen > 0:  # what the collector was told to leave out (`gc.freeze`) is counted all the same
        said.append(f"and {short_size(unseen)} that Python does not show")
    return "\n".join(said)


def rows(listed: list["HeldTensors"]) -> list[str]:
    """A line for each storage, below a line that says what the columns are."""
    cells = [_HEAD] if listed else []
    cells += [
        (
            short_size(each.nbytes),
            "model" if each.is_model else "kept",
            each.dtype,
            " × ".join(map(str, each.shape)),
            _holders(each),
        )
        for each in listed
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(4)] if cells else []
    return [
        f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  "
        f"{row[3]:<{widths[3]}}  {row[4]}"
        for row in cells
    ]


def _holders(each: "HeldTensors") -> str:
    """Its names, and who else would keep it if these were deleted."""
    (first, *others), *further = each.names.values()
    text = first
    if others:
        text += f"; also {', '.join(others[:_NAMES])}{', …' * (len(others) > _NAMES)}"
    if further:
        text += f"; and {further[0][0]}"
    return text


def _sum(listed: list["HeldTensors"]) -> str:
    count, nbytes = len(listed), sum(each.nbytes for each in listed)
    return f"{short_size(nbytes)} in {count} storage{'s' * (count != 1)}"


def _told(mine: "ClientSession") -> list[str]:
    """How the broker counts it, or why it does not say."""
    try:
        _, row = report_of(mine)
    except JgpuError as error:
        return [str(error)]
    if row is None:
        return []
    model, kept = short_size(row.resident_bytes), short_size(row.ephemeral_bytes)
    spilled = short_size(row.spilled_bytes)
    return [
        f"The broker counts model {model}, kept {kept}; spilled to the host, of these: {spilled}"
    ]
