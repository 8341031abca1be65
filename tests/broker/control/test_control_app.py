"""What an administrator writes becomes frozen settings, or one sentence."""

import sys

import pytest

from jgpu.broker.control.configuration.app import JgpuBroker
from jgpu.broker.control.quotas.scopes import Scope
from jgpu.broker.control.quotas.spec import QuotaSpec
from jgpu.broker.systemd import unit_text
from jgpu.cli import main
from jgpu.errors import ConfigError


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """The settings that these words and this configuration file make."""
    monkeypatch.setattr(JgpuBroker, "config_directories", staticmethod(lambda: [tmp_path]))

    def make(*words, config=""):
        (tmp_path / "jgpu_config.py").write_text(config)
        application = JgpuBroker()
        application.initialize(["--spool", str(tmp_path / "spool"), *words])
        return application.settings()

    return make


def test_the_short_options_of_the_command_line(settings, tmp_path):
    made = settings(
        *("--device", "cpu", "--memory", "2G", "--lanes", "3", "--threads", "4"),
        *("--policy", "fifo", "--socket", str(tmp_path / "s"), "--private", "--idle", "15m"),
    )
    assert (made.device, made.private, made.idle_exit_s) == ("cpu", True, 900.0)
    assert made.socket == tmp_path / "s"
    executor = made.executor
    assert (executor.capacity, executor.lanes, executor.threads) == (2 << 30, 3, 4)
    assert executor.policy == "fifo"
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700


def test_the_command_line_has_the_last_word(settings):
    config = "c.JgpuBroker.memory = '1G'\nc.JgpuBroker.lanes = 7\n"
    made = settings("--memory", "2G", config=config)
    assert (made.executor.capacity, made.executor.lanes) == (2 << 30, 7)


def test_a_private_broker_ends_when_unused_and_a_hosts_does_not(settings):
    assert settings("--private").idle_exit_s == 600.0
    assert settings().idle_exit_s == 0.0
    assert settings("--private", "--idle", "0").idle_exit_s == 0.0


