"""The documentation as its tests read it: pages, their blocks, and what holds each block true.

A comment right above a block says it, or one below the title for all Python of a page:

    <!-- run: here -->                        `test_blocks` runs it; "here, slow": the slow tests do
    <!-- run: tests/FILE.py::test_name -->    that test runs it, or what it shows
    <!-- not run: REASON -->                  nobody does
    <!-- each python block is run: tests/FILE.py::test_name -->
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

__all__ = ["PAGES", "ROOT", "Block", "blocks_of", "code_of", "faults_of"]

ROOT = Path(__file__).parents[2]
_MADE = {"_build", "_made"}
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if not _MADE & set(p.parts)),
]
#: What a reader would type or put into a file.
COMMANDS = {"bash", "dockerfile", "python"}
#: What a reader only reads; "none" is a drawing in letters, whose lines are not to be broken.
READ = {"none", "text"}

_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_WHOLE_PAGE = "each python block is run: "


@dataclass(frozen=True, slots=True)
class Block:
    """A block of commands, and the comment that stands for it."""

    line: int
    language: str
    text: str
    said: str

    @property
    def run_here(self):
        """Whether, and among which tests, `test_blocks` runs it."""
        return {"run: here": "here", "run: here, slow": "slow"}.get(self.said, "")


def _parsed(text):
    return MarkdownIt("commonmark").enable("table").parse(text)


def blocks_of(text):
    """Every block of code in a page, directives of the site aside."""
    tokens = _parsed(text)
    whole = ""
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "html_block" and _comment(token).startswith(_WHOLE_PAGE):
            whole = _comment(token).removeprefix("each python block is ")
        if token.type not in ("fence", "code_block"):
            continue
        language = token.info.strip() if token.type == "fence" else "indented"
        if language.startswith("{") or token.markup.startswith(":"):
            continue
        said = _comment(before) if before is not None and before.type == "html_block" else ""
        if said.startswith(_WHOLE_PAGE):
            said = ""
        said = said or (whole if language == "python" else "")
        yield Block(token.map[0] + 1, language, token.content, said)


def _comment(token):
    """What the last comment of a token says, in one line."""
    found = _COMMENT.findall(token.content)
    return " ".join(found[-1].split()) if found else ""


def code_of(text):
    """Every line of commands and every word in code's letters, with the line it stands on."""
    for token in _parsed(text):
        if token.type == "fence" and token.info.strip() == "bash":
            lines = token.content.replace("\\\n", " ").splitlines()
            yield from ((token.map[0] + 1, line) for line in lines)
        for child in token.children or ():
            if child.type == "code_inline":
                yield token.map[0] + 1, child.content


def faults_of(text):
    """Blocks of which nobody knows whether they are true."""
    for block in blocks_of(text):
        fault = _fault(block)
        if fault:
            yield f"line {block.line}: {fault}"


def _fault(block):
    if block.language in READ:
        return "what is only read needs no comment" if block.said else ""
    if block.language not in COMMANDS:
        return f"a fence with one of {sorted(COMMANDS | READ)} instead of {block.language!r}"
    if not block.said:
        return "no comment says what holds it true"
    if block.run_here:
        return "" if block.language == "bash" else "only bash is run here"
    kind, _, what = block.said.partition(": ")
    if kind == "not run":
        return "" if len(what.split()) >= 3 else "a reason is a few words"
    if kind != "run":
        return f"not understood: {block.said}"
    return "" if _is_test(what) else f"there is no test {what}"


def _is_test(name):
    path, _, function = name.partition("::")
    file = ROOT / path
    if not path.startswith("tests/") or not file.is_file():
        return False
    names = {
        n.name for n in ast.walk(ast.parse(file.read_bytes())) if isinstance(n, ast.FunctionDef)
    }
    return function.startswith("test_") and function in names
