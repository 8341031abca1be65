"""Servers whose environment lacks jgpu, and servers that find no broker: they start, and say it."""

import sys
import sysconfig
from pathlib import Path

import processes
import pytest
from lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]


def environment_without_jgpu(directory):
    """A Python like this one that has everything but jgpu; the variables that make it so."""
    packages = directory / "packages"
    packages.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "jgpu" not in each.name and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    processes.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    return directory / "venv/bin/python", packages


def test_an_environment_that_lacks_jgpu_is_told_so_in_the_first_cell(needs_lab):
    extra = """
c.Spawner.cmd = [os.environ["LACKING"], "-m", "jupyterhub.singleuser"]
c.Spawner.environment = {"PYTHONPATH": os.environ["LACKING_PACKAGES"], "JUPYTER_PATH": ""}
"""
    with Lab({"user1": []}, device="null", extra=extra, hub=False) as lab:
        python, packages = environment_without_jgpu(lab.directory)
        lab.environ |= {"LACKING": str(python), "LACKING_PACKAGES": str(packages)}
        lab.start_hub()
        lab.start_servers("user1")
        kernel = lab.kernel("user1")
        assert (
            "This kernel is meant to share the GPU, but the environment of your Jupyter server "
            "lacks the package jgpu"
        ) in kernel.ok("print(1 + 1)")
        assert kernel.ok("print(1 + 1)") == "2"


def test_without_a_broker_servers_start_and_cells_say_it_until_there_is_one(needs_lab):
    with Lab({"user1": []}, device="null") as lab:
        lab.broker.end()
        lab.start_servers("user1")
        kernel = lab.kernel("user1")
        assert kernel.ok("import torch; print(torch.ones(2).sum().item())") == "2.0"
        error = kernel.run("torch.ones(2, device='cuda')")[1]
        assert "There is no broker at" in error
        lab.start_broker()
        assert (
            lab.kernel("user1").ok("import torch; print(torch.ones(2, device='cuda').shape)")
            == "torch.Size([2])"
        )


def test_a_user_is_greeted_with_what_is_left(needs_lab):
    """On the page that shows how a server starts."""
    options = ("--JgpuBroker.default_quota={'device_seconds':'2h','memory':'8G'}",)
    with Lab({"user1": []}, *options, device="null") as lab:
        assert (
            "Shared GPU: 2 h of 2 h of device time left for the last 24 hours, at most 8 GiB"
            in (lab.progress("user1"))
        )
