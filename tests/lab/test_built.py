"""What the repository has of the extension as it is built, which users get without node.

Does not cover what a page shows of it (`test_page`).
"""

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "labextension"
BUILT = SOURCES / "built"


def hash_of_the_sources(folder):
    """As `hash.mjs` counts it."""
    files = ["package.json", "tsconfig.json", "yarn.lock"]
    files += [
        path.relative_to(folder).as_posix()
        for part in ("schema", "src", "style")
        for path in (folder / part).rglob("*")
        if path.is_file()
    ]
    found = hashlib.sha256()
    for name in sorted(files):
        text = (folder / name).read_bytes()
        found.update(f"{name} {len(text)}\n".encode() + text)
    return found.hexdigest()


def contents(folder):
    """Files below a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_built_extension_is_of_these_sources():
    """Where it is not: `jlpm install && jlpm build` in labextension/."""
    assert (BUILT / "sources.sha256").read_text().strip() == hash_of_the_sources(SOURCES)


def test_what_the_page_loads_first_is_there():
    package = json.loads((BUILT / "package.json").read_text())
    assert (BUILT / package["jupyterlab"]["_build"]["load"]).is_file()
    assert package["name"] == "@jgpu/lab"


def test_it_asks_for_no_newer_jupyterlab_than_it_says():
    """The build would ask for the JupyterLab that it was made with, and older ones would refuse."""
    package = json.loads((SOURCES / "package.json").read_text())
    entry = BUILT / json.loads((BUILT / "package.json").read_text())["jupyterlab"]["_build"]["load"]
    asked = set(re.findall(r'requiredVersion:"([^"]+)"', entry.read_text()))
    assert asked <= set(package["dependencies"].values())
    assert "^4.2.0" in asked


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.usefixtures("package_index")
def test_a_wheel_brings_it_where_jupyterlab_finds_it_without_node(tmp_path):
    """Building it needs no node either."""
    path = os.pathsep.join(
        each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "node").exists()
    )
    copy = tmp_path / "project"
    skipped = shutil.ignore_patterns(
        ".git", ".venv", "node_modules", "docs", "tests", "__pycache__"
    )
    shutil.copytree(ROOT, copy, ignore=skipped, symlinks=True)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    processes.run(
        [*wheel, "--wheel-dir", tmp_path, copy], check=True, env=os.environ | {"PATH": path}
    )
    (made,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(made, tmp_path / "wheel", "zip")
    (data,) = (tmp_path / "wheel").glob("*.data/data")
    listed = processes.run(
        [sys.executable, "-m", "jupyter", "labextension", "list"],
        env=os.environ | {"JUPYTER_PATH": str(data / "share/jupyter"), "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    said = listed.stdout + listed.stderr
    assert any("@jgpu/lab" in line and "OK" in line for line in said.splitlines()), said
    assert contents(data / "share/jupyter/labextensions/@jgpu/lab") == contents(BUILT) | {
        "install.json": (SOURCES / "install.json").read_bytes()
    }


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.usefixtures("package_index")
def test_built_anew_from_the_lock_file_it_is_the_same_and_its_own_tests_pass(tmp_path):
    copy = tmp_path / "labextension"
    skipped = shutil.ignore_patterns("built", "lib", "lib-tests", "node_modules")
    shutil.copytree(SOURCES, copy, ignore=skipped)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = os.environ | {"PATH": path}
    for step in (["install", "--immutable"], ["build"], ["test"], ["lint"]):
        done = processes.run(
            ["jlpm", *step], cwd=copy, env=environ, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert wherever(contents(copy / "built")) == wherever(contents(BUILT))


def wherever(files):
    """Without the number of the entry's module, which the build takes from its folder's path."""
    entry = re.compile(rb"remoteEntry\.\w+\.js")
    return {
        entry.sub(b"remoteEntry.js", name.encode()): (
            re.sub(rb"\d+", b"0", text) if b"remoteEntry" in name.encode() else entry.sub(b"", text)
        )
        for name, text in files.items()
    }
