"""Shared memory for tensor bytes: what is accepted from a client, and the ring of uploads."""

import fcntl
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jgpu.errors import ProtocolError
from jgpu.wire.arena import Arena, Ring

SIZE = 1 << 16
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.fixture
def arena():
    made = Arena.create(SIZE)
    yield made
    made.close()


@pytest.fixture
def memory_file():
    """Makes memory files of a size, with seals; closes them."""
    made = []

    def make(size, seals=SIZE_SEALS, flags=os.MFD_ALLOW_SEALING):
        made.append(os.memfd_create("test", flags))
        os.ftruncate(made[-1], size)
        if seals:
            fcntl.fcntl(made[-1], fcntl.F_ADD_SEALS, seals)
        return made[-1]

    yield make
    for descriptor in made:
        os.close(descriptor)


def descriptors():
    return set(os.listdir("/proc/self/fd"))


# -- sealed memory -------------------------------------------------------------------------------


def test_a_new_arena_cannot_change_its_size_or_its_seals(arena):
    assert os.fstat(arena.descriptor).st_size == arena.size == SIZE
    for size in (0, SIZE - 1, SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert not os.get_inheritable(arena.descriptor)


def test_both_ends_see_the_same_bytes_in_each_half(arena):
    other = Arena.adopt(os.dup(arena.descriptor), SIZE)
    arena.upload(8, 3)[:] = b"abc"
    other.download(0, 2)[:] = b"xy"
    assert bytes(other.upload(8, 3)) == b"abc"
    assert bytes(arena.download(0, 2)) == b"xy"
    assert bytes(arena.memory[arena.half : arena.half + 2]) == b"xy"
    other.close()


def test_the_halves_have_ends(arena):
    assert len(arena.upload(arena.half - 4, 4)) == 4
    assert len(arena.download(SIZE - arena.half - 4, 4)) == 4
    assert len(arena.upload(arena.half, 0)) == 0
    for offset, count in ((arena.half - 3, 4), (0, arena.half + 1), (1 << 60, 1)):
        with pytest.raises(ProtocolError, match="past the end of the arena's upload half"):
            arena.upload(offset, count)
        with pytest.raises(ProtocolError, match="past the end of the arena's download half"):
            arena.download(offset, count)


def test_an_arena_that_cannot_be_made_leaves_no_descriptor():
    before = descriptors()
    with pytest.raises(OSError, match="Invalid argument"):
        Arena.create(-1)
    assert descriptors() == before


def test_a_view_keeps_the_mapping_of_a_closed_arena_as_long_as_it_lives():
    before = descriptors()
    arena = Arena.create(SIZE)
    view = arena.upload(0, 4)
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(arena.descriptor)
    view[:] = b"safe"
    assert bytes(view) == b"safe"
    del view, arena
    assert descriptors() == before


# -- what a client may hand over -----------------------------------------------------------------


def test_any_memory_file_with_a_sealed_size_is_accepted(memory_file):
    arena = Arena.adopt(os.dup(memory_file(4096)), 4096)
    assert (arena.size, arena.half, arena.ring.size) == (4096, 2048, 2048)
    arena.close()


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL])
def test_a_memory_file_whose_size_may_change_is_refused(memory_file, seals):
    with pytest.raises(ProtocolError, match="size is not sealed"):
        Arena.adopt(memory_file(SIZE, seals), SIZE)


def test_a_memory_file_that_takes_no_seals_is_refused(memory_file):
    with pytest.raises(ProtocolError, match="size is not sealed"):
        Arena.adopt(memory_file(SIZE, 0, flags=0), SIZE)


@pytest.mark.parametrize("size", [0, 4095, (4 << 30) + 4096])
def test_a_size_that_no_arena_has_is_refused(memory_file, size):
    with pytest.raises(ProtocolError, match=f"has {size} bytes where {size} were announced"):
        Arena.adopt(memory_file(size), size)


@pytest.mark.parametrize("announced", [0, SIZE - 1, SIZE + 1, 1 << 62])
def test_another_size_than_was_announced_is_refused(memory_file, announced):
    with pytest.raises(ProtocolError, match=f"has {SIZE} bytes where {announced} were announced"):
        Arena.adopt(memory_file(SIZE), announced)


