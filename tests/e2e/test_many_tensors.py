"""Ten times what once ended a session: tensors freed, tensors kept, generators; and a neighbour.

The executor has the host's last core, the two users share the first: two programs that meet on one
core slow each other down whatever they do. So the neighbour is compared with the phase `busy`, in
which the other user computes in plain Python.
"""

import json
import os
import statistics
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from host import Host
from results import write_result

FOLDER = Path(__file__).parent
#: phase, and how many tensors, generators or milliseconds it is of
PHASES = [
    ("busy", 5000),
    ("come_and_go", 100_000),
    ("keep", 500_000),
    ("rest", 3000),
    ("keep", 500_000),
    ("free", 0),
    ("fill", 1_200_000),
    ("free", 0),
    ("draw", 20_000),
]


@contextmanager
def on_core(index):
    """Processes started within run on this one of the host's cores."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(every)[index]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def alone(seconds):
    """The beginning and end of so long a time in which only the neighbour works."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def measured(steps, began, ended):
    """Milliseconds of the steps that lie within: median, 99th percentile, longest."""
    found = sorted((end - begin) * 1e3 for begin, end in steps if begin >= began and end <= ended)
    if not found:
        return {"steps": 0}
    return {
        "steps": len(found),
        "median_ms": round(statistics.median(found), 3),
        "p99_ms": round(found[int(len(found) * 0.99)], 3),
        "longest_ms": round(found[-1], 3),
    }


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_a_neighbour_of_a_million_tensors_trains_on(tmp_path):
    with closing(Host(tmp_path, "cpu", "--lanes", "2", "--memory", "6G")) as host:
        with on_core(-1):
            host.start()
        with on_core(0):
            neighbour = host.program(FOLDER / "steps_beside.py", "user1")
            many = host.program(FOLDER / "many_tensors.py", "user2")
        assert neighbour.line().strip() == "ready"
        assert many.line().strip() == "ready"
        spans = [("alone", *alone(5.0), None)]
        for name, count in PHASES:
            many.stdin.write(f"{name} {count}\n")
            many.stdin.flush()
            said = json.loads(many.line(900))
            spans.append((f"{name} {count}", said["began"], said["ended"], said["result"]))
        many.stdin.close()
        neighbour.stdin.close()
        steps = json.loads(neighbour.line())
    figures = [
        {"phase": name, "seconds": round(ended - began, 2), "result": result}
        | measured(steps, began, ended)
        for name, began, ended, result in spans
    ]
    busy = figures[1]["median_ms"]
    for figure in figures:
        if figure["steps"]:
            figure["times busy"] = round(figure["median_ms"] / busy, 2)
    write_result("many-tensors", {"phases": figures})
    results = [result for *_, result in spans[1:]]
    assert results[1:6] == [2.0, 2.0, 500_000, 2.0, 2.0]
    assert 1_000_000 < results[6] <= 1 << 20
    assert results[7] == 2.0
    assert 400 < results[8] < 600
