"""The page as a process of its own, between a broker without a device and as much of a hub."""

import tempfile
from pathlib import Path

import pytest
from fake_hub import FakeHub
from page_parts import (
    USERS,
    RunningPage,
    answers,
    free_port,
    open_session,
    start_page,
)
from real_broker import real_broker, until

from jgpu.hub.page.visitors import ADMIN, READ, TUTOR
from jgpu.wire.address import Address, admin_socket


@pytest.fixture(scope="session")
def page_broker():
    """The administrators' address of a broker that all tests of the page share."""
    with tempfile.TemporaryDirectory(prefix="jgpu-") as name:
        directory = Path(name)
        with real_broker(
            directory, "--device", "null", "--spool", f"{name}/spool", private=False
        ) as found:
            yield Address(admin_socket(found.path), "environment")


@pytest.fixture(scope="session")
def page(page_broker):
    """The page, with somebody of each role who may visit it, and three users at work."""
    hub, port = FakeHub(), free_port()
    tokens = {
        "admin1": hub.knows("admin1", ADMIN),
        "reader1": hub.knows("reader1", READ),
        "tutor1": hub.knows("tutor1", TUTOR, groups=["class1"]),
        **{user: hub.knows(user, groups=groups) for user, groups in USERS.items()},
    }
    process = start_page(hub, page_broker, port, "--HubPage.check_seconds=0.2")
    clients = [
        open_session(page_broker, user, groups, number)
        for number, (user, groups) in enumerate(USERS.items())
    ]
    running = RunningPage(hub, page_broker, port, process, tokens)
    try:
        until(lambda: answers(port))
        until(lambda: all(user in running.get().text for user in USERS))
        until(lambda: running.get().text.count("96 MiB</td>") == 2 * len(USERS))
        yield running
    finally:
        for client in clients:
            client.close()
        process.end()
        hub.close()
