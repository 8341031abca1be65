"""What the pages say to type is true: each block of commands is run, or says why it is not.

Commands, their options and make's targets exist wherever a page names them. Whether a test that a
page names really runs the block, no test can tell.
"""

import contextlib
import functools
import io
import os
import re
import shlex
import sys
from pathlib import Path

import processes
import pytest
from documents import PAGES, ROOT, blocks_of, code_of, faults_of

from jgpu.cli import commands, main

sys.path.append(str(Path(__file__).parents[1] / "kernelprovider"))

from real_broker import real_broker


def named(page):
    return str(page.relative_to(ROOT))


# -- what stands above each block ----------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_holds_it_true(page):
    assert list(faults_of(page.read_text())) == []


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```bash\njgpu top\n```", "line 1: no comment"),
        ("<!-- run: here -->\n\nwords\n\n```bash\njgpu top\n```", "line 5: no comment"),
        ("    jgpu top\n", "line 1: a fence"),
        ("1. do\n\n       jgpu top\n", "line 3: a fence"),
        ("```\njgpu top\n```", "line 1: a fence"),
        ("<!-- run: tests/test_layout.py::test_none -->\n```bash\nx\n```", "line 2: there is no"),
        ("<!-- run: tests/none.py::test_none -->\n```bash\nx\n```", "line 2: there is no"),
        ("<!-- run: tests/test_layout.py -->\n```bash\nx\n```", "line 2: there is no"),
        ("<!-- not run: -->\n```bash\nx\n```", "line 2: not understood"),
        ("<!-- not run: later -->\n```bash\nx\n```", "line 2: a reason"),
        ("<!-- run: here -->\n```python\nx\n```", "line 2: only bash"),
        (
            "<!-- each python block is run: tests/x.py::test_x -->\n\n```python\nx\n```",
            "line 3: there",
        ),
        (
            "<!-- each python block is run: tests/test_layout.py::test_no_file_says -->\n"
            "```bash\nx\n```",
            "line 2: no comment",
        ),
    ],
)
def test_what_nobody_holds_true_would_be_found(page, fault):
    (found,) = faults_of(page)
    assert found.startswith(fault)


def test_what_is_held_true_is_no_fault():
    page = """
<!-- each python block is run:
tests/test_layout.py::test_no_file_says -->

```python
x
```

- in a list

  <!-- not run: installs something as root -->
  ```bash
  x
  ```

```text
x
```

```{toctree}
x
```
"""
    assert list(faults_of(page)) == []


# -- blocks that are run here --------------------------------------------------------------------

