"""Kernels that cannot have the device: the cell that first says `cuda` says why, others run."""

import contextlib
import os
import signal
import socket
import struct

import pytest
from host import Host, until

from jgpu.wire.address import user_socket

pytestmark = pytest.mark.e2e

USE = "torch.ones(3, device='cuda').sum().item()"


def assert_told(notebook, error, *words):
    """The first use of `cuda`, and the second, end in one line with these words; nothing else."""
    assert notebook.ok("import torch; print(torch.ones(2).sum().item())") == "2.0"
    for _ in range(2):
        said = notebook.run(USE)
        assert said.error == error, said.shown
        assert len(said.shown.splitlines()) == 1
        for word in words:
            assert word in said.shown
    assert notebook.ok("print(torch.ones(2).sum().item())") == "2.0"


def test_a_kernel_at_an_address_where_nobody_listens(host, tmp_path):
    notebook = host.notebook(JGPU_ADDRESS=f"unix:{tmp_path}/none")
    assert_told(notebook, "BrokerUnreachable", "There is no broker at", "jgpu doctor")


def test_a_kernel_whose_private_broker_cannot_be_started(host, tmp_path, home):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no module named jgpu'\nexit 3\n")
    python.chmod(0o755)
    own = {"HOME": str(home), "JGPU_ADDRESS": f"unix:{user_socket()}"}
    notebook = host.notebook(**own, JGPU_BROKER_PYTHON=str(python))
    assert_told(
        notebook, "BrokerUnreachable", "ended at once with status 3", "no module named jgpu"
    )


def test_a_kernel_whose_torch_is_not_the_brokers(host):
    notebook = host.notebook()
    notebook.ok(
        "import jgpu.wire.runtime as runtime\n"
        "honest = runtime.runtime_of\n"
        "def older(torch):\n"
        "    true = honest(torch)\n"
        "    return type(true)(true.python, '2.10.1', true.schema)\n"
        "runtime.runtime_of = older"
    )
    assert_told(notebook, "VersionMismatch", "2.10.1", "Install torch")


def test_a_kernel_whose_protocol_is_not_the_brokers(host):
    notebook = host.notebook()
    notebook.ok("import jgpu.wire.limits as limits; limits.PROTOCOL += 1")
    assert_told(notebook, "VersionMismatch", "protocol", "Upgrade jgpu")


def test_a_torch_that_was_never_tried_is_refused_by_name(host):
    notebook = host.notebook()
    notebook.ok(
        "import os, sys\n"
        "os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
        "import torch\n"
        "torch.__version__ = type(torch.__version__)('2.99.0')\n"
        "from jgpu.device.autoload import autoload; autoload()"
    )
    assert notebook.ok("print(torch.ones(2).sum().item())") == "2.0"
    said = notebook.run(USE)
    assert said.error == "VersionMismatch", said.shown
    assert "2.99.0" in said.shown
    assert len(said.shown.splitlines()) == 1


def process_behind(path):
    """The process that listens at a socket."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(path))
        credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("3i", credentials)[0]


def test_a_private_broker_that_was_killed_is_started_again_with_the_kernel(tmp_path, home):
    private = user_socket()
    with contextlib.closing(Host(tmp_path)) as host:
        notebook = host.notebook(HOME=str(home), JGPU_ADDRESS=f"unix:{private}")
        assert notebook.ok(f"import torch; print({USE})") == "3.0"
        os.kill(process_behind(private), signal.SIGKILL)
        # The executor is a process of its own, and computes until it has noticed.
        lost = until(lambda: notebook.run(USE).error, "the executor's end")
        assert lost in ("DeviceLost", "BrokerUnreachable")
        said = notebook.run(USE)
        assert said.error == "BrokerUnreachable"
        assert "Restart the kernel" in said.shown
        notebook.manager.restart_kernel()
        notebook.connect()
        assert notebook.ok(f"import torch; print({USE})") == "3.0"
        os.kill(process_behind(private), signal.SIGTERM)
