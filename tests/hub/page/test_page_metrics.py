"""`/metrics`: names that stay, labels that are bounded, and only for those who may read them."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from page_parts import PREFIX, USERS
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jgpu.hub.page.figures import Figures, Histogram
from jgpu.hub.page.metrics import Collector, MetricsSettings
from jgpu.wire.records import EventReport
from jgpu.wire.report import (
    BrokerReport,
    DeviceReport,
    LaneReport,
    LedgerReport,
    Report,
    SessionReport,
    UserReport,
)

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "jgpu.json"


def session(state, iterations=0, device_seconds=0.0, number=1):
    return SessionReport(
        id=number, user="user1", state=state, iterations=iterations, device_seconds=device_seconds
    )


def report(*sessions, users=()):
    device = DeviceReport(name="a device", kind="null", lanes=(LaneReport(id=0, running=1),))
    return Report(
        broker=BrokerReport(seats=3),
        devices=(device,),
        sessions=sessions,
        users=users,
        ledger=LedgerReport(unwritten_rows=2),
    )


def exported(found, figures=None, **settings):
    """Samples by name and labels."""
    link = SimpleNamespace(report=found, problem="", figures=figures or Figures())
    registry = CollectorRegistry()
    registry.register(Collector(link, MetricsSettings(**settings)))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_waits_are_counted_when_they_are_over():
    figures = Figures()
    for state, now in (("idle", 0), ("waiting", 1), ("waiting", 2), ("running", 3.5)):
        figures.take(report(session(state)), now)
    assert dict(figures.waits.buckets) == {
        "0.1": 0, "0.3": 0, "1": 0, "3": 1, "10": 1, "30": 1, "100": 1, "300": 1, "1000": 1,
        "+Inf": 1,
    }  # fmt: skip
    assert figures.waits.sum == 2.5
    figures.take(report(), 9)  # its session has ended
    figures.take(report(session("waiting")), 10)
    assert figures.waits.sum == 2.5


def test_iterations_between_two_reports_count_with_their_mean():
    figures = Figures()
    figures.take(report(session("running", 100, 5.0)), 0)
    figures.take(report(session("running", 110, 5.2)), 1)
    assert dict(figures.iterations.buckets)["0.03"] == 10
    assert dict(figures.iterations.buckets)["0.01"] == 0
    assert figures.iterations.sum == pytest.approx(0.2)
    figures.take(report(session("running", 0, 0.0)), 2)  # a new broker counts from the beginning
    assert figures.iterations.sum == pytest.approx(0.2)


def test_a_value_at_a_bound_is_not_above_it():
    histogram = Histogram((1.0, 2.0))
    histogram.add(1.0)
    histogram.add(2.5, 3)
    assert histogram.buckets == [("1", 1.0), ("2", 1.0), ("+Inf", 4.0)]


def test_events_are_counted_once_and_not_those_of_before():
    figures = Figures()
    figures.take_events([EventReport(id=7, kind="refusal")])
    assert figures.events["refusal"] == 0
    newer = [EventReport(id=n, kind=k) for n, k in ((9, "spill"), (8, "quota"), (7, "refusal"))]
    figures.take_events(newer)
    figures.take_events(newer)
    assert {kind: count for kind, count in figures.events.items() if count} == {"spill": 1}


def test_groups_beyond_the_first_are_one_and_users_have_no_names():
    users = [
        UserReport(name=f"user{n}", groups=(f"g{n}",), device_seconds=1.0 + n) for n in range(4)
    ]
    found = exported(report(users=users), groups=2)
    groups = {key[1][1]: value for key, value in found.items() if key[0].startswith("jgpu_group")}
    assert groups == {"g0": 1.0, "g1": 2.0, "(others)": 7.0}
    assert not [key for key in found if "user0" in str(key)]
    named = exported(report(users=users), users=True)
    assert named["jgpu_user_device_seconds_total", ("user", "user3")] == 4.0


def test_a_broker_that_does_not_answer_is_down_and_nothing_else_is_told_of_it():
    link = SimpleNamespace(report=report(), problem="It has ended.", figures=Figures())
    registry = CollectorRegistry()
    registry.register(Collector(link, MetricsSettings()))
    text = generate_latest(registry).decode()
    assert "jgpu_up 0.0" in text
    assert "jgpu_sessions" not in text


def test_the_dashboard_asks_for_what_is_exported():
    users = [UserReport(name="user1", groups=("class1",), device_seconds=1.0)]
    found = exported(report(session("running"), users=users))
    names, labels = {key[0] for key in found}, {}
    for name, *pairs in found:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [(each["expr"], each["legendFormat"]) for p in panels for each in p["targets"]]
    asked = {name for query, _ in queries for name in re.findall(r"jgpu_\w+", query)}
    assert asked <= names
    # What is not asked for: sums and counts of histograms, and whether the device is ready.
    assert names - asked <= {
        "jgpu_device_ready",
        *(
            f"jgpu_{each}_seconds_{part}"
            for each in ("wait", "iteration")
            for part in ("sum", "count")
        ),
    }
    for query, legend in queries:
        for name in re.findall(r"jgpu_\w+", query):
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels[name], query
            assert set(re.findall(name + r"\{(\w+)=", query)) <= labels[name], query


# -- the page itself ---------------------------------------------------------------------------


def test_a_program_of_this_host_reads_them_and_nobody_behind_a_proxy(page):
    answer = page.request("GET", "metrics")
    assert answer.status == 200
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    memory = {s.labels["kind"]: s.value for s in families["jgpu_memory_bytes"].samples}
    assert sum(memory.values()) == 3 * (128 << 20), memory  # wherever other tests have had it go
    assert 'jgpu_group_device_seconds_total{group="class1"}' in answer.text
    assert not [user for user in USERS if user in answer.text]
    for header in ("X_Forwarded_For", "X_Real_Ip", "Forwarded"):
        assert page.request("GET", "metrics", **{header: "127.0.0.1"}).status == 403
    assert PREFIX not in answer.text
