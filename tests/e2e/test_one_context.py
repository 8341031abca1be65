"""Sixteen kernels hold models; one process holds the device's memory, and says whose it is."""

import psutil
import pytest
from host import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

KERNELS = 16
#: a model of so many floats, a gradient and Adam's two states for each
MODEL = """
import torch
from torch import nn
torch.manual_seed({seed})
net = nn.Linear({width}, {width}, bias=False).cuda()
optimizer = torch.optim.Adam(net.parameters())
net(torch.randn(8, {width}, device="cuda")).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
print(round(net.weight.sum().item(), 3))
"""


def executors(host):
    """Processes that serve devices."""
    family = psutil.Process(host.broker.pid).children(recursive=True)
    return [p for p in family if "jgpu.broker.executor" in " ".join(p.cmdline())]


def test_one_process_holds_the_memory_of_sixteen_kernels_and_each_ones_is_listed(own_host):
    host = own_host
    notebooks = [host.notebook(f"lesson-{k}.ipynb", f"user{1 + k % 4}") for k in range(KERNELS)]
    (executor,) = executors(host)
    before = executor.memory_info().rss
    widths = [256 + 32 * k for k in range(KERNELS)]
    for k, notebook in enumerate(notebooks):
        assert notebook.ok(MODEL.format(seed=k, width=widths[k]), timeout_s=120)
    (executor,) = executors(host)
    models = {n.id: 3 * 4 * width**2 for n, width in zip(notebooks, widths, strict=True)}

    def settled():
        rows = host.sessions
        return rows if all(row["resident_bytes"] for row in rows.values()) else None

    rows = until(settled, "sixteen measured sessions")
    assert rows.keys() == models.keys()
    for number, model in models.items():
        row = rows[number]
        assert model <= row["resident_bytes"] <= model + 4096, row
        assert row["user"].startswith("user")
    total = sum(row["resident_bytes"] for row in rows.values())
    assert host.device["used_bytes"] >= total
    assert executor.memory_info().rss - before >= total
    for notebook in notebooks:
        # no kernel has a tensor's memory of its own, nor a way to a GPU
        inside = notebook.ok(
            "import contextlib, glob, os\n"
            "links = []\n"
            "for path in glob.glob('/proc/self/fd/*'):\n"
            "    with contextlib.suppress(FileNotFoundError):  # closed meanwhile\n"
            "        links.append(os.readlink(path))\n"
            "print(repr(os.environ['CUDA_VISIBLE_DEVICES']), net.weight.device, "
            "[link for link in links if 'nvidia' in link])"
        )
        assert inside == "'' cuda:0 []"
