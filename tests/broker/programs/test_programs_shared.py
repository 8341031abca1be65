"""What identities share: its limits, and who makes room."""

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jgpu.broker.executor.programs.shared import EVERYBODY, SharedEntries


def key(number):
    return number.to_bytes(16, "big")


def filled(entries, owner, numbers, nbytes=1):
    for number in numbers:
        entries.add(key(number), owner, f"{owner} {number}", nbytes)


def kept(entries, numbers, asker):
    return [number for number in numbers if entries.get(key(number), asker) is not None]


@pytest.mark.parametrize("limits", [(64, 1 << 40), (1 << 40, 64)])
def test_whoever_brings_ten_thousand_entries_makes_room_with_their_own(limits):
    entries = SharedEntries(*limits)
    filled(entries, "b", range(8))
    filled(entries, "a", range(100, 10_100))
    assert len(entries) == 64
    assert kept(entries, range(8), "b") == list(range(8))
    assert entries.held("a") == 56
    assert kept(entries, range(100, 10_100), "a") == list(range(10_044, 10_100))
    entries.validate()


def test_what_two_have_asked_for_is_everybodys_and_stays():
    entries = SharedEntries(64, 1 << 40)
    filled(entries, "a", range(60))
    assert kept(entries, range(40), "b") == list(range(40))
    assert (entries.held("a"), entries.held(EVERYBODY)) == (20, 40)
    filled(entries, "a", range(100, 1000))
    assert kept(entries, range(40), "c") == list(range(40))
    assert entries.held("a") == 24


def test_without_anybody_who_holds_much_the_oldest_of_the_largest_heap_goes():
    entries = SharedEntries(64, 1 << 40)
    filled(entries, "a", range(57))
    kept(entries, range(57), "b")
    for person in range(7):
        filled(entries, f"person {person}", [100 + person])
    filled(entries, "late", [200])
    assert kept(entries, range(57), "b") == list(range(1, 57))
    assert kept(entries, [200], "late") == [200]


def test_one_entry_that_is_too_large_is_not_kept_beside_others():
    entries = SharedEntries(64, 100)
    filled(entries, "a", range(3), 10)
    filled(entries, "b", [9], 1000)
    assert kept(entries, range(10), "b") == [0, 1, 2]


class Entries(RuleBasedStateMachine):
    """Owners come and ask in any order: the sums hold, and whoever holds much makes room."""

    def __init__(self):
        super().__init__()
        self.entries = SharedEntries(24, 400)
        self.number = 0

    owners = strategies.sampled_from("abc")

    @rule(owner=owners, nbytes=strategies.integers(1, 60))
    def add(self, owner, nbytes):
        self.number += 1
        small = {each for each in set("abc") - {owner} if self.little(each)}
        before = {each: self.entries.held(each) for each in small}
        self.entries.add(key(self.number), owner, self.number, nbytes)
        if self.entries.held(owner) * 8 > 400 and len(self.entries) < 23:
            assert before == {each: self.entries.held(each) for each in small}

    def little(self, owner):
        return self.entries.held(owner) * 8 <= 400

    @rule(asker=owners, back=strategies.integers(0, 40))
    def get(self, asker, back):
        number = self.number - back
        found = self.entries.get(key(max(0, number)), asker)
        assert found in (None, number)

    @invariant()
    def sound(self):
        self.entries.validate()


TestEntries = Entries.TestCase
TestEntries.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
