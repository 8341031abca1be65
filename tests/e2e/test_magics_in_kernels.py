"""`%jgpu` in real kernels with a real broker."""

import re

import pytest
from host import until

from jgpu.wire.asking import ask
from jgpu.wire.messages import SetQuota

pytestmark = pytest.mark.e2e

MODEL = (
    "import torch; torch.manual_seed(1)\n"
    "model = torch.nn.Linear(256, 256).cuda()\n"
    "kept = torch.randn(64, 1 << 14, device='cuda')\n"
)
FAIL = (
    "def fail():\n"
    "    big = torch.randn(100, 1 << 14, device='cuda')\n"
    "    raise ValueError(big.sum().item())\n"
    "fail()"
)
#: what a thread trains until it is told to end
TRAIN = """
import threading
end, steps = threading.Event(), [0]
def train():
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(64, 256, device='cuda')
    while not end.is_set():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        value = loss.item()
        steps[0] += 1
thread = threading.Thread(target=train)
thread.start()
while steps[0] < 3:
    thread.join(0.01)
"""


def test_it_is_there_from_the_start_and_silent_until_asked(host):
    notebook = host.notebook()
    said = notebook.ok("%jgpu")
    assert re.fullmatch(
        r"GPU: this notebook does not use it yet · 2 GiB on the device · nobody waits · "
        "the device is the CPU",
        said,
    )
    assert notebook.ok("%jgpu memory") == "GPU: this notebook does not use it yet."
    assert notebook.ok("import sys; print('torch' in sys.modules)") == "False"
    assert notebook.ok("x = %jgpu\nprint(x, 'jgpu' in dir())").endswith("\nNone False")
    assert "jgpu memory" in notebook.ok("get_ipython().run_line_magic('pinfo', 'jgpu')") + str(
        page(notebook, "%jgpu?")
    )
    notebook.ok(MODEL + "torch.cuda.synchronize()")
    assert re.fullmatch(
        r"GPU: (resting|running) · 4\.25 MiB of 2 GiB \(model 257 KiB, kept 4 MiB\) · "
        r"[\d.]+ s of device time · nobody waits · the device is the CPU",
        notebook.ok("%jgpu"),
    )


def page(notebook, code):
    """What a cell shows in the pager."""
    reply = notebook.client.execute(code, reply=True, timeout=50)
    return reply["content"]["payload"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["caf\udce9.ipynb", "<b>\n\x1b[31m" + "x" * 10_000 + ".ipynb"])
def test_a_notebook_of_whatever_name_has_its_seat(host, path):
    """As file systems have them: no UTF-8, markup, longer than a name may be."""
    notebook = host.notebook(path)
    assert notebook.ok("import torch; print(torch.ones(3, device='cuda').sum().item())") == "3.0"
    assert " of 2 GiB · " in notebook.ok("%jgpu")
    label = host.sessions[notebook.id]["label"]
    assert (label, label.isprintable()) == (label[:1024], True)


def test_memory_names_outputs_and_errors_and_release_gives_it_back(host):
    notebook = host.notebook()
    notebook.ok(MODEL + "torch.cuda.synchronize()")
    notebook.ok("kept + 1")
    assert notebook.run(FAIL).error == "ValueError"
    lines = notebook.ok("%jgpu memory").splitlines()
    assert lines[0] == "GPU memory of this notebook: 14.5 MiB in 5 storages"
    assert lines[1].startswith("The broker counts model 257 KiB, kept 14.2 MiB; spilled")
    assert [re.sub(" +", " ", line.strip()) for line in lines[3:6]] == [
        "6.25 MiB kept float32 100 × 16384 big of fail() in a failed cell's error",
        "4 MiB kept float32 64 × 16384 Out[2]",
        "4 MiB kept float32 64 × 16384 kept",
    ]
    before = notebook.ok("print(kept.double().sum().item(), Out[2].double().sum().item())")
    # That cell did not fail, so the error is no longer the last cell's, but Python's yet.
    text = notebook.ok("%jgpu release")
    assert text == (
        "GPU: 6.25 MiB that a failed cell's error held is free; 8 MiB went to the host and comes "
        "back when the notebook goes on. On the GPU now: 257 KiB."
    )
    row = host.sessions[notebook.id]
    assert (row["ephemeral_bytes"], row["spilled_bytes"]) == (8 << 20, 8 << 20)
    assert row["spilled_resident_bytes"] == 0
    for _ in range(3):  # on the third as on the first
        assert (
            notebook.ok("print(kept.double().sum().item(), Out[2].double().sum().item())") == before
        )
        assert "8 MiB went to the host" in notebook.ok("%jgpu release")
    assert notebook.ok("%jgpu release") == (
        "GPU: there was nothing to release. On the GPU now: 257 KiB."
    )
    assert "(model 257 KiB, kept 8 MiB; of this 8 MiB on the host)" in notebook.ok("%jgpu")
    assert notebook.ok("y = model(kept[:, :256]).sum().item(); print(y == y)") == "True"


