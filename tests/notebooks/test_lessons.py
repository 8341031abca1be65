"""The lessons as files: what a notebook must be before anybody executes it.

Covers the stored form (valid, clean, complete) and the promise that a lesson is plain PyTorch for
any CUDA machine. Does not execute anything: nbval does that. Invariant: a
lesson never knows which machinery runs it.
"""

import ast
import base64
import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("*.ipynb"))
#: the tag by which nbval knows a cell whose output must be the stored one
CHECKED = "nbval-check-output"
#: What a lesson may import besides the standard library.
LIBRARIES = {"matplotlib", "numpy", "scipy", "sklearn", "torch"}
STANDARD = {"math", "pathlib", "pydoc_data", "tempfile", "time"}
PICTURE_BYTES = 80_000


@pytest.fixture(params=LESSONS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


@pytest.fixture
def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(cells):
    return [output for cell in cells for output in cell.outputs]


def printed_by(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def checked_of(cells):
    return [cell for cell in cells if CHECKED in cell.metadata.get("tags", [])]


def test_there_are_five_lessons_and_the_readme_names_each_in_one_line():
    lines = (NOTEBOOKS / "README.md").read_text().splitlines()
    assert len(LESSONS) >= 5
    assert [sum(f"({path.name})" in line for line in lines) for path in LESSONS] == [1] * len(
        LESSONS
    )


def test_is_a_valid_notebook_with_cell_ids(notebook):
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor >= 5) == (4, True)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


def test_names_the_ordinary_python_kernel(notebook):
    kernel = notebook.metadata.kernelspec
    assert (kernel.name, kernel.display_name) == ("python3", "Python 3")
    assert notebook.metadata.language_info.name == "python"


def test_contains_no_word_about_what_shares_the_device(path):
    assert not re.search(r"jgpu|privateuse|broker|shared gpu", path.read_text(), re.IGNORECASE)


def test_says_cuda_and_sets_the_seed_in_its_first_cell(code):
    assert 'device = torch.device("cuda")' in code[0].source
    assert "torch.manual_seed(" in code[0].source


def test_never_looks_for_another_device(code):
    source = "\n".join(cell.source for cell in code)
    assert "is_available" not in source
    assert '"cpu"' not in source


def test_is_plain_python_with_known_libraries_only(code):
    imported = set()
    for node in ast.walk(ast.parse("\n".join(cell.source for cell in code))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported - LIBRARIES - STANDARD == set()


def test_was_executed_in_order_from_a_fresh_kernel(code):
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_has_stored_outputs_without_errors_warnings_or_progress_bars(code):
    outputs = outputs_of(code)
    assert outputs
    assert {output.output_type for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert not any("\r" in printed_by(cell) for cell in code)


def test_stores_small_pictures(code):
    pictures = [
        base64.b64decode(output.data["image/png"])
        for output in outputs_of(code)
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert max(map(len, pictures)) < PICTURE_BYTES


def test_checked_cells_have_something_to_check(code):
    checked = checked_of(code)
    assert checked
    assert all(printed_by(cell) for cell in checked)
    assert not any("image/png" in output.get("data", {}) for output in outputs_of(checked))


def test_checked_cells_hold_no_measured_decimals(code):
    """A measured number differs from machine to machine: only verdicts are checked."""
    for cell in checked_of(code):
        assert not re.search(r"\d\.\d{2,}", printed_by(cell))


def test_says_nothing_to_nbval_that_a_student_sees(code):
    assert not [cell.source for cell in code if "nbval" in cell.source.lower()]


def test_no_checked_verdict_is_false(code):
    """`False` may be printed where the lesson is about it, never after the colon of a verdict."""
    assert not [cell.source for cell in code if re.search(r": +False\b", printed_by(cell))]


def test_one_tagged_cell_prints_the_result_in_one_line(code):
    results = [cell for cell in code if "result" in cell.metadata.get("tags", [])]
    assert len(results) == 1
    assert re.fullmatch(r"[^\n]*\d[^\n]*\n", printed_by(results[0]))


def test_begins_with_a_title_and_ends_with_exercises(notebook):
    assert notebook.cells[0].source.startswith("# ")
    assert notebook.cells[-1].cell_type == "markdown"
    assert notebook.cells[-1].source.startswith("## Exercises\n\n1. ")
