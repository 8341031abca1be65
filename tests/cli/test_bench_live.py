"""Each benchmark of sharing from end to end, at sizes too small for its figures to count."""

import json

import pytest

from jgpu.cli.bench import main

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

#: what each prints at least, by the beginning of the figures' names
CASES = {
    "fairness": (["--users", "2"], ["off equal", "off 2:1", "latecomer", "Jain"]),
    "switch": (["--notebooks", "3"], ["overloaded: p99", "native, two", "overloaded p99 / native"]),
    "round-trip": (
        [],
        ["idle host: median", "all cores busy: median", "bound of", "beside 3 users: p99 / bound"],
    ),
    "interactive": (["--notebooks", "2"], ["fair: p95", "interactive: p95"]),
    "throughput": (["--notebooks", "2"], ["jgpu / native, one thread", "jgpu / native, default"]),
    "memory": (
        ["--sessions", "4", "--few", "1", "--width", "64", "--kept-mb", "4", "--reclaim-mb", "16"],
        ["sessions that ran", "bytes of models", "reclaim", "restore"],
    ),
    "waiting": (
        ["--sessions", "3", "--width", "64", "--kept-mb", "4", "--iterations", "5"],
        ["sessions that finished", "sessions whose tensors are equal"],
    ),
    "first-iterations": (
        ["--jobs", "2", "--iterations", "40", "--first", "10"],
        ["mean time to 10 iterations", "all jobs over"],
    ),
}
#: benchmarks that take half a minute each
LONGEST = {"fairness", "switch", "interactive", "throughput", "first-iterations"}
#: figures whose goals hold at any size: no session fails, no byte is lost
ALWAYS = ("sessions that", "sessions whose", "bytes of models")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in LONGEST else pytest.mark.slow)
        for name in CASES
    ],
)
def test_a_benchmark_measures_and_tells_whether_the_goal_is_met(name, tmp_path, capsys):
    options, wanted = CASES[name]
    file = tmp_path / "found.json"
    common = ["--seconds", "0.8", "--repeat", "1", "--target-ms", "5", "--json", str(file)]
    assert main([name, *common, *options]) == 0
    found = json.loads(file.read_text())
    names = [figure["name"] for figure in found["figures"]]
    for beginning in wanted:
        assert any(each.startswith(beginning) for each in names), (beginning, names)
    assert all(
        figure["met"]
        for figure in found["figures"]
        if figure["goal"] is not None and figure["name"].startswith(ALWAYS)
    )
    assert "goal" in capsys.readouterr().out
