"""Drawings of the architecture, made at the beginning of each build into `docs/_made`.

Each module draws one picture; `canvas` has what they share. The picture and the table of who may
import whom are made of the table that the tests hold the code to, so they cannot differ from it.
"""

from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx

from drawings import imports, lesson, memory, processes
from drawings.canvas import SCHEMES, Canvas, Scheme

__all__ = ["make", "setup"]

_ROOT = Path(__file__).parents[3]
_DRAWN: dict[str, Callable[[Scheme], Canvas]] = {
    "imports": lambda scheme: imports.drawn(scheme, imports.allowed(_ROOT)),
    "lesson": lesson.drawn,
    "memory": memory.drawn,
    "processes": processes.drawn,
}


def make(folder: Path) -> None:
    """Write every drawing, light and dark, and the table of imports."""
    folder.mkdir(exist_ok=True)
    for name, draw in _DRAWN.items():
        for scheme in SCHEMES:
            draw(scheme).save(folder / f"{name}-{scheme.name}.svg")
    (folder / "imports.md").write_text(imports.table(imports.allowed(_ROOT)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Made before Sphinx looks for the pages' files."""
    app.connect("builder-inited", lambda app: make(Path(app.srcdir) / "_made"))
    return {"parallel_read_safe": True}