def test_a_memory_file_that_may_not_be_written_is_refused(memory_file):
    sealed = memory_file(SIZE, SIZE_SEALS | fcntl.F_SEAL_WRITE)
    with pytest.raises(ProtocolError, match="cannot be mapped"):
        Arena.adopt(sealed, SIZE)
    readable = os.open(f"/proc/self/fd/{memory_file(SIZE)}", os.O_RDONLY)
    try:
        with pytest.raises(ProtocolError, match="cannot be mapped"):
            Arena.adopt(readable, SIZE)
    finally:
        os.close(readable)


def test_what_is_no_memory_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    reading, writing = os.pipe()
    file = os.open(path, os.O_RDWR)
    try:
        for descriptor in (reading, writing, file):
            with pytest.raises(ProtocolError, match=r"not sealed|not a sealed memory file"):
                Arena.adopt(descriptor, SIZE)
    finally:
        for descriptor in (reading, writing, file):
            os.close(descriptor)
    with pytest.raises(ProtocolError, match="not a sealed memory file"):
        Arena.adopt(reading, SIZE)


# -- the ring ------------------------------------------------------------------------------------


def test_a_ring_gives_space_in_order_and_starts_again_at_its_beginning():
    ring = Ring(10)
    assert ring.reserve(6) == (0, 6)
    assert ring.reserve(5) is None
    assert ring.reserve(4) == (6, 10)
    assert ring.reserve(1) is None
    ring.release(6)
    assert ring.reserve(7) is None
    assert ring.reserve(6) == (0, 16)


def test_what_does_not_fit_before_the_end_skips_it():
    ring = Ring(10)
    assert ring.reserve(4) == (0, 4)
    assert ring.reserve(3) == (4, 7)
    ring.release(4)
    assert ring.reserve(4) == (0, 14)  # 7..9 are skipped
    assert ring.reserve(1) is None  # 4..6 are still in use
    ring.release(7)
    assert ring.reserve(1) == (4, 15)


def test_an_empty_ring_has_room_for_its_size_wherever_its_head_is():
    ring = Ring(10)
    assert ring.reserve(7) == (0, 7)
    ring.release(7)
    assert ring.reserve(10) == (0, 20)
    assert ring.reserve(0) == (0, 20)
    ring.release(20)
    assert ring.reserve(11) is None


def test_a_release_may_be_late_or_early_but_never_wrong():
    ring = Ring(10)
    _, first = ring.reserve(4)
    _, second = ring.reserve(4)
    ring.release(second)
    ring.release(first)
    assert ring.released == second
    ring.release(1 << 62)  # a broken peer
    assert ring.released == ring.reserved == 8


def test_a_new_reader_begins_anew():
    ring = Ring(10)
    ring.reserve(9)
    ring.begin_anew()
    assert ring.reserve(10) == (0, 10)


class RingMachine(RuleBasedStateMachine):
    """A ring against a plain list of what is reserved and not given back."""

    def __init__(self):
        super().__init__()
        self.ring = Ring(64)
        #: (offset, count, position), oldest first
        self.held = []

    @rule(count=st.integers(1, 80))
    def reserve(self, count):
        before = (self.ring.reserved, self.ring.released)
        place = self.ring.reserve(count)
        if place is None:
            assert self.held or count > self.ring.size
            assert (self.ring.reserved, self.ring.released) == before
            return
        offset, position = place
        assert position == self.ring.reserved
        assert offset >= 0
        assert offset + count <= self.ring.size
        for other, length, _ in self.held:
            assert offset + count <= other or other + length <= offset
        self.held.append((offset, count, position))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        last = data.draw(st.integers(0, len(self.held) - 1))
        self.ring.release(self.held[last][2])
        del self.held[: last + 1]

    @rule(position=st.integers(0, 10))
    def release_what_was_released(self, position):
        self.ring.release(min(position, self.ring.released))

    @invariant()
    def never_more_than_there_is(self):
        in_use = self.ring.reserved - self.ring.released
        assert 0 <= sum(count for _, count, _ in self.held) <= in_use <= self.ring.size
        assert bool(self.held) == bool(in_use)


RingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRing = RingMachine.TestCase
