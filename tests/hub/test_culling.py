"""Idle servers are culled as they would be without a shared GPU, and give everything back.

Whether or not their JupyterLab shows the GPU: a tab that nobody looks at asks for nothing.
"""

import json
import sys

import processes
import pytest
import websocket
from lab import DEADLINE_S, Lab, until

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

USERS = {"user1": [], "user2": []}
IDLE_S = 12
OFF = """
c.Spawner.args = ["--ServerApp.jpserver_extensions={'jgpu.labserver': False}"]
"""
SCOPES = """
c.JupyterHub.load_roles.append({
    "name": "culler", "services": ["tests"],
    "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
})
"""


def activity(lab):
    """When the hub last saw something of each server, while it is up; one that ends has no such."""
    servers = {user: lab.server(user) for user in USERS}
    return {user: each["last_activity"] for user, each in servers.items() if each and each["ready"]}


def look(lab, user):
    """Open a page that shows the GPU, as JupyterLab does, and hide it once it has been told."""
    where = f"{lab.url.replace('http', 'ws', 1)}/user/{user}/jgpu/api/watch"
    headers = {"Authorization": f"token {lab.token_of(user)}"}
    page = websocket.create_connection(where, header=headers, timeout=DEADLINE_S)
    told = json.loads(page.recv())["state"]
    page.close()
    return told


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shown", [False, True], ids=["extension off", "extension on"])
def test_a_server_that_holds_a_share_of_the_gpu_is_culled_like_one_that_does_not(shown, needs_lab):
    with Lab(USERS, extra=SCOPES + ("" if shown else OFF)) as lab:
        lab.start_servers(*USERS)
        shared, plain = (lab.kernel(user) for user in USERS)
        shared.ok("import torch; kept = torch.ones(1000, device='cuda'); kept.sum().item()")
        plain.ok("import torch; torch.ones(1000).sum().item()")
        if shown:
            assert [len(look(lab, user)["kernels"]) for user in USERS] == [1, 0]
        else:
            token = lab.token_of("user1")
            assert lab.request_as(token, "user1", "/jgpu/api/state").status_code == 404
        for kernel in (shared, plain):
            kernel.close()
        before = activity(lab)
        iterations = lab.sessions()["user1"].iterations
        culler = [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={IDLE_S}"]
        culler += ["--cull-every=1", f"--url={lab.url}/hub/api"]
        with lab.log("culler").open("wb") as log:
            process = processes.start(
                culler,
                stdout=log,
                stderr=log,
                env=lab.environ | {"JUPYTERHUB_API_TOKEN": lab.token},
            )
        seen = []
        until(lambda: seen.append(activity(lab)) or not seen[-1], "both servers' end")
        process.end()
        # Nobody moved either server's activity: not a session that is open, nor one that watches.
        assert {each["user1"] for each in seen if "user1" in each} == {before["user1"]}
        assert {each["user2"] for each in seen if "user2" in each} == {before["user2"]}
        until(lambda: not lab.sessions(), "the session's end")
        until(lambda: lab.report().devices[0].used_bytes == 0, "its memory's return")
        (user,) = lab.report().users
        assert (user.name, user.ended_sessions) == ("user1", 1)
        assert iterations > 0
