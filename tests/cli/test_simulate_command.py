"""`jgpu simulate`, each kind from end to end at a small size, and what bad input gets."""

import io
import json
import sys
from xml.etree import ElementTree

import pytest

from jgpu.cli import main
from jgpu.errors import ConfigError
from jgpu.sched import events
from jgpu.sched.reports.recording import EventRecorder
from jgpu.simulate.chart import Chart, Line
from jgpu.simulate.classroom import size
from jgpu.simulate.report import numbers


@pytest.fixture
def simulate(tmp_path, capsys):
    """Run the command; returns its JSON, having checked the rest of what it writes."""

    def run(*words, plot=True):
        report, picture = tmp_path / "report.json", tmp_path / "picture.svg"
        drawn = ["--plot", str(picture)] if plot else []
        assert main(["simulate", *words, "--json", str(report), *drawn]) == 0
        out = capsys.readouterr().out
        assert "Left out:" in out
        if plot:
            assert ElementTree.parse(picture).getroot().tag.endswith("svg")
        return json.loads(report.read_text())

    return run


@pytest.fixture
def refused(capsys):
    """Run the command; returns the one sentence with which it was refused."""

    def run(*words):
        assert main(["simulate", *words]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return run


def rows(report, table=0, key=None):
    """The rows of a table, by the value of their first column."""
    found = report["tables"][table]["rows"]
    return {row[key or next(iter(row))]: row for row in found}


SALUS = ["salus", "--calibrated", "1", "--uncalibrated", "2", "--grain", "60"]
SALUS += ["--coarse-grain", "60", "--other-sigmas", "2", "--grains", "100"]


def test_salus_stands_beside_the_published_table(simulate):
    report = simulate(*SALUS)
    fifo = rows(report)["fifo"]
    for ours, theirs in (("makespan", 303.4), ("queue", 167.6), ("JCT", 170.6), ("p95 JCT", 251.1)):
        assert fifo[f"{ours} Salus"] == theirs
        assert fifo[ours] == pytest.approx(theirs, rel=0.03)
    assert rows(report)["srtf"]["JCT"] < fifo["JCT"] / 3
    assert len(report["tables"]) == 6


def test_the_same_seed_gives_the_same_figures(simulate):
    quick = [*SALUS[:9], "--other-sigmas", ""]
    assert simulate(*quick) == simulate(*quick)
    assert simulate(*quick, "--seed", "2")["tables"] != simulate(*quick)["tables"]


def test_a_spread_that_no_trace_fits_is_refused(refused, monkeypatch):
    monkeypatch.setattr("jgpu.simulate.published.salus._PATIENCE", 3)
    assert "only 0 of 3 traces are like Salus'" in refused(*SALUS, "--sigma", "0.1")


@pytest.mark.parametrize(("words", "jobs"), [((), 30), (("--folded",), 60)])
def test_tiresias_runs_all_policies(simulate, words, jobs):
    report = simulate("tiresias", "--grain", "20", *words)
    assert f"{jobs} jobs" in report["simulation"]
    found = rows(report)
    assert found["srtf"]["JCT"] < found["fifo"]["JCT"]


def test_packing_gains_where_gandiva_gains_and_never_loses(simulate, refused):
    report = simulate("gandiva-packing", "--seconds", "8", plot=False)
    for model, row in rows(report).items():
        gain, theirs = float(row["ours"].split()[0]), float(row["Gandiva"].split()[0])
        assert gain > -1, model
        if theirs > 0:
            assert theirs * 0.6 < gain < theirs * 1.05, model
    said = refused("gandiva-packing", "--seconds", "1", "--plot", "x.svg")
    assert "nothing to draw" in said


def test_inference_adds_more_under_more_load(simulate):
    words = ("--loads", "0.1,0.5,0.8", "--requests", "20", "--policies", "fair")
    report = simulate("inference", *words)
    means = [row["fair mean"] for row in report["tables"][0]["rows"]]
    assert means == sorted(means)
    assert 0.1 < report["load_at_5_ms"]["fair"] < 0.8
    report = simulate("inference", "--loads", "0.05", "--requests", "5", "--policies", "fifo")
    assert report["load_at_5_ms"] == {"fifo": None}


def test_trials_beat_one_after_the_other(simulate):
    report = simulate("hyperparameters", "--trials", "16", plot=False)
    found = rows(report)
    assert found["superres_128"]["ours x"] > 2.38
    assert found["resnet50_50"]["ours x"] > 1.07
    words = ("--trials", "16", "--host-factor", "1.83")
    slower = simulate("hyperparameters", *words, plot=False)
    assert rows(slower)["superres_128"]["ours x"] < found["superres_128"]["ours x"]


@pytest.mark.parametrize("arrivals", ["uniform", "poisson", "bursts"])
def test_a_class_is_told_waits_fairness_and_memory(simulate, arrivals):
    words = [
        "--students",
        "6",
        "--cells",
        "2",
        "--iterations",
        "50",
        "--think-s",
        "2",
        "--arrive-s",
        "2",
        "--spread",
        "0.5",
    ]
    report = simulate("class", *words, "--arrivals", arrivals, "--policies", "fair,fifo,las")
    cells, whole = rows(report), rows(report, 1)
    assert set(cells) == set(whole) == {"fair", "fifo", "las"}
    assert cells["fair"]["p95 x"] >= 1
    assert whole["fair"]["Jain"] is None or 0 < whole["fair"]["Jain"] <= 1
    assert len(report["cells"]["fair"]) == 12


def test_a_class_that_needs_more_memory_than_there_is_spills(simulate):
    words = [
        "--students",
        "6",
        "--cells",
        "2",
        "--iterations",
        "60",
        "--think-s",
        "1",
        "--arrive-s",
        "1",
        "--gpu-memory",
        "2G",
    ]
    report = simulate("class", *words, "--kept-bytes", "500M", "--transient-bytes", "500M")
    assert rows(report, 1)["fair"]["spilled"] > 0
    assert len(report["cells"]["fair"]) == 12


SMALL = ["--students", "4", "--cells", "2", "--iterations", "40", "--think-s", "1"]
SMALL += ["--arrive-s", "1", "--policies", "fair"]


def test_a_class_is_told_how_many_students_there_can_be(simulate):
    words = ("--sizes", "0.5,2,100", "--slowdown", "2.5")
    report = simulate("class", *SMALL, *words, "--model-bytes", "1G", "--transient-bytes", "100M")
    sizes = rows(report, 2)
    assert list(sizes) == ["2", "4", "8", "400"]
    assert sizes["400"]["fits"] == "models do not fit"
    assert sizes["400"]["p95 x"] is None
    told = [sizes[count]["p95 x"] for count in ("2", "4", "8")]
    assert told == sorted(told)
    assert sizes["4"]["p95 x"] == pytest.approx(rows(report)["fair"]["p95 x"])
    good = [count for count in ("2", "4", "8") if sizes[count]["p95 x"] <= 2.5]
    assert [sizes[count]["fits"] for count in ("2", "4", "8")].count("yes") == len(good)
    assert any(f"{good[-1]} students are the most of these" in said for said in report["findings"])


def test_a_class_that_is_too_slow_at_any_size_is_told_so(simulate):
    report = simulate("class", *SMALL, "--slowdown", "0.5", "--sizes", "")
    assert list(rows(report, 2)) == ["4"]
    assert any(said.startswith("in none of these classes") for said in report["findings"])


def test_grading_as_batch_costs_a_class_little_and_counts_apart(simulate):
    words = [*SMALL, "--iterations", "200", "--sizes", ""]
    without = rows(simulate("class", *words))["fair"]
    report = simulate("class", *words, "--grading", "5")
    beside = rows(report)["fair"]
    assert len(report["cells"]["fair"]) == 8
    assert without["mean"] < beside["mean"] < 1.5 * without["mean"]
    assert any(said.startswith("5 submissions are graded after") for said in report["findings"])


def test_a_large_class_is_simulated_in_longer_iterations(simulate, monkeypatch):
    monkeypatch.setattr("jgpu.simulate.students._MOST_ITERATIONS", 100)
    report = simulate(
        "class", *["--students", "4", "--cells", "1", "--iterations", "100", "--think-s", "1"]
    )
    assert any("times longer" in each for each in report["assumes"])


def test_scale_measures_decisions(simulate):
    report = simulate("scale", "--sessions", "1,4", "--devices", "2", "--events", "1000")
    assert [row["sessions"] for row in report["tables"][0]["rows"]] == [1, 4, 4]
    words = ("--sessions", "100", "--devices", "2", "--most-on-one", "50", "--events", "1000")
    report = simulate("scale", *words)
    assert [row["devices"] for row in report["tables"][0]["rows"]] == [2]


TRACE = "arrival_s,duration_s,iterations\n0,10,100\n1,1,10\n"


def test_a_trace_of_ones_own(simulate, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    found = rows(simulate("trace", str(path), "--policies", "fifo,srtf"))
    assert found["fifo"]["JCT"] == pytest.approx(10)
    assert found["srtf"]["JCT"] < 6.1
    found = rows(simulate("trace", str(path), "--grain", "0.5"))
    assert found["fifo"]["JCT"] == pytest.approx(10)


def test_traces_that_make_no_sense_are_refused(refused, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE + "2,x,1\n")
    assert refused("trace", str(path)) == (
        f"jgpu simulate: {path}, line 4: duration_s is 'x', which is not a number.\n"
    )
    path.write_text("arrival_s,duration_s,iterations,kept_bytes\n0,1,1,1e12\n")
    assert "job 1 needs 0 + 1000000000000 + 0 bytes" in refused("trace", str(path))
    path.write_bytes(b"\xff\xfe")
    assert "cannot be read" in refused("trace", str(path))
    assert "cannot be read" in refused("trace", str(tmp_path / "none.csv"))
    path.write_text(TRACE)
    assert "There is no scheduling policy 'best'" in refused("trace", str(path), "--policies=best")
    assert "cannot be written" in refused("trace", str(path), "--json", str(tmp_path))


def recording(path, *told):
    """Write a recording of one session on one lane."""
    sink = io.StringIO()
    recorder = EventRecorder(sink, "fair")
    recorder.note(events.LanesConfigured(1, 1000), 100.0)
    recorder.note(events.SessionOpened(1, "user1"), 100.0)
    for now, event in told:
        recorder.note(event, now)
    path.write_text(sink.getvalue())
    return str(path)


def test_a_recording_is_played_again(simulate, tmp_path):
    work = events.WorkArrived(1, 1, (events.Segment(0.01, 0),), True)
    told = [
        (100.5, events.CellStarted(1)),
        (100.5, work),
        (100.6, events.SegmentsFinished(0, 1, 1, 1, 0.09)),
        (100.7, events.CellEnded(1)),
        (100.8, events.PolicyChanged("fifo")),
    ]
    path = recording(tmp_path / "run.jsonl", *told)
    report = simulate("replay", path, "--policies", "fifo", "--lanes", "2", "--memory", "1G")
    found = rows(report)
    assert found["recorded"]["mean"] == pytest.approx(0.2)
    assert found["simulated, fair"]["mean"] == pytest.approx(0.2)
    assert found["fifo, 2 lanes"]["mean"] == pytest.approx(0.2)
    assert report["differences"]["mean"] == pytest.approx(0, abs=1e-6)
    assert "agree within 10 %" in report["findings"][0]
    assert "policy was changed" in report["findings"][1]
    assert "fair, 2 lanes" in rows(simulate("replay", path, "--lanes", "2"))


def test_recordings_that_make_no_sense_are_refused(refused, tmp_path):
    path = recording(tmp_path / "run.jsonl")
    assert "no cell in it ended" in refused("replay", path)
    with open(path, "a") as file:
        file.write('{"at": 101, "event": "Boom"}\n')
    assert refused("replay", path) == (
        f"jgpu simulate: {path}, line 4: event is 'Boom', which is no event that there is.\n"
    )
    assert "cannot be read" in refused("replay", str(tmp_path / "none"))


def test_a_class_that_cannot_be_is_refused(refused):
    assert "One notebook needs" in refused("class", "--transient-bytes", "20G")
    assert "1000 models need" in refused("class", "--students", "1000")


@pytest.mark.parametrize(
    "words",
    [
        ("class", "--students", "none"),
        ("class", "--students", "0"),
        ("class", "--gpu-memory", "much"),
        ("salus", "--grains", "a,b"),
        ("salus", "--grains", "0"),
        ("nothing",),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *words])
    assert caught.value.code == 2
    assert "jgpu simulate" in capsys.readouterr().err


def test_sizes_and_lists():
    assert (size("1.5G"), size("7"), size("2K")) == (3 * 2**29, 7, 2048)
    assert numbers("1,2.5") == (1.0, 2.5)
    assert numbers("") == ()


def test_a_chart_of_one_value_has_axes_and_names_are_text(tmp_path):
    chart = Chart([("<t>", "x", "y", [Line("$a$", [(0.0, 5.0)])])])
    chart.draw(tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_text()
    assert "&lt;t&gt;" in text
    assert "$a$" in text
    ElementTree.fromstring(text)
    chart.draw(tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    chart = Chart([("t", "x", "y", [Line("a", [(0.0, 5.0)])])])
    with pytest.raises(ConfigError, match="cannot be written"):
        chart.draw(tmp_path / "none/one.svg")
    with pytest.raises(ConfigError, match="cannot be written"):
        chart.draw(tmp_path / "one.docx")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'jgpu\[plot\]'"):
        chart.draw(tmp_path / "one.svg")
