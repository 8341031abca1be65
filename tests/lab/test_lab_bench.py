"""`jgpu bench lab` from end to end, at a size at which its figures say nothing."""

import json

import pytest

from jgpu.bench.live.labpage import CHROMIUM
from jgpu.cli.bench import main

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(200)]

IN_A_BROWSER = {
    "a waiting cell is marked, slowest": 1.0,
    "the status bar says waiting, slowest": 1.0,
    "a kernel's row is gone, slowest": 2.0,
}


@pytest.mark.parametrize("waits", [0, pytest.param(1, marks=pytest.mark.long)])
def test_it_measures_bytes_processor_and_delay(tmp_path, capsys, waits):
    file = tmp_path / "found.json"
    words = [
        "--seconds",
        "1.5",
        "--repeat",
        "1",
        "--kernels",
        "3",
        "--waits",
        str(waits),
        "--json",
        str(file),
    ]
    assert main(["lab", *words]) == 0
    figures = {each["name"]: each for each in json.loads(file.read_text())["figures"]}
    goals = {name: each["goal"] for name, each in figures.items() if each["goal"] is not None}
    seen = {name: goals.pop(name, None) for name in IN_A_BROWSER}
    assert goals == {
        "to a page": 5.0,
        "the server's part of a core": 1.0,
        "a change to the page, slowest": 1.0,
    }
    assert seen == (IN_A_BROWSER if waits and CHROMIUM.exists() else dict.fromkeys(IN_A_BROWSER))
    assert 0 < figures["to a page"]["value"] < figures["the same, before compression"]["value"]
    assert figures["changes a second"]["value"] > 0
    assert "goal" in capsys.readouterr().out
