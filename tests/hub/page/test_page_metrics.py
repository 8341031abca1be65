"""`/metrics`: names that stay, labels that are bounded, and only for those who may read them."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

from page_parts import PREFIX, USERS
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jgpu.hub.page.metrics.collector import Collector, MetricsSettings
from jgpu.hub.page.metrics.tally import Tally
from jgpu.wire.reports.records import EventReport
from jgpu.wire.reports.report import (
    BrokerReport,
    DeviceReport,
    LaneReport,
    LedgerReport,
    MeasuresReport,
    Report,
    SessionReport,
    TimesReport,
    UserReport,
)

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "jgpu.json"


def session(state, iterations=0, device_seconds=0.0, number=1):
    return SessionReport(
        id=number, user="user1", state=state, iterations=iterations, device_seconds=device_seconds
    )


def report(*sessions, users=(), measures=None, refusals=None):
    device = DeviceReport(
        name="a device",
        kind="null",
        lanes=(LaneReport(id=0, running=1),),
        measures=measures or MeasuresReport(),
    )
    return Report(
        broker=BrokerReport(seats=3, refusals=refusals or {}),
        devices=(device,),
        sessions=sessions,
        users=users,
        ledger=LedgerReport(unwritten_rows=2),
    )


def exported(found, **settings):
    """Samples by name and labels."""
    source = SimpleNamespace(report=found, problem="")
    registry = CollectorRegistry()
    registry.register(Collector(source, {"refusal": 2}, MetricsSettings(**settings)))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_executors_counted_is_told_by_bound():
    times = TimesReport(bounds=(0.1, 1.0), counts=(2, 0, 3), seconds=8.5)
    measures = MeasuresReport(
        spills=4, restores=3, spilled_bytes=400, restored_bytes=300, waits=times, programs=times
    )
    found = exported(report(measures=measures))
    for name in ("jgpu_wait_seconds", "jgpu_program_seconds"):
        buckets = {
            dict(labels)["le"]: value
            for (each, *labels), value in found.items()
            if each == f"{name}_bucket"
        }
        assert buckets == {"0.1": 2, "1": 2, "+Inf": 5}
        assert found[f"{name}_sum", ("device", "a device")] == 8.5
        assert found[f"{name}_count", ("device", "a device")] == 5
    assert found["jgpu_iteration_seconds_count", ("device", "a device")] == 0  # an older broker
    device = ("device", "a device")
    assert found["jgpu_moves_total", device, ("kind", "spill")] == 4
    assert found["jgpu_moves_total", device, ("kind", "restore")] == 3
    assert found["jgpu_moved_bytes_total", device, ("kind", "spill")] == 400
    assert found["jgpu_moved_bytes_total", device, ("kind", "restore")] == 300


def test_refusals_are_told_by_reason():
    found = exported(report(refusals={"quota_exceeded": 3}))
    assert found["jgpu_refusals_total", ("reason", "quota_exceeded")] == 3


def test_events_are_counted_once_and_not_those_of_before():
    tally = Tally()
    tally.take([EventReport(id=7, kind="refusal")])
    assert set(tally.counts.values()) == {0}
    newer = [EventReport(id=n, kind=k) for n, k in ((9, "spill"), (8, "claim"), (7, "refusal"))]
    tally.take(newer)
    tally.take(newer)
    tally.take([EventReport(id=10, kind="of a newer broker")])
    assert {kind: count for kind, count in tally.counts.items() if count} == {
        "spill": 1,
        "claim": 1,
    }
    assert tally.newest == 10


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
    source = SimpleNamespace(report=report(), problem="It has ended.")
    registry = CollectorRegistry()
    registry.register(Collector(source, {}, MetricsSettings()))
    text = generate_latest(registry).decode()
    assert "jgpu_up 0.0" in text
    assert "jgpu_sessions" not in text


def test_the_dashboard_asks_for_what_is_exported():
    users = [UserReport(name="user1", groups=("class1",), device_seconds=1.0)]
    found = exported(report(session("running"), users=users, refusals={"fault": 1}))
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
            for each in ("wait", "iteration", "program")
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
