"""The accelerator and Python take equal runs out of any log.

Both get the same random logs, each with its own buffers. Their results and the remaining entries,
ids, sizes and calls of finalizers are compared. Does not cover the program that is made of a run.
"""

from array import array
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jgpu.device import current
from jgpu.device.geometry import intern
from jgpu.device.recording.cuts import taking
from jgpu.device.tensor import BufferHandle, SettledBuffer

SIZES = st.sampled_from([4, 8, 16, 64])
OFFSETS = st.sampled_from([0, 0, 0, 1, 3, 1 << 40])
NUMBERS = st.one_of(
    st.integers(-3, 3), st.floats(), st.booleans(), st.complex_numbers(), st.just(-0.0)
)
BUFFERS = st.integers(0, 11)  # counted from the last one that there is by then
OPS = st.tuples(
    st.lists(st.tuples(BUFFERS, OFFSETS, SIZES), max_size=4),
    st.lists(SIZES, max_size=3),
    st.lists(NUMBERS, max_size=3),
    st.integers(-1, 400),
)
LOGS = st.fixed_dictionaries(
    {
        "older": st.lists(SIZES, min_size=1, max_size=5),
        "ops": st.lists(OPS, min_size=1, max_size=12),
        "left": st.integers(0, 3),
        "held": st.sets(st.integers(0, 40), max_size=20),
        "switches": st.integers(0, 3),
        "is_known": st.booleans(),
        "in_lists": st.booleans(),
    }
)


FORMS = [(taking.take, taking.settle), (taking.take_in_python, taking.settle_in_python)]

NUMBERED = st.integers(1, 30)
BURIALS = st.fixed_dictionaries(
    {
        "graveyard": st.lists(NUMBERED, max_size=12, unique=True),
        "inputs": st.lists(NUMBERED.filter(lambda each: each < 20), max_size=12, unique=True),
        "live": st.binary(min_size=2, max_size=2),
        "known": st.lists(st.dictionaries(NUMBERED, st.integers(0, 1 << 40)), max_size=4),
    }
)


class World:
    """A log with its own buffers; `held` has those with other references."""

    def __init__(self, log):
        self.graveyard = []
        self.entries = []
        buffers = []
        for number, nbytes in enumerate(log["older"], 1):
            buffers.append(BufferHandle(nbytes, self.graveyard))
            buffers[-1].settle(number)
        sequence = list if log["in_lists"] else tuple
        for ident, (uses, outs, numbers, line) in enumerate(log["ops"], 7):
            geometries = tuple(intern(torch.uint8, (nbytes,), (1,)) for _, _, nbytes in uses)
            plan = SimpleNamespace(ident=ident, geometries=geometries, native=None, ranges=None)
            used = sequence(buffers[-1 - at % len(buffers)] for at, _, _ in uses)
            offsets = sequence(offset for _, offset, _ in uses)
            made = tuple(BufferHandle(nbytes, self.graveyard) for nbytes in outs)
            buffers += made
            self.entries.append((plan, used, offsets, made, sequence(numbers), line))
        self.held = {at: buffers[at] for at in log["held"] if at < len(buffers)}
        self.names = {id(buffer): at for at, buffer in enumerate(buffers)}

    def taken(self, log, form):
        """The run that a form makes of the log, in words that both ways share."""
        take, settle = form
        count = max(1, len(self.entries) - log["left"])
        known, sizes = OrderedDict(), {}
        if log["is_known"]:
            name = taking.take_in_python(self.entries, count, log["switches"], known)[0]
            known[name] = log
        key, program, ids, outputs, params, lines = take(
            self.entries, count, log["switches"], known
        )
        assert (program is log) is log["is_known"]
        left = len(self.entries)
        if program is None:
            assert left == len(log["ops"])
            del self.entries[:count]
        names = [self.names[id(each)] for each in outputs]
        live, nbytes = settle(outputs, len(names), 100, sizes)
        held = {at: (each.id, type(each), each.nbytes) for at, each in self.held.items()}
        forgotten = sorted(self.graveyard)
        self.held.clear()
        self.entries.clear()
        return {
            "key": list(array("q", key)),
            "params": [(type(each), repr(each)) for each in params],
            "run": (ids, names, lines, left),
            "settled": (live, nbytes, sizes, held, outputs),
            "forgotten": (forgotten, sorted(self.graveyard)),
        }


