"""`jgpu.hub.configure`: which spawners may share a GPU, and what it does around their servers."""

import asyncio
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from jupyterhub import orm
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from traitlets.config import Config

import jgpu.hub
from jgpu.errors import ConfigError
from jgpu.hub.greeting import greeting, with_greeting
from jgpu.hub.isolation import Isolation, class_of, isolation_of
from jgpu.hub.mounting import mount
from jgpu.hub.spawning import SERVER_FILES, Hooks
from jgpu.wire.address import Address
from jgpu.wire.asking import ask
from jgpu.wire.limits import MAX_GROUPS
from jgpu.wire.messages import AskQuotas, AskSockets, MakeSocket, RemoveSocket
from jgpu.wire.reports.report import QuotaReport, StandingReport, decode_quotas


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
    assert isolation_of(spawner) is isolation


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


def spawner(name="user1", *groups, db=None):
    user = SimpleNamespace(name=name, db=db)
    user.groups = [SimpleNamespace(name=g, properties={}) for g in groups]
    return FakeSpawner(user)


def hub_database(running=(), ended=()):
    """A hub's own database, with users who have a server that runs, or had one."""
    engine = create_engine("sqlite://")
    orm.Base.metadata.create_all(engine)
    db = Session(engine)
    for name in {*running, *ended}:
        user = orm.User(name=name)
        server = orm.Server() if name in running else None
        db.add_all([user, orm.Spawner(user=user, name="", server=server)])
    db.commit()
    return db


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


def hooks(isolation, users, admin, uid_of=None):
    return Hooks(isolation, Path(users), Path(admin), uid_of, mount)


def test_without_a_broker_the_server_starts_and_its_kernels_are_told_where_it_should_be(
    tmp_path, caplog
):
    made = hooks(Isolation.UID, tmp_path / "broker.sock", tmp_path / "admin.sock", lambda s: 7)
    server = run(made.before_start, spawner())
    assert server.environment == {
        "OWN": "1",
        "JUPYTER_CONFIG_PATH": str(SERVER_FILES),
        "JGPU_ADDRESS": f"unix:{tmp_path}/broker.sock",
    }
    assert "user1 has no shared GPU for now: There is no broker at" in caplog.text
    run(made.after_stop, server)


def test_without_a_broker_a_container_has_the_sentence_with_it(tmp_path):
    made = hooks(Isolation.SOCKET, tmp_path / "broker.sock", tmp_path / "admin.sock")
    server = run(made.before_start, spawner())
    assert server.environment["JGPU_TICKET"] == "none"
    assert "got no part of the GPU: There is no broker at" in server.environment["JGPU_PROBLEM"]


def test_nobody_is_named_after_root(tmp_path, caplog):
    made = hooks(Isolation.UID, tmp_path / "b.sock", tmp_path / "a.sock", lambda s: 0)
    run(made.before_start, spawner())
    assert "would be root" in caplog.text


def standing(path, user):
    reply = ask(Address(path, "environment"), AskQuotas(user))
    return decode_quotas(reply.json).users[0]


def test_the_broker_knows_a_uid_by_its_hubs_name_and_groups(broker):
    made = hooks(Isolation.UID, broker, broker, lambda spawner: 20001)
    run(made.before_start, spawner("user1", "class", "tutors"))
    assert standing(broker, "user1").groups == ("class", "tutors")


def test_a_groups_property_is_its_quota_until_it_is_taken_away(broker, caplog):
    made = hooks(Isolation.UID, broker, broker, lambda spawner: 20001)
    server = spawner("user1", "class", "tutors")
    server.user.groups[1].properties = {"jgpu": {"weight": 2, "memory": "8G"}}
    run(made.before_start, server)
    quota = standing(broker, "user1").quota
    assert (quota.weight, quota.memory) == (2.0, 8 << 30)
    server.user.groups[1].properties = {"jgpu": {"colour": "red"}}
    run(made.before_start, server)
    assert "The property jgpu of group tutors" in caplog.text
    assert "colour" in caplog.text
    assert standing(broker, "user1").quota.weight == 2.0
    server.user.groups[1].properties = {}
    run(made.before_start, server)
    assert standing(broker, "user1").quota.weight == 1.0


