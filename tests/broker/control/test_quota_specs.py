"""Quotas: what can be written, what cannot, and which of several counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgpu.broker.control.quotas.groups import Groups, unix_groups
from jgpu.broker.control.quotas.scopes import QuotaSettings, Scope, Scopes, most_generous
from jgpu.broker.control.quotas.spec import (
    BUILT_IN,
    FIELDS,
    OVER_BUDGET,
    PRIORITIES,
    QuotaSpec,
    complete,
    make_spec,
    read_setting,
    show,
)
from jgpu.errors import ConfigError

DEFAULT, USER = Scope("default"), Scope("user", "user1")

limits = st.one_of(st.just(0), st.integers(1, 1 << 50))
specs = st.builds(
    lambda **found: QuotaSpec.of_parts({k: v for k, v in found.items() if v is not None}),
    weight=st.none() | st.floats(0.001, 1000),
    memory=st.none() | limits,
    resident=st.none() | limits,
    device_seconds=st.none() | st.just(0.0) | st.floats(0.001, 1e9),
    period=st.none() | st.floats(1, 86400 * 366),
    sessions=st.none() | limits,
    priority=st.none() | st.sampled_from(PRIORITIES),
    over_budget=st.none() | st.sampled_from(OVER_BUDGET),
)


def sentence(settings):
    with pytest.raises(ConfigError) as caught:
        make_spec(settings)
    return str(caught.value)


def test_a_spec_is_read_as_people_write_it():
    spec = make_spec(
        {
            "weight": "2",
            "memory": "4G",
            "resident": 1 << 30,
            "device_seconds": "2h",
            "period": "1d",
            "sessions": 3,
            "priority": "Interactive",
            "over_budget": "deny",
        }
    )
    assert spec == QuotaSpec(
        weight=2.0,
        memory=4 << 30,
        resident=1 << 30,
        device_seconds=7200.0,
        period=86400.0,
        sessions=3,
        priority="interactive",
        over_budget="deny",
    )
    assert complete(spec).shown() == {
        "weight": "2",
        "memory": "4G",
        "resident": "1G",
        "device_seconds": "2h",
        "period": "1d",
        "sessions": "3",
        "priority": "interactive",
        "over_budget": "deny",
    }


def test_none_is_no_limit():
    spec = make_spec({"memory": None, "resident": "none", "sessions": "unlimited"})
    assert (spec.memory, spec.resident, spec.sessions) == (0, 0, 0)
    assert spec.items() == [("memory", 0), ("resident", 0), ("sessions", 0)]


@given(specs)
def test_what_is_shown_is_read_again_as_the_same(spec):
    for name, value in spec.items():
        again = read_setting(name, show(name, value))
        assert again == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": 0}, "weight is 0"),
        ({"weight": "-1"}, "weight is -1.0; it must be from 0.001 to 1000."),
        ({"weight": math.nan}, "weight is nan"),
        ({"weight": "nan"}, "weight is nan"),
        ({"weight": "inf"}, "weight is inf"),
        ({"weight": True}, "True is no number"),
        ({"weight": "heavy"}, "weight: 'heavy' is no number."),
        ({"memory": 0}, "memory is 0; it must be above 0, or none for no limit."),
        ({"memory": "0"}, "memory is '0'"),
        ({"memory": -1}, "memory is -1; it must be above 0"),
        ({"memory": "lots"}, "memory: 'lots' is no size; write it like 512M or 2G."),
        ({"memory": math.inf}, "memory: inf is no whole number"),
        ({"memory": 1e300}, "memory is"),
        ({"resident": "4G", "memory": "2G"}, "resident is 4G, above memory, 2G"),
        ({"device_seconds": -5}, "device_seconds is -5.0"),
        ({"device_seconds": math.nan}, "device_seconds is nan"),
        ({"device_seconds": "0s"}, "device_seconds is '0s'; it must be above 0"),
        ({"device_seconds": "soon"}, "'soon' is no time"),
        ({"period": 0.5}, "period is 0.5; it must be from 1 second to 366 days."),
        ({"period": "400d"}, "period is"),
        ({"period": None}, "None is no number"),
        ({"sessions": 1.5}, "1.5 is no whole number"),
        ({"sessions": "none of your business"}, "is no number"),
        ({"priority": "urgent"}, "'urgent'; it can be interactive, normal, batch."),
        ({"priority": 1}, "1 is no word"),
        ({"over_budget": "kill"}, "'kill'; it can be warn, throttle, deny."),
        ({"speed": 1}, "no 'speed' in a quota; there is weight, memory"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence_with_field_and_value(settings, said):
    assert said in sentence(settings)


@pytest.mark.parametrize("text", ["", "user", "user:", "default:x", "host:x", ":x"])
def test_a_scope_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="is no scope"):
        Scope.parse(text)


@pytest.mark.parametrize("text", ["default", "group:students", "user:a:b"])
def test_scopes_are_written_as_they_are_read(text):
    assert str(Scope.parse(text)) == text


# -- which one counts ------------------------------------------------------------------------


@given(specs, specs, specs)
def test_the_more_specific_scope_wins_field_by_field(user, group, default):
    settings = QuotaSettings(
        specs={USER: user, Scope("group", "g"): group, DEFAULT: default},
    )
    quota = Scopes(settings).quota("user1", ["g"])
    for name in FIELDS:
        layers = [getattr(spec, name) for spec in (user, group, default, BUILT_IN)]
        said = next(value for value in layers if value is not None)
        if name == "period" and user.period is None and group.device_seconds is not None:
            said = group.period or default.period or BUILT_IN.period
        if name == "resident" and quota.memory:
            assert quota.resident in (said, quota.memory)
            assert quota.resident <= quota.memory
        else:
            assert getattr(quota, name) == said


@given(specs, specs)
def test_what_was_set_live_stands_above_the_configuration(live, configured):
    scopes = Scopes(QuotaSettings(specs={USER: configured}))
    scopes.set_live(USER, dict(live.items()))
    assert scopes.spec(USER) == live.over(configured)
    scopes.set_live(USER, dict.fromkeys(FIELDS))
    assert scopes.spec(USER) == configured
    assert scopes.live == {}


@given(st.lists(specs, max_size=4), st.floats(1, 1e6), st.randoms())
def test_of_several_groups_the_most_generous_counts_whatever_their_order(said, period, chance):
    best = most_generous(said, period)
    shuffled = list(said)
    chance.shuffle(shuffled)
    assert most_generous(shuffled, period) == best
    for spec in said:
        if spec.weight is not None:
            assert best.weight >= spec.weight
        for name in ("memory", "sessions"):
            if getattr(spec, name) is not None:
                assert not getattr(best, name) or getattr(best, name) >= getattr(spec, name) > 0
        if spec.priority is not None:
            assert PRIORITIES.index(best.priority) <= PRIORITIES.index(spec.priority)
        if spec.device_seconds:
            rate = spec.device_seconds / (spec.period or period)
            assert not best.device_seconds or best.device_seconds / best.period >= rate
        if spec.device_seconds == 0:
            assert best.device_seconds == 0


def test_a_budget_is_never_mixed_of_two_groups():
    short = make_spec({"device_seconds": 60, "period": "1h"})
    long = make_spec({"device_seconds": 600, "period": "1d"})
    best = most_generous([short, long], 86400.0)
    assert (best.device_seconds, best.period) == (60.0, 3600.0)


def test_nothing_said_is_the_built_in_quota():
    assert Scopes(QuotaSettings()).quota("user1", ["anything"]) == complete(BUILT_IN)


def test_live_settings_that_contradict_each_other_are_refused_and_change_nothing():
    scopes = Scopes(QuotaSettings())
    scopes.set_live(USER, {"memory": 1 << 30})
    with pytest.raises(ConfigError, match="above memory"):
        scopes.set_live(USER, {"resident": 2 << 30})
    assert scopes.live == {USER: QuotaSpec(memory=1 << 30)}


def test_scopes_are_listed_from_the_widest_to_the_narrowest_with_their_origin():
    scopes = Scopes(
        QuotaSettings(specs={USER: QuotaSpec(weight=2), DEFAULT: QuotaSpec(sessions=4)})
    )
    scopes.set_live(USER, {"sessions": 9})
    scopes.set_live(Scope("group", "b"), {"weight": 3})
    assert [(str(scope), origin) for scope, origin, _, _ in scopes.listed()] == [
        ("default", "configuration"),
        ("group:b", "live"),
        ("user:user1", "configuration"),
        ("user:user1", "live"),
    ]
    assert scopes.groups == {"b"}
    assert scopes.users == {"user1"}
    assert scopes.longest_period == 86400.0


def test_a_hub_stands_between_the_configuration_and_what_was_set_live():
    group = Scope("group", "a")
    scopes = Scopes(QuotaSettings(specs={group: QuotaSpec(weight=2, sessions=2, priority="batch")}))
    scopes.set_hub(group, QuotaSpec(weight=3, sessions=3))
    scopes.set_live(group, {"weight": 4})
    assert scopes.spec(group) == QuotaSpec(weight=4, sessions=3, priority="batch")
    assert [said.source for said in scopes.listed()] == ["configuration", "hub", "live"]
    scopes.set_hub(group, QuotaSpec(memory=1))
    assert scopes.spec(group) == QuotaSpec(weight=4, memory=1, sessions=2, priority="batch")
    scopes.set_hub(group, QuotaSpec())
    assert scopes.hub == {}
    assert scopes.spec(group) == QuotaSpec(weight=4, sessions=2, priority="batch")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["weight", "sessions", "period"]),
            st.integers(1, 9) | st.none(),
            st.sampled_from([0.0, 10.0, 20.0, 30.0]),
        ),
        max_size=8,
    ),
    st.sampled_from([5.0, 10.0, 15.0, 25.0, 35.0]),
)
def test_what_counts_is_what_was_set_last_until_it_ends_and_then_what_was_set_for_good(steps, now):
    scopes, lasting, timed = Scopes(QuotaSettings()), {}, {}
    for name, value, until in steps:
        scopes.set_live(USER, {name: value}, until)
        timed.pop(name, None)
        if until and value is not None:
            timed[name] = value, until
        else:
            lasting[name] = value
    ended = scopes.end_timed(now)
    assert sorted((said.until, *row) for said in ended for row in said.spec.items()) == sorted(
        (until, name, value) for name, (value, until) in timed.items() if until <= now
    )
    alive = {name: value for name, (value, until) in timed.items() if until > now}
    found = {name: value for name, value in (lasting | alive).items() if value is not None}
    assert dict(scopes.spec(USER).items()) == found
    assert scopes.next_end == min((u for _, u in timed.values() if u > now), default=math.inf)
    assert scopes.end_timed(now) == []


# -- groups ----------------------------------------------------------------------------------


def test_groups_are_those_of_the_configuration_and_of_the_host():
    asked = []

    def look_up(user):
        asked.append(user)
        return frozenset({"staff"})

    groups = Groups({"students": frozenset({"user1", "user2"})}, look_up)
    assert groups.of("user1") == {"students"}
    assert not groups.is_fresh("user1", 0.0)
    groups.refresh("user1", 0.0)
    assert groups.of("user1") == {"students", "staff"}
    assert groups.is_fresh("user1", 299.0)
    assert not groups.is_fresh("user1", 300.0)
    assert groups.of("user2") == {"students"}
    assert asked == ["user1"]


def test_the_hosts_groups_of_a_user_are_those_that_the_host_says():
    assert "root" in unix_groups("root")
    assert unix_groups("no such user") == frozenset()
    assert unix_groups("with\0zero") == frozenset()
