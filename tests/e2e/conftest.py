"""Hosts for the tests: one per module for those that leave it as it was, or one of their own."""

import contextlib

import pytest
from host import Host


@pytest.fixture(scope="module")
def module_host(tmp_path_factory):
    """A host with a broker that serves from the CPU in one lane, so that sessions take turns."""
    directory = tmp_path_factory.mktemp("host")
    with contextlib.closing(Host(directory, "cpu", "--lanes", "1")) as made:
        yield made.start()


@pytest.fixture
def host(module_host):
    """The module's host; what the test starts there is ended, and its memory free, afterwards."""
    yield module_host
    module_host.leave()


@pytest.fixture
def own_host(tmp_path):
    """A host whose broker the test may kill."""
    with contextlib.closing(Host(tmp_path)) as made:
        yield made.start()