def test_a_groups_property_may_be_typed_into_the_hubs_page_for_groups(broker):
    """Which makes a text of whatever is typed."""
    made = hooks(Isolation.UID, broker, broker, lambda spawner: 20001)
    server = spawner("user1", "typed")
    server.user.groups[0].properties = {"jgpu": '{"weight": 3, "memory": "2G"}'}
    run(made.before_start, server)
    quota = standing(broker, "user1").quota
    assert (quota.weight, quota.memory) == (3.0, 2 << 30)
    server.user.groups[0].properties = {"jgpu": ""}
    run(made.before_start, server)
    assert standing(broker, "user1").quota.weight == 1.0


def test_of_too_many_groups_those_with_a_quota_are_sent_and_the_others_logged(broker, caplog):
    made = hooks(Isolation.UID, broker, broker, lambda spawner: 20001)
    names = [f"class{number:04}" for number in range(MAX_GROUPS + 2)]
    server = spawner("user1", *names)
    server.user.groups[-1].properties = {"jgpu": {"weight": 5}}
    run(made.before_start, server)
    assert standing(broker, "user1").groups == (*names[: MAX_GROUPS - 1], names[-1])
    assert standing(broker, "user1").quota.weight == 5.0
    assert f"is in {MAX_GROUPS + 2} groups" in caplog.text
    assert all(name in caplog.text for name in names[MAX_GROUPS - 1 : -1])
    server.user.groups[-1].properties = {}
    run(made.before_start, server)


@pytest.mark.parametrize(
    "said", ["weight=2", "[1]", 3, {f"field{number}": 1 for number in range(40)}]
)
def test_a_groups_property_that_is_no_quota_costs_nothing_but_itself(broker, caplog, said):
    made = hooks(Isolation.UID, broker, broker, lambda spawner: 20001)
    server = spawner("user1", "wrong", "right")
    server.user.groups[0].properties = {"jgpu": said}
    server.user.groups[1].properties = {"jgpu": {"weight": 4}}
    run(made.before_start, server)
    assert "The property jgpu of group wrong" in caplog.text
    assert "has no shared GPU" not in caplog.text
    assert standing(broker, "user1").quota.weight == 4.0
    server.user.groups[1].properties = {}
    run(made.before_start, server)


def test_a_container_gets_its_servers_socket_where_its_kernels_look_and_loses_it(broker):
    made = hooks(Isolation.SOCKET, "/run/jgpu/broker.sock", broker)
    server = run(made.before_start, spawner("user1", "class", db=hub_database(["user1"])))
    (folder,) = (k for k, v in server.read_only_volumes.items() if v == "/run/jgpu")
    assert "broker.sock" in os.listdir(folder)
    assert {"jupyter_server_config.py", "startup.py"} <= set(os.listdir(f"{folder}/jupyter"))
    assert server.environment["JGPU_ADDRESS"] == "unix:/run/jgpu/broker.sock"
    assert server.environment["JUPYTER_CONFIG_PATH"] == "/run/jgpu/jupyter"
    again = run(made.before_start, server)
    assert again.read_only_volumes == {"/data": "/data", folder: "/run/jgpu"}
    run(made.after_stop, server)
    assert not Path(folder).exists()


def test_sockets_of_servers_that_are_gone_are_taken_away_at_the_next_start_of_any(broker, caplog):
    caplog.set_level("INFO")
    made = hooks(Isolation.SOCKET, "/run/jgpu/broker.sock", broker)
    everybody = ("user1", "user2", "user3")
    db = hub_database(running=everybody)
    for name in everybody:
        run(made.before_start, spawner(name, db=db))
    address = Address(broker, "hub")
    ask(address, MakeSocket("user9/", "user9"))  # another hub's
    assert ask(address, AskSockets()).servers == ("user1/", "user2/", "user3/", "user9/")
    # Their spawners crash, and the hub as well: nobody is called, and it begins anew.
    db = hub_database(running=["user1", "user4"], ended=["user2", "user3"])
    made = hooks(Isolation.SOCKET, "/run/jgpu/broker.sock", broker)
    run(made.before_start, spawner("user4", db=db))
    assert ask(address, AskSockets()).servers == ("user1/", "user9/", "user4/")
    assert "The server user2/ is gone; so is its GPU socket now." in caplog.text
    for name in ("user1/", "user4/", "user9/"):
        ask(address, RemoveSocket(name))


