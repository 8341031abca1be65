"""Who may import whom: the table of `tests/test_layout.py`, drawn in layers and written out."""

import ast
from pathlib import Path

from drawings.canvas import Canvas, Scheme

__all__ = ["allowed", "drawn", "table"]

_WIDE, _TALL, _GAP, _ROW = 150, 40, 22, 92
#: The package itself (its version) and the errors: nearly all import them, so arrows say nothing.
_COMMON = {"jgpu", "jgpu.errors"}


def allowed(root: Path) -> dict[str, set[str]]:
    """Part of the package: the parts that it may import, as the tests enforce it."""
    text = (root / "tests/test_layout.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MAY_IMPORT":
            return dict(ast.literal_eval(node.value))
    raise LookupError("tests/test_layout.py has no table MAY_IMPORT any more")


def layers(parts: dict[str, set[str]]) -> list[list[str]]:
    """Parts by how deep they lie: who imports nothing is in the last layer."""
    depth: dict[str, int] = {}
    while len(depth) < len(parts):
        found = {
            part: max((depth[each] for each in below), default=-1) + 1
            for part, below in parts.items()
            if part not in depth and below <= depth.keys()
        }
        if not found:
            raise ValueError("the table of imports goes in a circle")
        depth |= found
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for part in sorted(depth):
        rows[depth[part]].append(part)
    return rows[::-1]


def direct(parts: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Arrows worth drawing: none to what is common, none where others already lead."""
    return [
        (part, each)
        for part, below in sorted(parts.items())
        for each in sorted(below - _COMMON)
        if not any(each in parts[other] for other in below - {each})
    ]


def drawn(scheme: Scheme, parts: dict[str, set[str]]) -> Canvas:
    """The order of the parts: nobody may import what stands above them."""
    rows = layers(parts)
    width = max(len(row) for row in rows) * (_WIDE + _GAP) + _GAP
    canvas = Canvas(scheme, width, len(rows) * _ROW - (_ROW - _TALL) + 40)
    places = {}
    for number, row in enumerate(rows):
        left = (width - len(row) * (_WIDE + _GAP) + _GAP) / 2
        for column, part in enumerate(row):
            places[part] = left + column * (_WIDE + _GAP), 8 + number * _ROW
    for part, each in direct(parts):
        (x, y), (there_x, there_y) = places[part], places[each]
        canvas.arrow(x + _WIDE / 2, y + _TALL, there_x + _WIDE / 2, there_y)
    for part, (x, y) in places.items():
        canvas.box(x, y, _WIDE, _TALL, part, "amber" if part in _COMMON else "blue")
    canvas.text(
        width / 2,
        len(rows) * _ROW - (_ROW - _TALL) + 28,
        "without arrows to what nearly all import (amber)",
        quiet=True,
    )
    return canvas


def table(parts: dict[str, set[str]]) -> str:
    """The same as rows of Markdown, exact."""
    rows = [
        f"| `{part}` | {', '.join(f'`{each}`' for each in sorted(below)) or 'nothing'} |"
        for part, below in sorted(parts.items())
    ]
    return "\n".join(["| part | may import |", "| --- | --- |", *rows]) + "\n"
