"""`jgpu.hub.configure`: which spawners may share a GPU, and what it does around their servers."""

import asyncio
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from traitlets.config import Config

import jgpu.hub
from jgpu.errors import ConfigError
from jgpu.hub.isolation import Isolation, class_of, isolation_of
from jgpu.hub.spawning import Hooks
from jgpu.wire.address import Address, ask
from jgpu.wire.messages import AskQuotas
from jgpu.wire.report import decode_quotas


def named(path):
    """A class as another package would have it."""
    module, _, name = path.rpartition(".")
    return type(name, (), {"__module__": module, "__qualname__": name})


class Labelled(LocalProcessSpawner):
    """A site's own."""


# -- who can be told apart -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spawner", "isolation"),
    [
        (LocalProcessSpawner, Isolation.UID),
        (Labelled, Isolation.UID),
        (named("dockerspawner.dockerspawner.DockerSpawner"), Isolation.SOCKET),
        (named("systemdspawner.systemdspawner.SystemdSpawner"), Isolation.UID),
    ],
)
def test_spawners_that_keep_users_apart(spawner, isolation):
    assert isolation_of(spawner, None) is isolation


@pytest.mark.parametrize(
    ("spawner", "said"),
    [
        (SimpleLocalProcessSpawner, "any user could take any other's name"),
        (type("Mine", (SimpleLocalProcessSpawner,), {}), "give uid_of="),
        (named("kubespawner.spawner.KubeSpawner"), "on other machines"),
        (named("site.Spawner"), "is not known here"),
    ],
)
def test_a_uid_shared_without_walls_is_refused_when_the_hub_starts(spawner, said):
    config = Config()
    config.JupyterHub.spawner_class = spawner
    with pytest.raises(ConfigError, match=said):
        jgpu.hub.configure(config)
    jgpu.hub.configure(config, uid_of=lambda spawner: 20001)  # who says it knows, is believed


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, LocalProcessSpawner),
        ("simple", SimpleLocalProcessSpawner),
        ("jupyterhub.spawner.LocalProcessSpawner", LocalProcessSpawner),
        (Labelled, Labelled),
    ],
)
def test_a_spawner_is_found_as_the_hub_finds_it(written, meant):
    assert class_of(written) is meant


@pytest.mark.parametrize("written", ["none.such.Spawner", "jupyterhub.spawner.None_", "nothing"])
def test_a_spawner_that_is_not_there_is_a_sentence(written):
    with pytest.raises(ConfigError, match="There is no spawner"):
        class_of(written)


# -- hooks -----------------------------------------------------------------------------------


@dataclass
class FakeSpawner:
    """As much of a spawner as hooks may look at."""

    user: object
    name: str = ""
    environment: dict = field(default_factory=lambda: {"OWN": "1"})
    read_only_volumes: dict = field(default_factory=lambda: {"/data": "/data"})
    _log_name: str = "user1"
    log: object = field(default_factory=lambda: logging.getLogger("hub"))


def spawner(name="user1", *groups):
    return FakeSpawner(SimpleNamespace(name=name, groups=[SimpleNamespace(name=g) for g in groups]))


def run(hook, spawner):
    asyncio.run(hook(spawner))
    return spawner


def test_hooks_that_were_there_before_are_called_first():
    config, called = Config(), []
    config.JupyterHub.spawner_class = Labelled
    config.Labelled.pre_spawn_hook = lambda spawner: called.append("the site's")
    config.Spawner.pre_spawn_hook = lambda spawner: called.append("hidden by the site's")
    jgpu.hub.configure(config, socket="/none/broker.sock", uid_of=lambda s: called.append("ours"))
    run(config.Labelled.pre_spawn_hook, spawner())
    assert called == ["the site's", "ours"]
    assert "post_stop_hook" in config.Spawner


def test_without_a_broker_the_server_starts_and_its_kernels_are_told_where_it_should_be(
    tmp_path, caplog
):
    hooks = Hooks(Isolation.UID, tmp_path / "broker.sock", tmp_path / "admin.sock", lambda s: 7)
    made = run(hooks.before_start, spawner())
    assert made.environment == {
        "OWN": "1",
        "JUPYTER_DEFAULT_PROVISIONER_NAME": "jgpu-provisioner",
        "JGPU_ADDRESS": f"unix:{tmp_path}/broker.sock",
    }
    assert "user1 has no shared GPU for now: There is no broker at" in caplog.text
    run(hooks.after_stop, made)


def test_nobody_is_named_after_root(tmp_path, caplog):
    hooks = Hooks(Isolation.UID, tmp_path / "b.sock", tmp_path / "a.sock", lambda s: 0)
    run(hooks.before_start, spawner())
    assert "would be root" in caplog.text


def standing(path, user):
    reply = ask(Address(path, "environment"), AskQuotas(user))
    return decode_quotas(reply.json).users[0]


def test_the_broker_knows_a_uid_by_its_hubs_name_and_groups(broker):
    hooks = Hooks(Isolation.UID, broker, broker, lambda spawner: 20001)
    run(hooks.before_start, spawner("user1", "class", "tutors"))
    assert standing(broker, "user1").groups == ("class", "tutors")


def test_a_container_gets_its_servers_socket_where_its_kernels_look_and_loses_it(broker):
    hooks = Hooks(Isolation.SOCKET, Path("/run/jgpu/broker.sock"), broker)
    made = run(hooks.before_start, spawner("user1", "class"))
    (folder,) = (k for k, v in made.read_only_volumes.items() if v == "/run/jgpu")
    assert "broker.sock" in os.listdir(folder)
    assert made.environment["JGPU_ADDRESS"] == "unix:/run/jgpu/broker.sock"
    again = run(hooks.before_start, made)
    assert again.read_only_volumes == {"/data": "/data", folder: "/run/jgpu"}
    run(hooks.after_stop, made)
    assert not Path(folder).exists()
