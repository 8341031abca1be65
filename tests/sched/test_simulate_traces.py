"""Tables as text: what is read, and the sentence for what cannot be."""

import pytest

from jgpu.errors import ConfigError
from jgpu.sched.simulate import traces
from jgpu.sched.simulate.jobs import JobMemory
from jgpu.sched.simulate.traces import read_jobs, read_table

HEAD = "arrival_s,duration_s,iterations"


def refused(*lines):
    """The sentence about a trace."""
    with pytest.raises(ConfigError) as caught:
        read_jobs(lines, "trace.csv")
    return str(caught.value)


def test_a_trace_of_three_columns_is_enough():
    first, second = read_jobs([HEAD, "0,10,100", "", "5,1,1"], "trace.csv")
    assert (first.name, first.user, first.arrival_s, first.service_s) == ("job 1", "user1", 0, 10)
    assert first.cells[0].iterations == 100
    assert (second.name, second.arrival_s) == ("job 2", 5)


def test_further_columns_say_more_and_unknown_ones_nothing():
    head = f"{HEAD},name,user,load,resident_bytes,kept_bytes,transient_bytes,host_s,startup_s,x"
    (job,) = read_jobs([head, "0,10,100,train,user2,0.5,1,2,3,0.01,4,ignored"], "trace.csv")
    assert (job.name, job.user, job.load, job.startup_s) == ("train", "user2", 0.5, 4)
    assert job.memory == JobMemory(1, 2, 3)
    assert job.cells[0].host_s == 0.01


def test_what_is_wrong_is_said_with_file_line_and_value():
    assert refused() == "trace.csv, line 1: there is nothing in it below the names of the columns."
    assert refused("a,b", "1,2") == (
        "trace.csv, line 1: the first line names the columns, and 'arrival_s' is not among 'a, b'."
    )
    assert refused(HEAD, "1,2") == (
        "trace.csv, line 2: 3 values belong here (arrival_s, duration_s, iterations), but the line "
        "has 2: '1,2'."
    )
    assert refused(HEAD, "1,ten,3") == (
        "trace.csv, line 2: duration_s is 'ten', which is not a number."
    )
    assert refused(HEAD, "1,2,3", "-1,2,3") == (
        "trace.csv, line 3: arrival_s is '-1', which must be between 0 and 1e+18."
    )
    assert "duration_s is 'nan', which must be between" in refused(HEAD, "1,nan,3")
    assert "iterations is '1.5', which is not a whole number" in refused(HEAD, "1,2,1.5")
    assert "name is ' ', which may not be empty" in refused(f"{HEAD},name", "1,2,3, ")
    assert "this line has 20000" in refused(HEAD, "1" * 20_000)


def test_a_table_has_a_bound(monkeypatch):
    monkeypatch.setattr(traces, "MOST_ROWS", 2)
    with pytest.raises(ConfigError, match=r"trace.csv, line 3: a table has at most 2 lines"):
        read_table([HEAD, "0,1,1", "0,1,1"], "trace.csv", ())
