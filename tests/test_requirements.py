"""What is told to pip, what the code imports and what it tells a person to install are the same."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import test_layout

from jgpu import requirements
from jgpu.cli import demo
from jgpu.kernelprovider import privatebroker

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

#: Modules, and the distribution of another name that brings them.
DISTRIBUTIONS = {
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
}
#: Distributions that no line of jgpu imports, each with who does.
FOR_OTHERS = {
    "ipykernel": "a kernel is started by it",
    "jupyterlab": "where a person opens the lessons",
    "scikit-learn": "the lessons' data",
}
#: Modules that come with who imports jgpu's module, or lie beside a script.
WITH_THEIR_HOST = {"tljh"}


def distribution(requirement):
    return re.match(r"[\w.-]+", requirement)[0]


def names(extra):
    return {distribution(each) for each in EXTRAS[extra] if not each.startswith("jgpu[")}


def imported():
    """Names of modules of others that jgpu imports; not what its scripts' own neighbours are."""
    found = set()
    for path in test_layout.FILES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    return found - test_layout.sys.stdlib_module_names - {"jgpu"} - WITH_THEIR_HOST


def test_the_releases_of_torch_are_those_that_pip_is_told():
    assert {requirements.torch_wanted()} == set(EXTRAS["torch"])
    assert list(requirements.TORCH) == sorted(requirements.TORCH)


def test_the_pages_name_the_same_releases_of_torch():
    first, *_, last = requirements.TORCH
    pages = (Path(__file__).parents[1] / "docs").rglob("*.md")
    told = {each for page in pages for each in re.findall(r"PyTorch \(([^;)]*)", page.read_text())}
    assert told == {f"{first} and newer, tried up to {last}"}


def test_the_page_s_table_says_how_each_release_was_tried():
    page = (Path(__file__).parents[1] / "docs/limits.md").read_text()
    rows = [tuple(row.strip("| ").split(" | ")) for row in re.findall(r"(?m)^\| 2\..*$", page)]
    tried = requirements.TORCH.items()
    assert rows == [(release, *(each or "–" for each in how)) for release, how in tried]


@pytest.mark.parametrize(
    ("version", "tried", "old"),
    [
        ("2.11.0", True, False),
        ("2.15.3+cu132", True, False),
        ("2.13.0a0+git1f3b", False, False),
        ("2.15.0rc1", False, False),
        ("2.16.0", False, False),
        ("3.0.0", False, False),
        ("2.10.9+cpu", False, True),
        ("1.13.1", False, True),
        ("unknown", False, False),
    ],
)
def test_a_version_was_tried_or_is_too_old_or_neither(version, tried, old):
    assert (requirements.was_tried(version), requirements.is_too_old(version)) == (tried, old)


def test_what_is_told_to_install_instead_was_tried():
    first, *_, last = requirements.TORCH
    above = f"{last.split('.')[0]}.{int(last.split('.')[1]) + 1}"
    assert requirements.torch_tried() == f"torch>={first},<{above}"


def test_the_modules_of_an_extra_are_those_that_pip_is_told():
    assert requirements.BROKER.keys() == names("broker") | names("torch")
    assert requirements.NOTEBOOKS.keys() == names("notebooks")


def test_what_is_needed_to_begin_is_part_of_an_extra():
    broker = set(requirements.BROKER.values())
    assert set(privatebroker._MODULES) < broker
    assert set(demo._NEEDS) <= broker | set(requirements.NOTEBOOKS.values())


def test_everything_that_is_imported_is_declared_and_what_is_declared_is_imported():
    used = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in imported()}
    core = {distribution(each) for each in PROJECT["dependencies"]}
    declared = core.union(*(names(extra) for extra in EXTRAS))
    assert used <= declared
    users = core.union(*(names(extra) for extra in EXTRAS if extra not in ("docs", "test")))
    assert users - used == set(FOR_OTHERS)
