"""Submissions are autograded as batch work beside notebooks that train: grades as natively.

By the recipe of docs/administration/nbgrader.md, with nbgrader in an environment like this one.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import nbformat
import processes
import pytest
from results import write_result

from jgpu.kernelprovider.routing import ENVIRONMENT

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from host import Host

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.timeout(1800)]

RECIPE = Path(__file__).parents[2] / "docs/administration/nbgrader_config.py"
STUDENTS = 10
SOLUTION = """\
torch.manual_seed(1)
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
data = torch.arange(64.0).reshape(8, 8).to(device) / 64
for _ in range(60):
    optimizer.zero_grad()
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
"""
TRAIN = """
import time, torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
model = model.to('cuda')
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.ones(256, 512, device='cuda')
seconds, stop = [], False
print('begun', flush=True)
try:
    while True:
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - began)
except KeyboardInterrupt:
    pass
"""


def metadata(name, **how):
    return {
        "nbgrader": {"schema_version": 3, "grade_id": name, "locked": False, "grade": False}
        | {"solution": False, "task": False}
        | how
    }


def assignment(solution):
    """A notebook with an answer and two graded tests."""
    cells = [
        nbformat.v4.new_code_cell(
            "import torch\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'",
            id="setup",
        ),
        nbformat.v4.new_code_cell(
            solution, id="answer", metadata=metadata("answer", solution=True)
        ),
        nbformat.v4.new_code_cell(
            "assert loss.item() < 0.1",
            id="first",
            metadata=metadata("first", grade=True, locked=True, points=3),
        ),
        nbformat.v4.new_code_cell(
            "assert model.weight.shape == (1, 8) and model.weight.device.type == device",
            id="second",
            metadata=metadata("second", grade=True, locked=True, points=2),
        ),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    return notebook


def course(directory):
    """What an instructor and ten students have written; every third did not train enough."""
    (directory / "source/ps1").mkdir(parents=True)
    empty = "### BEGIN SOLUTION\npass\n### END SOLUTION"
    nbformat.write(assignment(empty), directory / "source/ps1/p1.ipynb")
    for number in range(STUDENTS):
        folder = directory / f"submitted/user{number}/ps1"
        folder.mkdir(parents=True)
        text = SOLUTION.format(rate=1e-9 if number % 3 == 0 else 0.05)
        nbformat.write(assignment(text), folder / "p1.ipynb")


def nbgrader(directory, environ, *arguments):
    done = processes.run(
        ["chrt", "--idle", "0", sys.executable, "-m", "nbgrader", *arguments],
        cwd=directory,
        env=environ | {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def graded(directory, environ):
    """Every submission's score."""
    course(directory)
    nbgrader(directory, environ, "generate_assignment", "ps1")
    nbgrader(directory, environ, "autograde", "ps1")
    nbgrader(directory, environ, "export")
    lines = (directory / "grades.csv").read_text().splitlines()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    return {row["student_id"]: float(row["score"]) for row in rows}


def p95(notebook):
    """Of the iterations since the last look."""
    found = json.loads(notebook.ok("import json; print(json.dumps(seconds))"))
    return statistics.quantiles(found, n=20)[-1], len(found)


def trained(notebooks, work):
    """95th percentiles of two notebooks' iterations while `work` runs, and what it gave."""
    cells = [notebook.begin(TRAIN) for notebook in notebooks]
    value = work()
    for notebook, cell in zip(notebooks, cells, strict=True):
        notebook.manager.interrupt_kernel()
        assert not notebook.end(cell).error
    return [p95(notebook)[0] for notebook in notebooks], value


def test_ten_submissions_are_graded_as_batch_beside_two_notebooks_that_train(tmp_path):
    pytest.importorskip("nbgrader")
    outside = {k: v for k, v in os.environ.items() if not k.startswith("JGPU_")}
    for name in ("native", "shared"):
        (tmp_path / name).mkdir()
    (tmp_path / "shared/nbgrader_config.py").write_text(RECIPE.read_text())
    host = Host(tmp_path, "cpu", "--lanes", "1")
    try:
        host.start()
        notebooks = [host.notebook(f"{name}.ipynb", name) for name in ("user1", "user2")]
        quiet, _ = trained(notebooks, lambda: time.sleep(20))
        alone = outside | {"CUDA_VISIBLE_DEVICES": ""}
        beside, native = trained(notebooks, lambda: graded(tmp_path / "native", alone))
        variable, _, value = ENVIRONMENT.partition("=")
        environ = outside | {
            "JGPU_ADDRESS": str(host.address),
            "JGPU_USER": "grader",
            "JGPU_PRIORITY": "batch",
            variable: value,
        }
        busy, shared = trained(notebooks, lambda: graded(tmp_path / "shared", environ))
        users = {each["name"]: each for each in host.status()["users"]}
    finally:
        host.close()
    assert sorted(native.values()) == [2.0] * 4 + [5.0] * 6
    assert shared == native
    assert users["grader"]["ended_sessions"] == STUDENTS
    assert users["grader"]["device_seconds"] > 0
    write_result(
        "nbgrader",
        {
            "submissions": STUDENTS,
            "p95 of an iteration, beside autograding / without": _ratios(busy, quiet),
            "the same beside autograding on the host's processor alone": _ratios(beside, quiet),
        },
    )


def _ratios(times, others):
    return [round(time / other, 2) for time, other in zip(times, others, strict=True)]
