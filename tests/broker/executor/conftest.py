"""Executor processes for the tests: one of each kind for all, others on demand."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "programs"))

import pytest
from client import Executor


@pytest.fixture(scope="session")
def cpu():
    with Executor("cpu", lanes=2, threads=1, capacity=1 << 30) as executor:
        yield executor


@pytest.fixture(scope="session")
def null():
    with Executor("null", capacity=1 << 30) as executor:
        yield executor


@pytest.fixture(scope="session", params=["cpu", "null"])
def either(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def connect(cpu):
    """Sessions on `cpu` that are closed at the end."""
    opened = []

    def open_one(user="user1", **adopt):
        opened.append(cpu.connect(user, **adopt))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()
        cpu.ended(client.session)
