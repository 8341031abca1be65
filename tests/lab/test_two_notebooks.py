"""Real notebooks of one person compete for a real broker's device, and JupyterLab says so.

Does not cover states that a broker comes to rarely (`test_page`).
"""

import os
import signal
import sys
import time

import processes
import pytest
from jupyter_pages import Jupyter, Page, chromium, needs_chromium, playwright, until

from jgpu.errors import BrokerUnreachable
from jgpu.wire.address import Address, ask
from jgpu.wire.messages import AskStatus

pytestmark = [pytest.mark.slow, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(300)]

expect = playwright.expect
FIRST = "import torch\nx = torch.ones(1 << 20, device='cuda')\nx.sum().item()"
#: One op of some seconds, which nobody can part.
LONG = "torch.linalg.svd(torch.rand(3000, 3000, device='cuda'))[1][0].item()"
SHORT = "x = x + 1\nx.sum().item()"
NAMES = ("one.ipynb", "other.ipynb", "third.ipynb")


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    """A Jupyter server whose kernels all go to a host's broker with one lane."""
    directory = tmp_path_factory.mktemp("jupyter")
    address = Address(directory / "broker.sock", "environment")
    command = [sys.executable, "-m", "jgpu", "broker", "--private", "--idle", "0"]
    command += ["--device", "cpu", "--threads", "1", "--lanes", "1", "--memory", "2G"]
    command += ["--socket", str(address.path), "--spool", str(directory / "spool")]
    with (
        (directory / "broker.log").open("wb") as log,
        processes.start(command, stdout=log, stderr=log) as broker,
    ):
        until(lambda: answers(address), "a broker")
        made = Jupyter(
            directory,
            JGPU_ADDRESS=str(address),
            JUPYTER_DEFAULT_PROVISIONER_NAME="jgpu-provisioner",
            OMP_NUM_THREADS="1",
        )
        try:
            yield made
        finally:
            made.close()
            broker.end()


def answers(address):
    try:
        return ask(address, AskStatus(), 15)
    except BrokerUnreachable:
        return False


def opened(page, name):
    """Bring a notebook to the front; its kernel."""
    page.view.evaluate(
        "path => void jupyterapp.commands.execute('docmanager:open', { path })", name
    )
    page.view.get_by_role("tab", name=name, selected=True).wait_for()
    expect(page.cells.first).to_be_visible()


def says(page, text):
    """Wait until the status begins so."""
    expect(page.status).to_contain_text(text, timeout=60_000)


def row(page, kernel):
    return page.view.locator(f"[data-jgpu-kernel='{kernel}']")


def test_who_waits_is_seen_and_memory_comes_back_and_nothing_stays_of_what_is_gone(
    browser, jupyter
):
    for name in NAMES:
        jupyter.write(name, FIRST, LONG, SHORT)
    page = Page(browser, jupyter, "lab/tree/one.ipynb?reset").open()
    kernels = {}
    for name in NAMES:
        opened(page, name)
        kernels[name] = jupyter.kernel(name)
        page.run(0)
        says(page, "GPU · resting")
    page.view.evaluate("void jupyterapp.commands.execute('jgpu:show')")
    for kernel in kernels.values():
        row(page, kernel).wait_for()

    opened(page, "one.ipynb")
    page.run(1)
    says(page, "GPU · running")
    opened(page, "other.ipynb")
    page.run(2)
    began = time.monotonic()
    expect(page.cells.nth(2)).to_have_attribute("data-jgpu", "waiting")
    seen = time.monotonic() - began
    says(page, "GPU · waiting, 1 ahead")
    page.mark(2, "waits for the GPU: 1 ahead")
    page.mark(0, "")
    assert seen < 3.0, f"seen after {seen:.2f} s"
    opened(page, "third.ipynb")
    page.run(2)
    expect(page.view.locator("#jgpu-panel")).to_contain_text("waiting, 2 ahead", timeout=60_000)
    page.view.reload()
    page.ready()
    opened(page, "other.ipynb")
    says(page, "GPU · resting")
    page.mark(2, "")

    # Release by the popup; the tensor is on the host, and the next cell has it back.
    page.status.click()
    page.view.get_by_role("dialog", name="Shared GPU").get_by_role("button", name="Release").click()
    spilled = page.view.locator(".jgpu-Section .jgpu-Row", has_text="On the host")
    expect(spilled).to_contain_text("4 MiB", timeout=60_000)
    page.view.keyboard.press("Escape")
    page.run(2)
    expect(spilled).to_contain_text("0 B", timeout=60_000)

    # A kernel that is shut down, or killed, leaves no row; one that is restarted has none yet.
    ended(
        page,
        kernels["one.ipynb"],
        lambda: (
            row(page, kernels["one.ipynb"])
            .get_by_title("Shut down the kernel of one.ipynb")
            .click()
        ),
    )
    third = kernels["third.ipynb"]
    ended(page, third, lambda: jupyter.ask(f"api/kernels/{third}/restart", {}, "POST"))
    other = kernels["other.ipynb"]
    ended(page, other, lambda: kill(other))
    page.close()


def ended(page, kernel, end):
    """How it ends; no row of it stays longer than two seconds, or so."""
    end()
    began = time.monotonic()
    expect(row(page, kernel)).to_have_count(0, timeout=60_000)
    assert time.monotonic() - began < 5.0


def kill(kernel):
    """Kill a kernel's process as nothing else would."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if f"kernel-{kernel}.json".encode() in command:
            os.kill(int(pid), signal.SIGKILL)
            return
    raise AssertionError(f"no process of {kernel}")
