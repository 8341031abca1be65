"""`%jgpu` where there is no JupyterLab: nbval, nbconvert, papermill's engine, terminals."""

import re
import subprocess
import sys

import nbformat
import processes
import pytest
from host import until
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbformat.v4 import new_code_cell, new_notebook, new_output

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CELLS = (
    ("1 + 1", new_output("execute_result", {"text/plain": "2"}, execution_count=1)),
    (
        "import torch; print(torch.ones(3, device='cuda').sum().item())",
        new_output("stream", name="stdout", text="3.0\n"),
    ),
)
ASKS = ("%jgpu", "%jgpu memory", "%jgpu release")


def written(path, *, asks):
    """A notebook with stored outputs; cells that ask are marked as nbval's users mark them."""
    made = new_notebook()
    for number, (source, output) in enumerate(CELLS, 1):
        made.cells.append(new_code_cell(source, outputs=[output], execution_count=number))
    for source in ASKS if asks else ():
        tags = {"tags": ["nbval-ignore-output"]}
        made.cells.append(new_code_cell(source, metadata=tags))
    nbformat.write(made, path)
    return path


def routed(host):
    return host.environ | {"JUPYTER_DEFAULT_PROVISIONER_NAME": "jgpu-provisioner"}


@pytest.mark.parametrize("asks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_nbval_compares_every_output_and_finds_none_too_many(host, tmp_path, asks):
    path = written(tmp_path / "lesson.ipynb", asks=asks)
    done = processes.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:timeout",
            "--nbval", "-o", "addopts=", "-o", "filterwarnings=", str(path),
        ],
        env=routed(host), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"{5 if asks else 2} passed" in done.stdout


def test_nbconvert_executes_it_and_stores_plain_text(host, tmp_path):
    path = written(tmp_path / "lesson.ipynb", asks=True)
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace"]
    processes.run([*command, str(path)], env=routed(host), check=True, capture_output=True)
    outputs = [cell.outputs for cell in nbformat.read(path, as_version=4).cells[2:]]
    assert [[each.output_type for each in some] for some in outputs] == [["stream"]] * 3
    assert all(some[0].text.startswith("GPU") for some in outputs)


def test_a_terminal_has_it_once_torch_is_imported(host):
    command = [sys.executable, "-m", "jgpu", "run", "--", sys.executable, "-m", "IPython"]
    done = processes.run(
        [*command, "--simple-prompt", "--colors=NoColor"],
        input="import torch\nx = torch.ones(3, device='cuda')\n%jgpu\n%jgpu memory\n%jgpu?\n",
        env=host.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"GPU: \w+ · \d+ B of 2 GiB", done.stdout), done.stdout
    assert re.search(r"12 B +kept +float32 +3 +x\n", done.stdout)
    assert "%jgpu release" in done.stdout


def test_a_kernel_that_is_not_routed_has_nothing_of_it(host):
    manager = KernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager())
    manager.start_kernel(env=host.environ)
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=50)
        said = client.execute("%jgpu", reply=True, timeout=50, stop_on_error=False)["content"]
        assert said["status"] == "error" or "not found" in str(said)
        found = "get_ipython().find_line_magic('jgpu') is None and 'jgpu' not in sys.modules"
        reply = client.execute(
            "import sys", user_expressions={"none": found}, reply=True, timeout=50
        )["content"]
        assert reply["user_expressions"]["none"]["data"]["text/plain"] == "True"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_an_interrupt_ends_a_question_and_harms_nothing(host):
    """Also where the thread that computes has the session, and is not interrupted itself."""
    notebook = host.notebook()
    notebook.ok(
        "import threading, torch\n"
        "x = torch.zeros(1, device='cuda')\n"
        "def count():\n"
        "    for _ in range(2000): x.add_(1); x.item()\n"
        "thread = threading.Thread(target=count); thread.start()"
    )
    asking = notebook.begin(
        "print('begun')\nwhile thread.is_alive():\n"
        "    for words in ('', 'memory', 'release'): get_ipython().run_line_magic('jgpu', words)"
    )
    notebook.manager.interrupt_kernel()
    assert notebook.end(asking).error == "KeyboardInterrupt"
    notebook.ok("thread.join(60)")
    assert notebook.ok("print(x.item())") == "2000.0"
    assert "kept" in notebook.ok("%jgpu")
    until(lambda: host.sessions[notebook.id]["state"] in ("idle", "spilled"), "rest")
