"""`auto` never takes the CPU beside a GPU without a word."""

from pathlib import Path

import pytest

from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.executors import supervisor
from jgpu.broker.control.executors.gpus import gpu_is_plugged_in
from jgpu.broker.settings import ExecutorSettings


def adapter(bus, name, kind, vendor):
    (bus / name).mkdir()
    (bus / name / "class").write_text(kind + "\n")
    (bus / name / "vendor").write_text(vendor + "\n")


def test_a_display_adapter_of_the_vendor_is_found_on_the_bus(tmp_path):
    adapter(tmp_path, "0000:00:02.0", "0x030000", "0x8086")
    adapter(tmp_path, "0000:01:00.1", "0x040300", "0x10de")  # its sound
    assert not gpu_is_plugged_in(tmp_path)
    adapter(tmp_path, "0000:01:00.0", "0x030200", "0x10de")
    assert gpu_is_plugged_in(tmp_path)
    assert not gpu_is_plugged_in(tmp_path / "none")


@pytest.mark.parametrize("plugged_in", [True, False])
def test_auto_says_why_it_takes_the_cpu_beside_a_gpu_without_a_driver(
    monkeypatch, caplog, plugged_in
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(supervisor, "gpu_seems_present", lambda: False)
    monkeypatch.setattr(supervisor, "gpu_is_plugged_in", lambda: plugged_in)
    settings = BrokerSettings(
        socket=Path("unused"), device="auto", executor=ExecutorSettings(device="cpu")
    )
    made = supervisor.Supervisor(settings, None)
    assert made.device == "cpu"
    assert ("no NVIDIA driver answers, so the CPU serves" in made.note) is plugged_in
    assert [record.getMessage() for record in caplog.records] == [made.note] * plugged_in
