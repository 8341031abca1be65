"""Line charts as SVG text: axes, marks, a legend; nothing to install.

The rule: what a chart shows is in the report's tables or its JSON as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Chart", "Line", "distribution"]

_WIDTH: Final = 640
_HEIGHT: Final = 300
_LEFT: Final = 70
_RIGHT: Final = 20
_TOP: Final = 34
_BOTTOM: Final = 46
#: Okabe and Ito's colours, which nearly everybody can tell apart
_COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#999933",
)


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined by a line; `steps` where a value holds until the next."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels below each other: (title, name of x, name of y, lines)."""

    panels: Sequence[tuple[str, str, str, Sequence[Line]]]

    def svg(self) -> str:
        """Return the picture as text."""
        height = _HEIGHT * len(self.panels)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        ]
        for place, panel in enumerate(self.panels):
            parts.append(f'<g transform="translate(0 {place * _HEIGHT})">')
            parts += _panel(*panel)
            parts.append("</g>")
        return "\n".join([*parts, "</svg>", ""])


def distribution(name: str, values: Sequence[float]) -> Line:
    """Return the part of values (0 to 1) that are at most x, as a line."""
    ordered = sorted(values)
    points = [(value, place / len(ordered)) for place, value in enumerate(ordered, start=1)]
    return Line(name, [(ordered[0], 0.0), *points], steps=True)


def _panel(title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> list[str]:
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_marks, y_marks = _marks(min(0.0, *xs), max(xs)), _marks(min(0.0, *ys), max(ys))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        right = (x - x_marks[0]) / (x_marks[-1] - x_marks[0])
        up = (y - y_marks[0]) / (y_marks[-1] - y_marks[0])
        return round(_LEFT + right * wide, 1), round(_TOP + (1 - up) * high, 1)

    parts = [f'<text x="{_LEFT}" y="20" font-size="13" font-weight="bold">{escape(title)}</text>']
    for mark in x_marks:
        x, y = place(mark, y_marks[0])
        parts.append(f'<path d="M{x} {_TOP}V{y}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x}" y="{y + 15}" text-anchor="middle">{mark:g}</text>')
    for mark in y_marks:
        x, y = place(x_marks[0], mark)
        parts.append(f'<path d="M{x} {y}H{_LEFT + wide}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{mark:g}</text>')
    middle, bottom = _LEFT + wide / 2, _HEIGHT - 12
    parts.append(f'<text x="{middle}" y="{bottom}" text-anchor="middle">{escape(x_name)}</text>')
    up_at = f"{_TOP + high / 2}"
    parts.append(
        f'<text transform="translate(16 {up_at}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>"
    )
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        path = _path([place(x, y) for x, y in line.points], steps=line.steps)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        top = _TOP + 12 + 14 * number
        parts.append(
            f'<text x="{_LEFT + wide - 4}" y="{top}" text-anchor="end" fill="{colour}">'
            f"{escape(line.name)}</text>"
        )
    return parts


def _path(points: Sequence[tuple[float, float]], *, steps: bool) -> str:
    (x, y), *rest = points
    words = [f"M{x} {y}"]
    for right, up in rest:
        words.append(f"H{right}V{up}" if steps else f"L{right} {up}")
    return "".join(words)


def _marks(low: float, high: float) -> list[float]:
    """Return round numbers from at most `low` to at least `high`."""
    span = (high - low) or 1.0
    raw = span / 5
    unit = 10.0 ** floor(log10(raw))
    step = next(each * unit for each in (1, 2, 5, 10) if each * unit >= raw * 0.999)
    first, last = floor(low / step), max(ceil((high - step * 1e-9) / step), floor(low / step) + 1)
    return [round(number * step, 12) for number in range(first, last + 1)]