@pytest.mark.slow
def test_an_error_that_holds_nothing_of_the_device_stays_for_the_debugger(host):
    notebook = host.notebook()
    notebook.ok(MODEL)
    assert notebook.run("1 / 0").error == "ZeroDivisionError"
    notebook.ok("%jgpu release")
    assert notebook.ok("import sys; print(type(sys.last_value).__name__)") == "ZeroDivisionError"


@pytest.mark.slow
def test_while_a_thread_trains(host):
    notebook = host.notebook()
    notebook.ok(MODEL + TRAIN)
    for words in ("", "memory", "release", "memory all", "release", ""):
        assert "GPU" in notebook.ok(f"%jgpu {words}")
    assert (
        notebook.ok("now = steps[0]\nwhile steps[0] < now + 5: thread.join(0.01)\nprint(1)") == "1"
    )
    notebook.ok("end.set(); thread.join(50)")
    said = notebook.ok("print(kept.shape, torch.isfinite(model.weight).all().item())")
    assert said == "torch.Size([64, 16384]) True"


@pytest.mark.slow
def test_beside_a_cell_that_computes_in_a_subshell(host, tmp_path):
    """The kernel takes the question while its cell trains, and answers it at once."""
    notebook = host.notebook()
    notebook.ok(MODEL)
    end = tmp_path / "end"
    cell = notebook.begin(
        "import os\nprint('begun')\nsteps = 0\n"
        f"while not os.path.exists({str(end)!r}):\n"
        "    value, steps = (kept @ kept.T).sum().item(), steps + 1"
    )
    client = notebook.client
    client.control_channel.send(client.session.msg("create_subshell_request"))
    subshell = client.get_control_msg(timeout=50)["content"]["subshell_id"]
    try:
        for words in ("", "memory", "release"):
            content = {"code": f"%jgpu {words}", "silent": False, "store_history": False}
            question = client.session.msg("execute_request", content)
            question["header"]["subshell_id"] = subshell
            client.shell_channel.send(question)
            said = notebook.end(question["header"]["msg_id"])
            assert said.stdout.startswith("GPU"), said.shown
    finally:
        end.touch()
    assert not notebook.end(cell).error
    assert notebook.ok("print(steps > 0, torch.isfinite(model.weight).all().item())") == "True True"


@pytest.mark.slow
def test_a_session_that_is_lost_a_broker_that_is_gone_and_a_budget_that_is_used_up(own_host):
    notebook = own_host.notebook()
    notebook.ok(MODEL + "torch.cuda.synchronize()")
    ask(own_host.address, SetQuota("user:user1", (("device_seconds", "0.001"), ("period", "1d"))))
    said = until(
        lambda: text if "\n" in (text := notebook.ok("%jgpu")) else "",
        "a sentence about the budget",
    )
    assert "device-seconds that may be used" in said.splitlines()[1]
    own_host.kill()
    until(lambda: "is lost: model, kept" in notebook.ok("%jgpu"), "a lost session")
    for words in ("", "memory", "release"):
        said = notebook.ok(f"%jgpu {words}")
        assert re.match(r"GPU: .*What was on the device is lost: model, kept\.", said), said
        assert len(said.splitlines()) == 1
    own_host.start()
    assert notebook.run("%jgpu").error == ""
    notebook.ok(MODEL + "torch.cuda.synchronize()")
    assert "kept 4 MiB" in notebook.ok("%jgpu")
