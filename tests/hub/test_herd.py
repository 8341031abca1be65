"""A class comes all at once: everybody gets a seat and a session, and a first iteration."""

import grp

import pytest
import walls
from lab import Lab, until
from uid_spawner import GROUP

from jgpu.bench.live.herd import Herd

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

ALONE, TOGETHER = 40, 20
#: of those who share one, as containers without sockets of their own would
SHARED_UID = 29999


def test_sixty_clients_that_come_at_once_are_all_served(needs_lab):
    group = grp.getgrnam(GROUP).gr_gid
    with Lab({}, "--lanes", "1", device="null", hub=False) as lab:
        environ = {"JGPU_ADDRESS": str(lab.address), "JGPU_TICKET": "herd"}
        clients = [
            {"name": f"k{n}", "environ": environ, "group": group}
            | {"uid": 20001 + n if n < ALONE else SHARED_UID}
            for n in range(ALONE + TOGETHER)
        ]
        with Herd(clients, walls.opened([]), lab.environ) as herd:
            herd.arrive()
            report = lab.report()
            assert report.broker.seats == ALONE + TOGETHER
            sessions = [each.user for each in report.sessions]
            assert len(sessions) == ALONE + TOGETHER
            assert sessions.count(f"uid{SHARED_UID}") == TOGETHER
            herd.first_iterations()
            # A value is there before the executor has counted what computed it.
            until(lambda: min(each.iterations for each in lab.report().sessions) >= 1, "counts")
            assert lab.report().broker.refusals == {}
