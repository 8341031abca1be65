"""Class lists: what is written is read again, and an error says where it is."""

import contextlib
import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgpu.errors import ConfigError
from jgpu.hub.page.people.classlist import BadCell, read_list, write_list
from jgpu.hub.page.people.settings import moment_of
from jgpu.wire.reports.report import ScopeReport, StandingReport

NOW = 1_800_000_000.0
SAID = st.fixed_dictionaries(
    {},
    optional={
        "weight": st.sampled_from([0.5, 1.0, 2.0]),
        "memory": st.integers(0, 1 << 42),
        "device_seconds": st.floats(0.001, 1e7).map(lambda value: round(value, 3)),
        "sessions": st.integers(0, 99),
        "priority": st.sampled_from(["interactive", "normal", "batch"]),
    },
)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30
)


def written(said, until=0.0):
    people = [StandingReport(name=name, groups=("class1",)) for name in said]
    return "".join(
        write_list(
            people,
            [
                ScopeReport(scope=f"user:{name}", source="live", settings=own, until=until)
                for name, own in said.items()
                if own
            ],
        )
    )


@given(st.dictionaries(NAMES, SAID, max_size=5))
def test_a_list_that_is_sent_back_says_what_it_said(said):
    """Values are texts that the broker reads; here they are read as numbers again."""
    from jgpu.broker.control.quotas.spec import read_setting

    lines = read_list(written(said), NOW)
    found = {
        line.setting.scope.removeprefix("user:"): {
            name: read_setting(name, text) for name, text in line.setting.values.items()
        }
        for line in lines
    }
    assert found == {name: values for name, values in said.items() if values}


@given(NAMES)
def test_no_cell_is_a_formula(name):
    for row in csv.reader(io.StringIO(written({name: {}}))):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)


def test_a_minute_is_kept():
    text = written({"user1": {"weight": 2.0}}, NOW + 3600)
    (line,) = read_list(text, NOW)
    assert 0 <= NOW + 3600 - line.setting.until < 60


def test_who_has_something_for_good_and_for_a_time_has_a_line_for_each():
    scopes = [
        ScopeReport(scope="user:user1", source="live", settings={"weight": 4.0}, until=NOW + 3600),
        ScopeReport(scope="user:user1", source="configuration", settings={"sessions": 1}),
        ScopeReport(scope="user:user1", source="live", settings={"weight": 2.0, "memory": 1 << 30}),
    ]
    lines = read_list("".join(write_list([StandingReport(name="user1")], scopes)), NOW)
    assert [line.setting.values for line in lines] == [
        {"weight": "2", "memory": "1G"},
        {"weight": "4"},
    ]
    assert [line.setting.until > NOW for line in lines] == [False, True]


def test_what_is_taken_out_is_taken_out_for_good():
    (line,) = read_list("user,weight,memory,until\nuser1,2,-,2h\n", NOW)
    assert line.setting.parts == [((("memory", ""),), 0.0), ((("weight", "2"),), NOW + 7200)]


def test_empty_cells_leave_and_a_dash_takes_out():
    text = "number,USER,weight,memory,until\n17,user1,,-,\n18,user2,,,2h\n\n"
    (line,) = read_list(text, NOW)
    assert line.setting.scope == "user:user1"
    assert line.setting.values == {"memory": ""}


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, "1"),
        ("name,weight\nuser1,2\n", 1, "1"),
        ("user,weight,weight\n", 1, "weight"),
        ("user,weight\nuser1,2,3\n", 2, "3"),
        ("user,weight\nuser1,2\n\nuser1,3\n", 4, "user"),
        ("user,weight\n,2\n", 2, "user"),
        ("user,weight,until\nuser1,2,soon\n", 2, "until"),
        ("user,weight,until\nuser1,2,2001-01-01\n", 2, "until"),
        ('user,weight\n"user1,2\n', 2, "1"),
        ("user,weight\nuser\x001,2\n", 2, "user"),
    ],
)
def test_an_error_says_where_it_is(text, line, column):
    with pytest.raises(BadCell, match="Nothing was changed") as caught:
        read_list(text, NOW)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffuser;weight;memory\r\nuser1;2;4G\r\n;;\r\n",
        "user\tweight\tmemory\nuser1\t2\t4G\n",
        '"Name, first";"User";weight;memory\n"Doe, Jane";user1;2;4G\n',
        "user,weight,memory\r\nuser1,2,4G,,\r\n,,,,,\r\n",
    ],
)
def test_what_spreadsheets_write_is_read(text):
    (line,) = read_list(text, NOW)
    assert line.setting.scope == "user:user1"
    assert line.setting.values == {"weight": "2", "memory": "4G"}


@pytest.mark.parametrize(
    ("cell", "user"), [("'=1+1", "=1+1"), ("=1+1", "=1+1"), ("'n", "'n"), ("''n", "'n"), ("'", "'")]
)
def test_a_quote_that_keeps_a_spreadsheet_from_a_formula_is_no_part_of_the_name(cell, user):
    (line,) = read_list(f"user,weight\n{cell},2\n", NOW)
    assert line.setting.scope == f"user:{user}"


@given(st.text(max_size=200))
def test_anything_is_read_or_refused(text):
    with contextlib.suppress(BadCell):
        read_list("user,weight,until\n" + text, NOW)


@pytest.mark.parametrize(
    ("text", "moment"), [("", 0.0), ("90m", NOW + 5400), ("2h", NOW + 7200), ("3d", NOW + 259200)]
)
def test_times_from_now(text, moment):
    assert moment_of(text, NOW) == moment


def test_a_date_is_this_hosts():
    assert moment_of("2027-02-01 18:00", NOW) == moment_of("2027-02-01T18:00", NOW) > NOW
    for text in ("tomorrow", "2h30", "-1h", "2026-02-30"):
        with pytest.raises(ConfigError, match="is no time"):
            moment_of(text, NOW)
    with pytest.raises(ConfigError, match="is over"):
        moment_of("2026-01-01", NOW)