@settings(deadline=None, max_examples=200)
@given(LOGS)
def test_a_run_is_taken_out_alike(log):
    found = World(log).taken(log, FORMS[0])
    assert found == World(log).taken(log, FORMS[1])


def test_what_is_taken_is_what_the_log_says():
    """One log, by hand: a view into an older buffer, one into a new one, and a number."""
    log = {
        "older": [16, 8],
        "ops": [
            ([(0, 0, 8), (1, 4, 8)], [64, 4], [2.0, 1j], 3),
            ([(1, 1, 4), (0, 0, 4), (3, 0, 8)], [4], [], 5),
            ([(0, 0, 4)], [], [7], 9),
        ],
        "left": 1,
        "held": {1, 2},
        "switches": 2,
        "is_known": True,
        "in_lists": False,
    }
    for form in FORMS:
        assert World(log).taken(log, form) == {
            "key": [2, 7, 0, 0, 1, -1, 8, -1, 1, -2, 0, 1, -1],
            "params": [(int, "4"), (float, "2.0"), (tuple, "(0.0, 1.0)"), (int, "0")],
            "run": ((2, 1), [2, 3, 4], [3, 5], 1),
            "settled": (
                b"\x05",
                68,
                {100: 64, 102: 4},
                {1: (2, SettledBuffer, 8), 2: (100, SettledBuffer, 64)},
                [],
            ),
            "forgotten": ([1], [1, 2, 100, 102]),
        }


@pytest.mark.parametrize("form", FORMS)
def test_a_program_that_is_not_known_leaves_the_log_as_it_is(form):
    made = BufferHandle(4, [])
    plan = SimpleNamespace(ident=1, geometries=(), native=None, ranges=None)
    entries = [(plan, (), (), (made,), (), 0)]
    key, program, *_ = form[0](entries, 1, 0, {})
    assert (list(array("q", key)), program, len(entries)) == ([0, 1], None, 1)


def test_the_switches_are_part_of_what_names_a_program():
    x = torch.ones(3, device="cuda")
    (x * 2).sum().item()
    session, hashes = current.session, set()
    for deterministic in (False, True, False, True):
        with torch.backends.cudnn.flags(deterministic=deterministic):
            assert (x * 2).sum().item() == 6
        hashes.add((deterministic, session.outbox.runs[-1][1].compiled.hash))
    assert len(hashes) == 2


@settings(deadline=None, max_examples=200)
@given(BURIALS)
def test_what_was_forgotten_is_told_and_known_no_more_alike(given):
    found = []
    for bury in (taking.bury, taking.bury_in_python):
        graveyard, known = [*given["graveyard"]], ({}, *map(dict, given["known"]))
        known[0].update({number: 8 * number for number in graveyard if number % 3})
        told = bury(graveyard, known, (tuple(given["inputs"]), 20, 11, given["live"]))
        found.append((told, graveyard, known))
    assert found[0] == found[1]


def test_what_was_forgotten_is_an_input_an_output_or_another():
    """One burial, by hand: ids 5 and 9 are inputs, 21 is the run's second output, 3 is older."""
    for bury in (taking.bury, taking.bury_in_python):
        graveyard, sizes, values = [5, 3, 21], {5: 64, 3: 8, 21: 16, 9: 4}, {3: "told", 9: "told"}
        told = bury(graveyard, (sizes, values), ((9, 5), 20, 2, b"\x03"))
        assert told == (b"\x01", b"\x02", (3,), 88)
        assert (graveyard, sizes, values) == ([], {9: 4}, {9: "told"})


def test_a_program_takes_as_many_ops_as_it_has_room_for():
    """By their tensors, results and numbers together; an op that is larger is taken alone."""
    plan = SimpleNamespace(ident=1, geometries=(), native=None, ranges=None)
    most = taking.MOST_REFERENCES

    def entry(made, numbers):
        return plan, (), (), tuple(BufferHandle(4, []) for _ in range(made)), (2,) * numbers, 0

    logs = {
        1: [entry(most, 1), entry(1, 0)],
        2: [entry(most - 2, 1), entry(1, 0), entry(0, 1)],
        3: [entry(1, 1), entry(1, 1), entry(most - 4, 0), entry(0, 1)],
    }
    for form in FORMS:
        for count, entries in logs.items():
            *_, lines = form[0](entries, len(entries), 0, {})
            assert len(lines) == count
            assert len(form[0](entries, 1, 0, {})[5]) == 1
