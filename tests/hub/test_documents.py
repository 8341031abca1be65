"""The guides are true: what they say of a configuration runs, and the settings they name exist.

The students' cells are run by `tests/e2e/test_students_page.py`, commands by `tests/docs`.
"""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.spawner import LocalProcessSpawner
from traitlets.config import Config

from jgpu.broker.control.configuration.app import JgpuBroker
from jgpu.hub.page.app import HubPage

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs/administration").glob("*.md")),
    *(ROOT / "docs" / name for name in ("commands.md", "start.md", "trust.md")),
]
#: spawners that the guide names and this environment has not
SPAWNERS = {
    "dockerspawner.dockerspawner": "DockerSpawner",
    "systemdspawner.systemdspawner": "SystemdSpawner",
    "site": "PodmanSpawner",
}


@pytest.fixture
def spawners(monkeypatch):
    for path, name in SPAWNERS.items():
        module = ModuleType(path)
        spawner = type(name, (LocalProcessSpawner,), {"__module__": path})
        setattr(module, name, spawner)
        monkeypatch.setitem(sys.modules, path, module)
        top = ModuleType(path.partition(".")[0])
        setattr(top, name, spawner)
        monkeypatch.setitem(sys.modules, top.__name__, top)


def blocks():
    for page in PAGES:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)):
            yield pytest.param(code, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("code", list(blocks()))
def test_what_a_page_says_of_a_configuration_runs(code, spawners):
    config = Config()
    exec(compile(code, "jupyterhub_config.py", "exec"), {"c": config})
    assert config


def test_what_the_guide_says_of_a_configuration_can_be_said_one_after_the_other():
    """The page, the culler, their roles: none takes the place of another."""
    config = Config()
    for code in re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.S):
        exec(compile(code, "jupyterhub_config.py", "exec"), {"c": config})
    hub = JupyterHub(config=config)
    assert {"jgpu", "culler"} <= {service["name"] for service in hub.services}
    roles = {role["name"]: role for role in hub.load_roles}
    assert roles["culler"]["services"] == ["culler"]
    assert roles["jgpu-administrators"]["groups"] == ["teachers"]
    assert "tutors" in hub.load_groups


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_that_a_page_names_exist(page):
    settings = set(re.findall(r"c\.(JgpuBroker|HubPage)\.([a-z_]+)", page.read_text()))
    known = {"JgpuBroker": JgpuBroker.class_trait_names(), "HubPage": HubPage.class_trait_names()}
    assert {(section, name) for section, name in settings if name not in known[section]} == set()
