"""The table of common mistakes, `docs/mistakes.toml`: read, compared, and made into a page.

`python tests/device/mistakes.py` writes the page, `docs/mistakes.md`, anew.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MISTAKES", "PAGE", "RELEASE", "Mistake", "page"]

#: of torch, whose words these are
RELEASE = "2.13"

_DOCS = Path(__file__).parents[2] / "docs"
PAGE = _DOCS / "mistakes.md"
_SHARED = "torch's own code for all devices; tested natively on the CPU"

_HEAD = """\
# Common mistakes, and what is said of them

What native CUDA says, where that was found, and what jgpu says. Made of `mistakes.toml` by
`python tests/device/mistakes.py`; the tests hold jgpu to that table. Paths are those of PyTorch's
sources, libraries those of an installed torch. `…` stands for what depends on the machine.

<!-- each python block is run:
tests/e2e/test_told_mistakes.py::test_each_is_told_as_the_table_says_and_the_kernel_lives -->
"""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: a cell, and the last lines of its traceback natively and here."""

    group: str
    title: str
    code: str
    native: str
    #: what is said here; "" where it is the same
    says: str = ""
    #: a line that is added here
    hint: str = ""
    found: str = ""

    @property
    def ours(self):
        """What is said here."""
        said = self.says or self.native
        return f"{said}\n{self.hint}" if self.hint else said

    @property
    def on_cpu(self):
        """The same mistake natively on the CPU; None where CUDA's kernels say something else."""
        return None if self.found else self.code.replace('"cuda"', '"cpu"')

    def fits(self, said):
        """Whether the last lines of a traceback are what the table says."""
        parts = (re.escape(part) for part in self.ours.split("…"))
        return re.fullmatch("(?s:.*)".join(parts), said) is not None


MISTAKES = tuple(
    Mistake(**entry) for entry in tomllib.loads((_DOCS / "mistakes.toml").read_text())["mistake"]
)


def page():
    """The table for people."""
    lines, group = [_HEAD], ""
    for each in MISTAKES:
        if each.group != group:
            group = each.group
            lines.append(f"## {group}\n")
        lines.append(f"### {each.title}\n")
        lines.append(f"```python\n{each.code.strip()}\n```\n")
        lines.append(
            f"Native CUDA ({each.found or _SHARED}):\n\n```text\n{each.native.strip()}\n```\n"
        )
        if each.ours == each.native:
            lines.append("jgpu says the same.\n")
        else:
            lines.append(f"jgpu:\n\n```text\n{each.ours.strip()}\n```\n")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
