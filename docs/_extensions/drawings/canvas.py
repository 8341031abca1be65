"""Boxes, arrows and words on a sheet measured in pixels, in the colours of one scheme.

matplotlib draws; words become outlines, so that a drawing looks alike wherever it is read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

__all__ = ["SCHEMES", "Canvas", "Scheme"]

_DPI = 72
_SIZE = 11.0


@dataclass(frozen=True, slots=True)
class Scheme:
    """Colours for a light or a dark page; fills are pale enough for the ink on them."""

    name: str
    ink: str
    quiet: str
    line: str
    plain: str
    blue: str
    green: str
    amber: str
    rose: str


SCHEMES = (
    Scheme(
        "light",
        "#1f2430",
        "#586074",
        "#8a93a6",
        "#f3f4f6",
        "#cfe3fb",
        "#cdeed6",
        "#fbe3b8",
        "#f8d3d6",
    ),
    Scheme(
        "dark",
        "#e8eaf0",
        "#a9b1c2",
        "#7d869a",
        "#2a2f3a",
        "#1f4468",
        "#1d4f33",
        "#5c4512",
        "#5e2a31",
    ),
)


class Canvas:
    """A sheet of so many pixels; x goes right and y goes down."""

    def __init__(self, scheme: Scheme, width: float, height: float) -> None:
        self.scheme = scheme
        self._figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._axes.axis("off")

    def box(
        self, x: float, y: float, width: float, height: float, text: str = "", fill: str = "plain"
    ) -> None:
        """A box from its upper left corner, with words in its middle."""
        self._axes.add_patch(
            FancyBboxPatch(
                (x, y),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=4",
                facecolor=getattr(self.scheme, fill),
                edgecolor=self.scheme.line,
                linewidth=1,
            )
        )
        if text:
            self.text(x + width / 2, y + height / 2, text)

    def text(self, x: float, y: float, text: str, *, align: str = "center", **more: Any) -> None:
        """Words around a point; `align="left"` begins there. `quiet=True` is for remarks."""
        quiet = more.pop("quiet", False)
        self._axes.text(
            x,
            y,
            text,
            ha=align,
            va="center",
            color=self.scheme.quiet if quiet else self.scheme.ink,
            fontsize=more.pop("size", _SIZE - 1.5 if quiet else _SIZE),
            linespacing=1.35,
            **more,
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, style: str = "-") -> None:
        """A thin line; `style` is matplotlib's."""
        self._axes.plot((x1, x2), (y1, y2), style, color=self.scheme.line, linewidth=1)

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, *, both: bool = False, bend: float = 0.0
    ) -> None:
        """An arrow between two points; `bend` is its curvature."""
        self._axes.annotate(
            "",
            xy=(x2, y2),
            xytext=(x1, y1),
            arrowprops={
                "arrowstyle": "<|-|>" if both else "-|>",
                "color": self.scheme.quiet,
                "linewidth": 1.1,
                "shrinkA": 0,
                "shrinkB": 0,
                "connectionstyle": f"arc3,rad={bend}",
            },
        )

    def save(self, path: Path) -> None:
        """Write it as SVG; the same drawing is the same file."""
        with rc_context({"svg.fonttype": "path", "svg.hashsalt": path.stem}):
            self._figure.savefig(path, transparent=True, metadata={"Date": None})
