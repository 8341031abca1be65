"""Line charts of what was simulated, drawn by matplotlib (`jgpu[plot]`).

What a chart shows is in the report's tables or its JSON as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jgpu.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

__all__ = ["Chart", "Line", "distribution"]

#: inches of one panel
_WIDTH: Final = 6.4
_HEIGHT: Final = 3.2
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

    def draw(self, path: Path) -> None:
        """Write the picture, in the format that the file's ending names: .svg, .png, .pdf.

        Raises `ConfigError` where matplotlib is missing, the ending names no format, or the file
        cannot be written.
        """
        try:
            from matplotlib import rc_context
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ConfigError(
                f"A plot needs matplotlib ({error}). Install it by `pip install 'jgpu[plot]'`, or "
                "leave --plot out: the tables and --json have the same figures."
            ) from None
        with rc_context({"text.parse_math": False, "svg.fonttype": "none"}):
            figure = Figure(figsize=(_WIDTH, _HEIGHT * len(self.panels)), layout="constrained")
            rows = figure.subplots(len(self.panels), squeeze=False)
            for (axes,), panel in zip(rows, self.panels, strict=True):
                _draw_panel(axes, *panel)
            try:
                figure.savefig(path)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} cannot be written: {error}.") from None


def distribution(name: str, values: Sequence[float]) -> Line:
    """Return the part of values (0 to 1) that are at most x, as a line."""
    ordered = sorted(values)
    points = [(value, place / len(ordered)) for place, value in enumerate(ordered, start=1)]
    return Line(name, [(ordered[0], 0.0), *points], steps=True)


def _draw_panel(axes: Axes, title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for number, line in enumerate(lines):
        xs, ys = zip(*line.points, strict=True)
        how = "steps-post" if line.steps else "default"
        axes.plot(xs, ys, drawstyle=how, color=_COLOURS[number % len(_COLOURS)], label=line.name)
    if not _has_negative(lines, 0):
        axes.set_xlim(left=0.0)
    if not _has_negative(lines, 1):
        axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False)


def _has_negative(lines: Sequence[Line], place: int) -> bool:
    return any(point[place] < 0 for line in lines for point in line.points)
