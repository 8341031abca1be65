"""A Jupyter server as a process of its own, at a broker without a device; and a browser."""

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "broker" / "control"))
sys.path.append(str(Path(__file__).parents[1] / "hub" / "page"))
sys.path.append(str(Path(__file__).parents[1] / "kernelprovider"))

import pytest
from lab_server import Lab, start_lab
from real_broker import real_broker

from jgpu.wire.address import Address, admin_socket
from jgpu.wire.asking import ask
from jgpu.wire.messages import MakeSocket


@pytest.fixture(scope="module")
def browser():
    """Debian's; asyncio cannot be used while it is open, so each module has its own."""
    from jupyter_pages import chromium

    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def lab_broker():
    """The administrators' address of a host's broker."""
    with tempfile.TemporaryDirectory(prefix="jgpu-") as name:
        directory = Path(name)
        options = ("--device", "null", "--spool", f"{name}/spool")
        with real_broker(directory, *options, private=False) as found:
            yield Address(admin_socket(found.path), "environment")


@pytest.fixture(scope="session")
def socket_of(lab_broker):
    """The address that a user's server has: whoever comes there is that user."""

    def of(user):
        path = ask(lab_broker, MakeSocket(f"{user}/", user), 15).path
        return Address(Path(path), "environment")

    return of


@pytest.fixture(scope="session")
def lab(socket_of, tmp_path_factory):
    """The server of user1."""
    address = socket_of("user1")
    made: Lab
    with start_lab(tmp_path_factory.mktemp("lab"), JGPU_ADDRESS=str(address)) as made:
        made.broker = address
        yield made
