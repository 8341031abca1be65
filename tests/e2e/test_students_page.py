"""The students' page is true: its cells, run one after the other, print what stands below them."""

import re
from pathlib import Path

import pytest
from host import until

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs/students.md"
#: a cell, and what it prints, if that is told
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.S)


def stored(text):
    """What a block says; `…` is anything within a line."""
    return re.compile(".*".join(map(re.escape, text.strip().split("…"))) + r"\s*")


def printed(said):
    return f"{said.error}: {said.sentence}" if said.error else said.stdout


HELD = "torch.cuda.synchronize(); print(torch.cuda.memory_allocated())"


def rest(host, notebook):
    """Wait until what its cells asked for is done, and counted, as it is when a reader asks."""
    held = int(notebook.ok(HELD))

    def rests():
        row = host.sessions[notebook.id]
        counted = row["resident_bytes"] + row["ephemeral_bytes"]
        return counted == held and row["state"] in ("idle", "spilled")

    until(rests, "a notebook at rest")


def test_the_cells_print_what_the_page_shows(host):
    cells = BLOCKS.findall(PAGE.read_text())
    assert len(cells) == PAGE.read_text().count("```python")
    notebook = host.notebook()
    for code, text in cells:
        if code == "%jgpu\n":
            rest(host, notebook)
        said = notebook.run(code)
        assert stored(text).fullmatch(printed(said)), f"{code}{printed(said)}"
        assert not said.stderr


def test_what_it_says_would_be_found_wrong():
    assert stored("12 of … GiB\n").fullmatch("12 of 2 GiB · more\n") is None
    assert stored("12 of …\n").fullmatch("12 of 2 GiB\n")


def test_every_word_of_the_magic_is_on_the_page():
    from jgpu.device.magics.command import run

    words = re.findall(r"%jgpu \w+", run.__doc__)
    assert words
    assert all(f"`{word}`" in PAGE.read_text() for word in words if word != "%jgpu memory all")
