"""An error that the device tells later names the line that asked for the op."""

import json
import subprocess
import sys

import processes
import pytest

#: cells of a notebook; the error of the last one names the line with this comment
CELLS = {
    "a statement after others": ["""
x = torch.ones(5, device="cuda")
y = x + 1
bad = x[nine]  # this

x.sum()
bad.cpu()"""],
    "the first of several": ["x = torch.ones(5, device='cuda')", """
bad = x[nine]  # this
y = x + 1
z = y * 2
bad.cpu()"""],
    "inside a loop": ["""
x = torch.ones(5, device="cuda")
for k in range(3):
    y = x + k
    if k == 1:
        bad = x[nine]  # this
bad.cpu()"""],
    "a function of an earlier cell": ["def wrong(x):\n    return x[nine]", """
y = torch.ones(5, device="cuda") + 1
bad = wrong(y)  # this
bad.cpu()"""],
    "far beyond a piece of the log": ["""
x = torch.ones(5, device="cuda")
for k in range(300):
    x = x * 1
bad = x[nine]  # this
for k in range(300):
    x = x * 1
bad.cpu()"""],
    "after a cell that the statement ran": ["x = torch.ones(5, device='cuda')", """
y = x + 1
get_ipython().run_cell("z = x + 2\\nz = z + 1"); bad = x[nine]  # this
bad.cpu()"""],
    "with an await": ["""
import asyncio
x = torch.ones(5, device="cuda")
await asyncio.sleep(0)
bad = x[nine]  # this
bad.cpu()"""],
}  # fmt: skip

NOTEBOOK = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import torch; nine = torch.tensor([9], device='cuda')")
said = {}
for name, cells in json.loads(sys.argv[1]).items():
    for cell in cells:
        result = shell.run_cell(cell)
    said[name] = str(result.error_in_exec)
print("\\nSAID", json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    """The error of each notebook's last cell, run one after the other in one IPython."""
    done = processes.run(
        [sys.executable, "-c", NOTEBOOK, json.dumps(CELLS)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=90,
        check=True,
    )
    return json.loads(done.stdout.rpartition("\nSAID ")[2])


@pytest.mark.parametrize("name", CELLS)
def test_the_line_of_a_cell_is_the_one_that_asked(said, name):
    lines = enumerate(CELLS[name][-1].strip().splitlines(), 1)  # as IPython counts
    ((number, source),) = [(k, line.strip()) for k, line in lines if line.endswith("# this")]
    assert said[name].endswith(f"on the shared device, asked for at line {number}: {source})")