HERE = [
    pytest.param(
        block.text,
        id=f"{named(page)}:{block.line}",
        marks=[pytest.mark.slow, pytest.mark.timeout(300)] if block.run_here == "slow" else [],
    )
    for page in PAGES
    for block in blocks_of(page.read_text())
    if block.run_here
]
QUOTAS = ROOT / "docs/administration/quotas.md"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One that computes nothing, with the configuration that the page of limits shows."""
    directory = tmp_path_factory.mktemp("broker")
    configuration = directory / "jgpu_config.py"
    shown = [b.text for b in blocks_of(QUOTAS.read_text()) if b.language == "python"]
    assert shown
    configuration.write_text("c = get_config()\n" + "".join(shown))
    options = ("--device", "null", "--spool", str(directory / "spool"))
    with real_broker(directory, *options, f"--config={configuration}") as address:
        yield address


@pytest.mark.parametrize("text", HERE)
def test_a_block_runs_with_a_broker(text, broker, home, tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = processes.run(
        ["/bin/bash", "-e", "-u", "-o", "pipefail", "-c", text],
        cwd=tmp_path,
        env=os.environ | {"JGPU_ADDRESS": str(broker), "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"


# -- names in the midst of sentences -------------------------------------------------------------

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
#: A name in a page that stands for one of the reader's own.
_PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.|…")


@functools.cache
def help_of(*words):
    """What `jgpu WORDS --help` says; "" where there is no such command."""
    said = io.StringIO()
    option = "--help-all" if words[0] in ("broker", "hub-page") else "--help"
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = main([*words, option])
        except SystemExit as ended:
            status = ended.code
    return said.getvalue() if status == 0 else ""


def options_in(text):
    return set(_OPTION.findall(text))


def jgpu_lines():
    """Each call of `jgpu` in a page: where it stands, and its words."""
    for page in PAGES:
        for line, code in code_of(page.read_text()):
            for part in re.split(r"&&|\|\|?|;|>|\s#\s", code.replace("\\|", "/")):
                try:
                    words = shlex.split(part)
                except ValueError:
                    words = part.split()
                if words and words[0].rpartition("/")[2] == "jgpu" and len(words) > 1:
                    yield f"{named(page)}:{line}", words[1:]


def wrong_in(words):
    """What of a call of `jgpu` there is not."""
    name, own = words[0].strip("[]"), words[1:]
    if "--" in own:  # behind it stands another program
        own = own[: own.index("--")]
    wanted = options_in(" ".join(own)) - {"--help", "--help-all"}
    if name.startswith("-") or _PLACEHOLDER.fullmatch(name):
        return ""
    if name not in commands():
        return f"there is no command {name}"
    known = help_of(name)
    if own and re.fullmatch(r"[a-z][a-z-]*", own[0]):
        within = help_of(name, own[0])
        if not within:
            return f"there is no {name} {own[0]}"
        known += within
    missing = wanted - options_in(known)
    return f"{name} has no {', '.join(sorted(missing))}" if missing else ""


def test_every_command_and_option_that_a_page_names_exists():
    found = list(jgpu_lines())
    assert len(found) > 50
    wrong = [f"{where}: {wrong_in(words)}" for where, words in found if wrong_in(words)]
    assert wrong == []


#: Commands that ask the broker, or set something; others start a program, end something or wait.
ASKING = {"events", "policy", "quota", "status", "usage"}


def asking():
    """Such calls in sentences and tables, as they are there to be typed."""
    typed = {}
    for where, words in jgpu_lines():
        parts = [part for word in words for part in re.split("[:=]", word)]
        own = any(_PLACEHOLDER.fullmatch(part) or set(part) & set("[]/") for part in parts)
        if words[0] in ASKING and not own:
            typed.setdefault(tuple(words), where)
    return [pytest.param(words, id=" ".join(words)) for words in typed]


@pytest.mark.parametrize("words", asking())
def test_a_command_in_a_sentence_is_understood_by_a_broker(
    words, broker, home, monkeypatch, capsys
):
    monkeypatch.setenv("JGPU_ADDRESS", str(broker))
    typed = list(words)
    if "--until" in typed:  # a moment on a page goes by
        typed[typed.index("--until") + 1] = "+2h"
    if typed[:2] == ["quota", "set"]:  # groups and users of the reader's host
        typed.append("--new")
    assert main(typed) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["nosuch"], "there is no command nosuch"),
        (["quota", "give", "default"], "there is no quota give"),
        (["quota", "set", "default", "weight=2", "--for", "1h"], "quota has no --for"),
        (["broker", "--memories", "6G"], "broker has no --memories"),
        (["run", "--prio", "batch", "--", "python", "--priority"], "run has no --prio"),
        (["quota", "set", "default", "weight=2", "--until", "18:00"], ""),
        (["run", "--", "python", "--own-option"], ""),
    ],
)
def test_a_command_that_there_is_not_would_be_found(words, fault):
    assert wrong_in(words) == fault


def test_every_target_of_make_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named_targets = {
        (named(page), word)
        for page in PAGES
        for _, code in code_of(page.read_text())
        for word in re.findall(r"^make ([a-z-]+)", code)
    }
    assert {("README.md", "demo"), ("CONTRIBUTING.md", "test-slow")} <= named_targets
    assert {(page, word) for page, word in named_targets if word not in targets} == set()