def test_the_generated_configuration_explains_and_is_readable(settings, tmp_path, capsys):
    file = tmp_path / "made.py"
    assert main(["broker", "--generate-config", "--config", str(file)]) == 0
    text = file.read_text()
    for name in ("memory", "admin_group", "idle_exit", "max_user_sessions"):
        assert f"# c.JgpuBroker.{name} = " in text
    assert settings("--config", str(file)).executor.lanes == 2
    assert main(["broker", "--generate-config", "--config", str(file)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_the_configuration_is_printed_where_no_file_is_named(capsys):
    assert main(["broker", "--generate-config"]) == 0
    assert "# c.JgpuBroker.memory = " in capsys.readouterr().out


def test_the_broker_listens_where_every_other_command_asks(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("JGPU_ADDRESS", f"unix:{tmp_path}/named.sock")
    assert settings().socket == tmp_path / "named.sock"
    assert settings("--private").socket == tmp_path / "named.sock"
    assert settings("--socket", str(tmp_path / "other")).socket == tmp_path / "other"
    monkeypatch.setenv("JGPU_ADDRESS", "tcp:host")
    with pytest.raises(ConfigError, match="unix:/path"):
        settings()


@pytest.fixture
def root(monkeypatch, tmp_path):
    """What root's brokers make of a system's configuration file, and of root's own."""
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setattr(
        "jgpu.broker.control.configuration.configfiles._SYSTEM_CONFIG", tmp_path / "etc"
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "jupyterhub"))
    monkeypatch.delenv("JGPU_ADDRESS")

    def make(*words, system="", own=""):
        for file, text in (("etc", system), ("config/jgpu", own)):
            (tmp_path / file).mkdir(parents=True, exist_ok=True)
            (tmp_path / file / "jgpu_config.py").write_text(text)
        application = JgpuBroker()
        application.initialize(words)
        return application

    return make


SYSTEMS = """
c.JgpuBroker.lanes = 5
c.JgpuBroker.memory = "3G"
c.JgpuBroker.spool = "/srv/jgpu"
c.JgpuBroker.ledger = "sqlite:////srv/jgpu/usage.sqlite"
c.JgpuBroker.socket_path = "/srv/jgpu/socket"
c.JgpuBroker.record = "/srv/jgpu/record"
c.JgpuBroker.trace = "/srv/jgpu/trace"
"""


def test_a_private_brokers_files_are_in_its_owners_folders_roots_too(root, tmp_path):
    made = root("--private").settings()
    places = (made.socket, made.executor.spool, made.ledger_url.removeprefix("sqlite:///"))
    assert all(str(place).startswith(str(tmp_path / "state")) for place in places), places
    assert (made.executor.record, made.executor.trace) == ("", "")
    assert root().spool == "/var/lib/jgpu"


def test_of_the_systems_file_a_private_broker_takes_all_but_places(root, tmp_path):
    private = root("--private", system=SYSTEMS, own="c.JgpuBroker.lanes = 6").settings()
    assert (private.executor.lanes, private.executor.capacity) == (6, 3 << 30)
    assert "/srv" not in repr(private)
    own = 'c.JgpuBroker.ledger = "postgresql://host/mine"'
    assert root("--private", system=SYSTEMS, own=own).ledger == "postgresql://host/mine"
    named = root("--private", "--spool", "/elsewhere", system=SYSTEMS)
    assert named.spool == "/elsewhere"
    of_host = root(system=SYSTEMS, own="c.JgpuBroker.lanes = 6")
    assert (of_host.lanes, of_host.spool, of_host.record) == (5, "/srv/jgpu", "/srv/jgpu/record")


def test_wrong_settings_end_with_a_sentence(settings, capsys):
    with pytest.raises(SystemExit):
        settings("--memory", "lots")
    assert "'lots' is no size" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        settings("--device", "tpu")
    with pytest.raises(ConfigError, match="no configuration file"):
        settings("--config", "/nowhere/jgpu_config.py")


def test_the_systemd_unit_is_printed_for_this_interpreter(capsys):
    assert main(["broker", "--systemd-unit"]) == 0
    unit = capsys.readouterr().out
    assert unit == unit_text(sys.executable)
    assert "--group jgpu" in unit
    assert "@PYTHON@" not in unit


def test_nothing_in_the_systemd_unit_takes_the_gpu_away(capsys):
    """DevicePolicy is auto, so any device that is allowed by name shuts out all others.

    ProtectClock allows the clock's, in systemd before 253 with nothing else said of devices.
    """
    assert main(["broker", "--systemd-unit"]) == 0
    unit = capsys.readouterr().out
    said = {line.partition("=")[0] for line in unit.splitlines() if not line.startswith("#")}
    assert not said & {"PrivateDevices", "ProtectClock", "DeviceAllow", "DevicePolicy"}
    assert "CapabilityBoundingSet=\n" in unit  # and so nobody there sets the clock


# -- quotas ----------------------------------------------------------------------------------


def test_quotas_and_groups_of_the_configuration(settings, tmp_path):
    made = settings(
        config="c.JgpuBroker.default_quota = {'memory': '2G'}\n"
        "c.JgpuBroker.group_quotas = {'seminar': {'weight': 2}}\n"
        "c.JgpuBroker.user_quotas = {'user1': {'device_seconds': '4h', 'memory': None}}\n"
        "c.JgpuBroker.groups = {'seminar': ['user1', 'user2']}\n"
        "c.JgpuBroker.usage_interval = '1m'\n"
    )
    assert made.quotas.specs == {
        Scope("default"): QuotaSpec(memory=2 << 30),
        Scope("group", "seminar"): QuotaSpec(weight=2.0),
        Scope("user", "user1"): QuotaSpec(device_seconds=14400.0, memory=0),
    }
    assert made.quotas.members == {"seminar": {"user1", "user2"}}
    assert made.usage_interval_s == 60.0
    assert made.ledger_url == f"sqlite:///{tmp_path / 'spool' / 'usage.sqlite'}"


@pytest.mark.parametrize(
    ("config", "line", "said"),
    [
        ("c.JgpuBroker.default_quota = {'weight': 0}", 1, "default_quota['weight']: weight is 0.0"),
        (
            "q = c.JgpuBroker\nq.user_quotas = {\n  'user1': {},\n  'user2': {'memory': -1}}",
            4,
            "user_quotas['user2']['memory']: memory is -1",
        ),
        (
            "c.JgpuBroker.group_quotas = {'a': {}}\n"
            "c.JgpuBroker.group_quotas['a']['sessions'] = 'few'",
            2,
            "group_quotas['a']['sessions']: sessions: 'few' is no number.",
        ),
        ("c.JgpuBroker.user_quotas = {'user1': 5}", 1, "user_quotas['user1']: 5 is no quota"),
        (
            "\nc.JgpuBroker.default_quota = dict(memory='1G', resident='2G')",
            2,
            "default_quota: resident is 2G, above memory, 1G",
        ),
        ("c.JgpuBroker.groups = {'a': 'user1'}", 1, "groups['a']: 'user1' is no list"),
        ("c.JgpuBroker.groups = {'a': [7]}", 1, "groups['a']: 7 is no name."),
        ("c.JgpuBroker.groups = {'': []}", 1, "groups['']: '' is no name."),
        ("c.JgpuBroker.lanes = = 2", 1, "invalid syntax: c.JgpuBroker.lanes = = 2"),
        ("\n\nnothing.at.all = 1", 3, "NameError: name 'nothing' is not defined"),
    ],
)
def test_a_mistake_in_the_configuration_is_a_sentence_with_file_line_and_value(
    settings, tmp_path, config, line, said
):
    with pytest.raises(ConfigError) as caught:
        settings(config=config)
    assert str(caught.value).startswith(f"{tmp_path / 'jgpu_config.py'}, line {line}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_line_that_cannot_be_seen_is_left_out(settings):
    config = "config = vars(c)\nsetattr(c.JgpuBroker, 'default_quota', {'weight': 0})"
    with pytest.raises(ConfigError, match=r"^JgpuBroker\.default_quota\['weight'\]: weight is 0"):
        settings(config=config)


def test_a_ledger_that_cannot_be_is_a_sentence_before_anything_starts(settings):
    with pytest.raises(ConfigError, match="ledger is 'nonsense', which SQLAlchemy cannot use"):
        settings(config="c.JgpuBroker.ledger = 'nonsense'")
    assert settings(config="c.JgpuBroker.ledger = 'sqlite://'").ledger_url == "sqlite://"
