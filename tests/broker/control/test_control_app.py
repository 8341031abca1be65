"""What an administrator writes becomes frozen settings, or one sentence."""

import sys

import pytest

from jgpu.broker.control.app import JgpuBroker
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
    for name in ("memory", "administrators", "idle_exit", "max_user_sessions"):
        assert f"# c.JgpuBroker.{name} = " in text
    assert settings("--config", str(file)).executor.lanes == 2
    assert main(["broker", "--generate-config", "--config", str(file)]) == 1
    assert "exists already" in capsys.readouterr().err


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
