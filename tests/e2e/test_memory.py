"""Memory that is short, in real notebooks: nobody fails for a neighbour, and nothing is lost."""

import contextlib
import json
import re
import sys

import processes
import pytest
from host import Host, until

pytestmark = pytest.mark.e2e

MIB = 1 << 20
MAKE = (
    "import torch; torch.manual_seed({seed})\n"
    "model = torch.nn.Linear(512, 512).cuda()\n"
    "kept = torch.randn({mib}, 1 << 18, device='cuda')\n"
    "print(kept.sum().item())"
)


@pytest.fixture(scope="module")
def small_host(tmp_path_factory):
    """A device of 256 MiB, and what its scheduler is told, in a file."""
    directory = tmp_path_factory.mktemp("small")
    record = f"--record={directory / 'recording.jsonl'}"
    options = ("--lanes", "1", "--memory", "256M", record)
    with contextlib.closing(Host(directory, "cpu", *options)) as made:
        yield made.start()


@pytest.fixture
def host(small_host):
    yield small_host
    small_host.leave()


def run(host, *words):
    """A `jgpu` command on the host; what it printed."""
    command = [sys.executable, "-m", "jgpu", *words]
    found = processes.run(command, env=host.environ, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def session(host, notebook):
    return host.sessions[notebook.id]


def spilled(host, notebook):
    """Its row of the status, once its memory is on the host."""
    row = session(host, notebook)
    return row if row["state"] == "spilled" else None


def test_an_idle_notebook_s_data_makes_way_and_comes_back_equal_while_its_model_stays(host):
    first, second = host.notebook("a.ipynb", "user1"), host.notebook("b.ipynb", "user2")
    before = first.ok(MAKE.format(seed=1, mib=150))
    assert second.ok(MAKE.format(seed=2, mib=150))
    row = until(lambda: spilled(host, first), "a notebook that makes way")
    assert row["spilled_bytes"] == 150 * MIB
    assert row["resident_bytes"] == (512 * 512 + 512) * 4
    assert first.ok("print(kept.sum().item())") == before
    until(lambda: session(host, second)["spilled_bytes"], "the other one's turn to make way")
    assert first.ok("print(model(kept[:4, :512]).shape)") == "torch.Size([4, 512])"


def test_two_that_do_not_fit_together_both_run_to_the_end(host):
    notebooks = [host.notebook(f"{name}.ipynb", name) for name in ("user1", "user2")]
    for notebook in notebooks:
        notebook.ok(MAKE.format(seed=3, mib=150))
    cells = [
        notebook.begin(
            "print('begun', flush=True)\n"
            "for _ in range(30): kept.mul_(1.01); kept[0, 0].item()\n"
            "print(kept.sum().item())"
        )
        for notebook in notebooks
    ]
    said = [notebook.end(cell) for notebook, cell in zip(notebooks, cells, strict=True)]
    assert [each.error for each in said] == ["", ""]
    assert said[0].stdout == said[1].stdout


def test_what_never_fits_names_the_variables_on_the_line_that_asks(host):
    notebook = host.notebook()
    notebook.ok("import torch; batches = torch.zeros(200, 1 << 18, device='cuda')")
    said = notebook.run("more = batches * 2")
    assert said.error == "DeviceOutOfMemory"
    assert "Tried to allocate 200.00 MiB" in said.sentence
    assert "Largest: batches 200.00 MiB" in said.sentence
    assert "more = batches * 2" in re.sub(r"\x1b\[[0-9;]*m", "", said.shown)
    assert notebook.ok("del batches; more = torch.ones(200, 1 << 18, device='cuda'); print(1)")


def test_filling_memory_to_the_last_byte_costs_nothing_that_was_there_before(host):
    notebook = host.notebook()
    notebook.ok("import torch; x = torch.ones(1000, device='cuda'); keep = []")
    said = notebook.run("while True: keep.append(torch.empty(1 << 24, device='cuda'))")
    assert said.error == "DeviceOutOfMemory"
    assert notebook.ok("print(len(keep))") == "3"
    assert notebook.ok("keep.clear(); print((x + 1).sum().item(), x.sum().item())") == (
        "2000.0 1000.0"
    )
    assert notebook.ok("print(torch.ones(3, 1 << 24, device='cuda').sum().item())")


def test_what_a_failed_cell_left_is_the_first_to_go_and_can_still_be_looked_at(host):
    failed, other = host.notebook("a.ipynb", "user1"), host.notebook("b.ipynb", "user2")
    failed.ok("import torch; data = torch.ones(40, 1 << 18, device='cuda'); data.sum().item()")
    said = failed.run(
        "def forward():\n    hidden = data.repeat(2, 1)\n    hidden.sum().item()\n"
        "    raise ValueError('a mistake')\nforward()"
    )
    assert said.error == "ValueError"
    other.ok(MAKE.format(seed=4, mib=200))
    until(lambda: session(host, failed)["spilled_bytes"] == 80 * MIB, "80 MiB on the host")
    assert failed.ok("import sys; print(data.sum().item())") == f"{40 * (1 << 18)}.0"
    look = "tb = sys.last_traceback\nwhile tb.tb_next: tb = tb.tb_next\n"
    assert failed.ok(f"{look}print(tb.tb_frame.f_locals['hidden'].sum().item())") == (
        f"{80 * (1 << 18)}.0"
    )


def test_a_session_is_evicted_with_its_model_by_command_and_goes_on_unseen(host):
    notebook = host.notebook()
    before = notebook.ok(MAKE.format(seed=5, mib=10))
    number = session(host, notebook)["id"]
    assert "the model included" in run(host, "evict", str(number))
    until(lambda: session(host, notebook)["state"] == "spilled", "the eviction")
    assert session(host, notebook)["spilled_bytes"] == 10 * MIB + (512 * 512 + 512) * 4
    assert notebook.ok("print(kept.sum().item())") == before


def test_the_policy_is_shown_and_changed_live(host):
    assert run(host, "policy") == "fair\n"
    assert "The policy is las from now on" in run(host, "policy", "las")
    until(lambda: host.device["policy"] == "las", "the policy")
    command = [sys.executable, "-m", "jgpu", "policy", "best"]
    refused = processes.run(command, env=host.environ, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "There is no scheduling policy 'best'" in refused.stderr
    run(host, "policy", "fair")


def test_loops_and_all_else_that_the_scheduler_was_told_stands_in_the_recording(host):
    notebook = host.notebook()
    notebook.ok(
        "import torch\nw = torch.nn.Linear(4, 4).cuda()\n"
        "optimizer = torch.optim.SGD(w.parameters(), lr=0.1)\n"
        "for epoch in range(3):\n    for batch in range(20):\n"
        "        optimizer.zero_grad(); w(torch.ones(1, 4, device='cuda')).sum().backward()\n"
        "        optimizer.step()"
    )
    file = host.directory / "recording.jsonl"

    def told():
        lines = file.read_text().splitlines()
        return [json.loads(line) for line in lines[1:] if line.endswith("}")]

    until(lambda: any(line["event"] == "LoopTold" for line in told()), "the loop")
    (first, *_) = [line["left"] for line in told() if line["event"] == "LoopTold"]
    assert first == 59
    assert json.loads(file.read_text().splitlines()[0])["policy"] == "fair"
