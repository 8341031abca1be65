"""The site's own parts: what pages load, what drawings say, and that its pages name real files.

That it builds without a warning is `make docs`, a part of `make lint`.
"""

import re
import subprocess
import sys

import processes
import pytest
import yaml
from documents import PAGES, ROOT, code_of

sys.path.append(str(ROOT / "docs/_extensions"))

from drawings import imports, lesson
from drawings.canvas import SCHEMES
from offline import loaded_from_elsewhere

from jgpu.sched import actions, events
from jgpu.wire import messages


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://host/x.js"></script>',
        '<link rel="stylesheet" href="//host/x.css">',
        '<img alt="" src="HTTP://host/x.png">',
        '<img srcset="https://host/x.png 2x">',
        '<iframe src="https://host"></iframe>',
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(html):
    assert len(loaded_from_elsewhere(f"<p>words {html}</p>")) == 1


def test_links_for_readers_and_the_site_s_own_files_are_no_loading():
    html = """<a href="https://host">x</a> <script src="_static/x.js"></script>
    <link rel="canonical" href="https://host/page"> <img src="_images/x.png">"""
    assert loaded_from_elsewhere(html) == []


def test_imports_are_drawn_from_the_table_that_the_code_is_held_to():
    import test_layout

    parts = imports.allowed(ROOT)
    assert parts == test_layout.MAY_IMPORT
    rows = imports.layers(parts)
    height = {part: number for number, row in enumerate(rows) for part in row}
    assert height.keys() == parts.keys()
    assert all(height[part] < height[each] for part in parts for each in parts[part])
    assert len(imports.table(parts).splitlines()) == len(parts) + 2


def test_a_table_of_imports_that_goes_in_a_circle_is_not_drawn():
    with pytest.raises(ValueError, match="in a circle"):
        imports.layers({"a": {"b"}, "b": {"a"}})


def test_only_arrows_that_say_something_are_drawn():
    parts = {"a": {"b", "c", "jgpu.errors"}, "b": {"c"}, "c": set(), "jgpu.errors": set()}
    assert imports.direct(parts) == [("a", "b"), ("b", "c")]


def test_the_lesson_s_messages_are_those_of_the_code():
    known = {name for module in (actions, events, messages) for name in dir(module)}
    names = {name for *_, text in lesson.STEPS for name in re.findall(r"\b[A-Z][a-z]\w+", text)}
    assert {"CellStarted", "Run", "Start", "WorkArrived"} <= names
    assert names - {"Python"} <= known


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_drawing_made_twice_is_the_same_file(scheme, tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        lesson.drawn(scheme).save(tmp_path / folder / "x.svg")
    texts = [path.read_bytes() for path in sorted(tmp_path.rglob("x.svg"))]
    assert len(texts) == 2
    assert texts[0] == texts[1]


def test_every_file_that_a_page_names_exists():
    """Those named from the repository's root; `FILE` and the like are the reader's own."""
    told = re.compile(r"(?:jgpu|tests|docs|bench|notebooks|labextension)/[\w./-]+")
    wrong = [
        f"{page.relative_to(ROOT)}:{line}: {code}"
        for page in PAGES
        for line, code in code_of(page.read_text())
        if told.fullmatch(code) and not (ROOT / code).exists() and "_build" not in code
    ]
    assert wrong == []


def test_every_file_that_the_design_names_by_the_end_of_its_path_exists():
    folders = "jgpu", "tests", "docs", "bench", "labextension"
    there = ["/" + str(path.relative_to(ROOT)) for each in folders for path in _walked(ROOT / each)]
    text = (ROOT / "docs/design.md").read_text()
    told = {code for _, code in code_of(text) if re.fullmatch(r"[\w./]+\.(py|h)", code)}
    assert len(told) > 50
    assert {each for each in told if not any(path.endswith("/" + each) for path in there)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    """Headings within them are the site's build to check; the README is no part of it."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    here = [each for each in targets if not each.startswith(("http:", "https:", "mailto:"))]
    assert [each for each in here if not (page.parent / each).exists()] == []


def test_commits_are_looked_at_by_the_tools_that_make_lint_runs():
    """They are those of the environment, so their versions are the ones in constraints.txt."""
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    hooks = [hook for repo in yaml.safe_load(text)["repos"] for hook in repo["hooks"]]
    assert all(hook["language"] == "system" for hook in hooks)
    run = {" ".join(hook["entry"].split()[:2]).removeprefix(".venv/bin/") for hook in hooks}
    assert run == {"ruff check", "ruff format", "mypy"}
    done = processes.run(
        [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_package_of_the_documentation_has_a_version():
    wanted = re.findall(r"^  \"([\w-]+)", _docs_extra(), re.MULTILINE)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in _pins()}
    assert len(wanted) >= 5
    assert set(wanted) <= pinned


def _walked(folder):
    for path in folder.iterdir():
        if path.is_dir() and path.name not in ("node_modules", "_build"):
            yield from _walked(path)
        elif path.is_file():
            yield path


def _docs_extra():
    text = (ROOT / "pyproject.toml").read_text()
    return text[text.index("\ndocs = [") :].partition("]")[0]


def _pins():
    return (ROOT / "constraints.txt").read_text().splitlines()
