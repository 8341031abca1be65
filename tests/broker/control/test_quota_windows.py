"""Rolling windows and what follows from them."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from jgpu.broker.control.quotas.budgets import Standing, judge, sentence
from jgpu.broker.control.quotas.ledger.window import Window
from jgpu.broker.control.quotas.spec import BUILT_IN, QuotaSpec, complete

uses = st.lists(st.tuples(st.floats(0, 1e4), st.floats(1e-6, 100)), max_size=30)


def filled(period, entries):
    window = Window(period)
    for at, seconds in sorted(entries):
        window.add(seconds, at)
    window.validate()
    return window


@given(uses, st.floats(1, 5000), st.floats(0, 2e4))
def test_all_that_was_used_within_the_period_counts_and_hardly_more(entries, period, now):
    now = max([now, *(at for at, _ in entries)])
    used = filled(period, entries).used(now)
    within = math.fsum(s for at, s in entries if at > now - period)
    at_most = math.fsum(s for at, s in entries if at >= now - period - 1.001 * period / 128)
    assert within <= used * (1 + 1e-12)
    assert used <= at_most * (1 + 1e-12)


@given(uses, st.floats(1, 5000), st.floats(1e-3, 200))
def test_at_the_time_told_less_than_the_budget_was_used_and_not_before(entries, period, budget):
    now = max([0.0, *(at for at, _ in entries)])
    window = filled(period, entries)
    at = window.below_at(budget, now)
    assert at >= now
    if at > now:
        assert filled(period, entries).used(at - 1e-6 * period) >= budget
    assert window.used(at) < budget


@given(uses, st.floats(1, 5000), st.floats(1, 5000))
def test_another_period_loses_nothing_that_was_used_within_both(entries, period, other):
    now = max([0.0, *(at for at, _ in entries)])
    window = filled(period, entries)
    window.used(now)
    resized = window.resized(other)
    both = min(period, other)
    within = math.fsum(s for at, s in entries if at > now - both)
    assert resized.used(now) >= within * (1 - 1e-12)


def test_a_longer_period_takes_in_what_is_known_of_the_time_before():
    window = Window(128.0)
    window.add(5.0, 1000.5)
    older = [(900.0, 2.0), (999.0, 1.0), (1000.9, 7.0)]
    assert window.resized(1280.0, older).used(1001.0) == 8.0


def test_nothing_used_is_nothing():
    window = Window(10.0)
    window.add(0.0, 5.0)
    assert window.entries() == []
    assert window.below_at(1.0, 7.0) == 7.0


# -- standings -------------------------------------------------------------------------------


def quota(**fields):
    return complete(QuotaSpec(**fields).over(BUILT_IN))


def window(used):
    made = Window(3600.0)
    made.add(used, 10_000.0)
    return made


def test_the_standing_is_what_the_quota_says_of_those_beyond_it():
    for over_budget, standing in {
        "warn": Standing.WARNED,
        "throttle": Standing.THROTTLED,
        "deny": Standing.DENIED,
    }.items():
        spec = quota(device_seconds=10.0, period=3600.0, over_budget=over_budget)
        assert judge(spec, window(9.99), 10_000.0).standing is Standing.WITHIN
        verdict = judge(spec, window(10.0), 10_000.0)
        assert verdict.standing is standing
        assert 13_600.0 < verdict.free_at <= 13_600.0 + 3600.0 / 128


def test_without_a_budget_nobody_is_beyond_it():
    assert judge(quota(), window(1e9), 10_000.0).standing is Standing.WITHIN


def test_the_sentence_carries_used_budget_period_and_when_it_frees_up():
    spec = quota(device_seconds=10.0, period=3600.0, over_budget="deny")
    text = sentence("user1", judge(spec, window(12.345), 10_000.0), 10_000.0)
    assert text.startswith("user1 has used 12.3 of 10 device-seconds that may be used in any 1h.")
    assert "refused" in text
    assert re.search(r"until \d\d:\d\d \(in 60 min\)", text), text


def test_near_and_far_times_are_told_as_people_tell_them():
    verdict = judge(quota(device_seconds=1.0, period=3600.0), window(2.0), 10_000.0)
    assert re.search(r"until \d\d:\d\d:\d\d \(in 82 s\)", sentence("u", verdict, 13_530.0))
    far = judge(quota(device_seconds=1.0, period=7 * 86400.0), window(2.0), 10_000.0)
    assert re.search(r"until \d{4}-\d\d-\d\d \d\d:\d\d", sentence("u", far, 10_000.0 - 6 * 86400))