# -- systemd -------------------------------------------------------------------------------------

Systemd = named("systemdspawner.systemdspawner.SystemdSpawner")


def systemd(monkeypatch):
    module = ModuleType("systemdspawner.systemdspawner")
    module.SystemdSpawner = Systemd
    monkeypatch.setitem(sys.modules, "systemdspawner", ModuleType("systemdspawner"))
    monkeypatch.setitem(sys.modules, "systemdspawner.systemdspawner", module)
    config = Config()
    config.JupyterHub.spawner_class = "systemdspawner.systemdspawner.SystemdSpawner"
    return config


def test_systemds_servers_get_no_devices_unless_the_site_says_so(monkeypatch):
    config = systemd(monkeypatch)
    jgpu.hub.configure(config)
    assert config.SystemdSpawner.isolate_devices is True
    config = systemd(monkeypatch)
    config.SystemdSpawner.isolate_devices = False
    jgpu.hub.configure(config)
    assert config.SystemdSpawner.isolate_devices is False


def test_users_whose_uid_systemd_chooses_are_known_by_their_socket(monkeypatch):
    assert isolation_of(Systemd, dynamic=True) is Isolation.SOCKET
    server = SimpleNamespace(
        unit_extra_properties={"BindReadOnlyPaths": "/data:/data /a:/run/jgpu"}
    )
    mount(server, "/run/jgpu/servers/1", "/run/jgpu")
    assert server.unit_extra_properties == {
        "BindReadOnlyPaths": "/data:/data /run/jgpu/servers/1:/run/jgpu"
    }


def test_a_spawner_of_containers_that_is_not_known_needs_a_way_to_mount():
    with pytest.raises(ConfigError, match="give mount="):
        mount(SimpleNamespace(), "/a", "/b")
    given = named("site.Spawner")
    assert isolation_of(given, mount=lambda spawner, directory, place: None) is Isolation.SOCKET


# -- what is left --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "used", "said"),
    [
        ({}, 0.0, "Shared GPU: no limits but a fair share."),
        (
            {"device_seconds": 14400.0, "period": 86400.0},
            4500.0,
            "Shared GPU: 2 h 45 min of 4 h of device time left for the last 24 hours.",
        ),
        (
            {"device_seconds": 90.0, "period": 604800.0, "sessions": 2, "memory": 1 << 33},
            80.5,
            "Shared GPU: 9 s of 1 min of device time left for the last 7 days, at most 8 GiB of "
            "its memory, at most 2 notebooks at once.",
        ),
        (
            {"device_seconds": 60.0, "period": 3600.0},
            99.0,
            "0 s of 1 min of device time left for any 1 h",
        ),
    ],
)
def test_what_is_left_is_a_sentence(quota, used, said):
    user = StandingReport(name="user1", quota=QuotaReport(**quota), used_in_period=used)
    assert said in greeting(user)


def test_whoever_is_beyond_their_budget_is_told_that():
    user = StandingReport(name="user1", text="Used up until 18:00.")
    assert greeting(user) == "Shared GPU: Used up until 18:00."


def test_the_hubs_own_progress_follows_whichever_is_first(broker):
    class Server(FakeSpawner):
        async def progress(self):
            yield {"progress": 50, "message": "Spawning server..."}

    made = hooks(Isolation.UID, broker, broker, lambda s: 20001)
    user = spawner().user

    async def listen(server):
        return [event["message"] async for event in server.progress()]

    async def told():
        server = with_greeting(Server)(user)
        listening = asyncio.create_task(listen(server))
        await asyncio.sleep(0)
        await made.before_start(server)
        return [await listening, await listen(server)]

    messages = ["Shared GPU: no limits but a fair share.", "Spawning server..."]
    assert asyncio.run(told()) == [messages, messages]


def test_a_page_that_the_hub_starts_is_given_its_file_of_settings():
    config = Config()
    jgpu.hub.add_page(config, config="/etc/jgpu/page.py", user="jgpu")
    (service,) = config.JupyterHub.services
    assert service["command"][-2:] == ["--config", "/etc/jgpu/page.py"]
    assert service["user"] == "jgpu"
