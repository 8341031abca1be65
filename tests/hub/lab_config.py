"""The configuration of a test's hub; what differs is in the file that TESTS_LAB names."""

import json
import os
from pathlib import Path

from uid_spawner import UidSpawner, uid_of

import jgpu.hub

_LAB = json.loads(Path(os.environ["TESTS_LAB"]).read_text())
_PUBLIC, _HUB, _PROXY = _LAB["ports"]

c = get_config()  # noqa: F821
c.JupyterHub.bind_url = f"http://127.0.0.1:{_PUBLIC}/lab"
c.JupyterHub.hub_port = _HUB
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{_PROXY}"
c.ConfigurableHTTPProxy.should_start = True
c.JupyterHub.cleanup_servers = False
c.JupyterHub.db_url = f"sqlite:///{_LAB['directory']}/hub.sqlite"
c.JupyterHub.cookie_secret_file = f"{_LAB['directory']}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "lesson"
c.Authenticator.allow_all = True
c.Authenticator.allowed_users = set(_LAB["users"])
c.JupyterHub.load_groups = {
    group: {
        "users": [user for user, groups in _LAB["users"].items() if group in groups],
        "properties": _LAB["properties"].get(group, {}),
    }
    for group in sorted({group for groups in _LAB["users"].values() for group in groups})
}
c.JupyterHub.services = [{"name": "tests", "api_token": _LAB["token"]}]
c.JupyterHub.load_roles = [
    {
        "name": "tests",
        "services": ["tests"],
        "scopes": [
            "admin:users",
            "admin:servers",
            "tokens",
            "access:servers",
            "groups",
            "admin:groups",
        ],
    },
]
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.JupyterHub.spawner_class = UidSpawner
c.Spawner.start_timeout = 90
c.Spawner.http_timeout = 90
c.Spawner.env_keep = [
    *c.Spawner.get("env_keep", []),
    "PATH",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "JUPYTERHUB_SINGLEUSER_APP",
    "TESTS_OF_JGPU",
    "VIRTUAL_ENV",
    "LANG",
    "TZ",
]
exec((Path(_LAB["directory"]) / "extra.py").read_text())
jgpu.hub.configure(c, uid_of=uid_of, socket=_LAB["socket"])
