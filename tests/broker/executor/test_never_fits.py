"""Programs that do not fit as a whole: what of them fits is computed, and nothing older is lost."""

from struct import pack

import pytest
from client import Executor, program
from hypothesis import given, settings
from hypothesis import strategies as st

from jgpu.wire import messages as m
from jgpu.wire.program import DeviceArgument, Dtype, Geometry, Op, Out, Slot

#: floats of the smallest vector, and its bytes
UNIT = 1024
NBYTES = 4 * UNIT
MOST = 8
FLOATS = {"dtype": Dtype("float32"), "device": DeviceArgument()}
CAPACITY = 64 * NBYTES


@pytest.fixture(scope="module")
def small():
    with Executor("cpu", lanes=1, threads=1, capacity=CAPACITY, host_pool=CAPACITY) as executor:
        yield executor


class Steps:
    """A random program over vectors of a few units, and what comes of it under a limit."""

    def __init__(self, inputs, ops, live, dead):
        self.inputs, self.ops = inputs, ops
        self.made = [k for k, (kind, *_) in enumerate(ops) if kind != "add_"]
        self.live, self.dead = live, dead
        self.lengths = list(inputs)
        self.slots = []
        for kind, *places in ops:
            slots = [place % len(self.lengths) for place in places]
            self.slots.append(slots)
            if kind == "cat":
                self.lengths.append(min(MOST, sum(self.lengths[slot] for slot in slots)))
            elif kind == "add":
                self.lengths.append(self.lengths[slots[0]])

    def ref(self, slot, length=None):
        return Slot(slot, (length or self.lengths[slot]) - 1)

    def program(self):
        ops, fresh = [], len(self.inputs)
        for (kind, *_), slots in zip(self.ops, self.slots, strict=True):
            refs = [self.ref(slot) for slot in slots]
            if kind == "add_":
                ops.append(Op("aten::add_.Tensor", (refs[0], refs[0]), {}, (Out(-1, 0),)))
                continue
            length = self.lengths[fresh]
            if kind == "add":
                op = Op("aten::add.Tensor", (refs[0], refs[0]), {}, (Out(fresh, length - 1),))
            else:
                second = self.ref(slots[1], max(1, length - self.lengths[slots[0]]))
                first = self.ref(slots[0], length - second.view - 1)
                op = Op("aten::cat.default", ((first, second), 0), {}, (Out(fresh, length - 1),))
            ops.append(op)
            fresh += 1
        vectors = [Geometry("float32", (UNIT * n,), (1,)) for n in range(1, MOST + 1)]
        return program(len(self.inputs), ops, vectors)

    def outcome(self, values, limit):
        """What each slot holds afterwards, None where it did not fit, by the ops one by one."""
        last = {slot: k for k, slots in enumerate(self.slots) for slot in slots}
        fresh = len(self.inputs)
        for k in self.made:
            last[fresh] = max(k, last.get(fresh, k))
            fresh += 1
        held, used, fresh = list(values), sum(self.inputs), len(self.inputs)
        for k, ((kind, *_), slots) in enumerate(zip(self.ops, self.slots, strict=True)):
            touched = list(slots)
            if kind == "add_":
                if held[slots[0]] is not None:
                    held[slots[0]] = [2 * each for each in held[slots[0]]]
            else:
                touched.append(fresh)
                length, value = self.lengths[fresh], None
                if all(held[slot] is not None for slot in slots) and used + length <= limit:
                    used += length
                    value = [2 * each for each in held[slots[0]]]
                    if kind == "cat":
                        taken = max(1, length - self.lengths[slots[0]])
                        value = held[slots[0]][: length - taken] + held[slots[1]][:taken]
                held.append(value)
                fresh += 1
            for slot in set(touched):
                kept = slot in self.live if slot >= len(self.inputs) else slot not in self.dead
                if last[slot] == k and not kept and held[slot] is not None:
                    used -= self.lengths[slot]
        return held


@st.composite
def steps(draw):
    inputs = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    place = st.integers(0, 30)
    op = st.one_of(
        st.tuples(st.just("add"), place),
        st.tuples(st.just("add_"), place),
        st.tuples(st.just("cat"), place, place),
    )
    ops = draw(st.lists(op, min_size=1, max_size=8))
    ops = [("add", k) for k in range(len(inputs))] + ops  # each input is used
    first, fresh = len(inputs), sum(kind != "add_" for kind, *_ in ops)
    live = draw(st.sets(st.integers(first, first + fresh - 1)))
    dead = draw(st.sets(st.integers(0, first - 1)))
    return Steps(inputs, ops, live, dead)


def as_bytes(value):
    return b"".join(pack("f", each) * UNIT for each in value)


def bits(slots, first):
    return sum(1 << slot - first for slot in slots)


@settings(max_examples=60, deadline=None)
@given(made=steps(), data=st.data())
def test_each_op_that_fits_is_done_whatever_else_its_program_asks_for(small, made, data):
    whole = sum(made.inputs)
    limit = data.draw(st.integers(whole, whole + sum(made.lengths)), label="limit")
    count = len(made.inputs)
    values = [[float(10 * k + j + 1) for j in range(n)] for k, n in enumerate(made.inputs)]
    expected = made.outcome(values, limit)
    for _ in range(3):  # also when the program is known
        client = small.connect("user1", limit=limit * NBYTES)
        inputs = [client.upload(as_bytes(value)) for value in values]
        form = made.program()
        live = bits(made.live, count).to_bytes((form.fresh + 7) // 8, "little")
        dead = bits(made.dead, 0).to_bytes(1, "little")
        first = client.run(form, inputs, live=live, dead=dead, ends_iteration=True)
        for slot, value in enumerate(expected):
            if slot in made.dead or (slot >= count and slot not in made.live):
                continue
            number = inputs[slot] if slot < count else first + slot - count
            read = client.download(number, 4 * UNIT * made.lengths[slot])
            if value is None:
                assert read.error == "OutOfMemoryError", (slot, read)
                assert "Tried to allocate" in read.text
            else:
                assert read == as_bytes(value), slot
        used = sum(
            made.lengths[slot]
            for slot, value in enumerate(expected)
            if value is not None and (slot not in made.dead if slot < count else slot in made.live)
        )
        client.sync()
        assert [f.error for f in client.failures] == ["OutOfMemoryError"] * (None in expected)
        assert client.memory().used == used * NBYTES
        client.close()
        small.ended(client.session)


def twos(lengths):
    """Vectors of twos of these lengths; at last the input is doubled in place."""
    vectors = [Geometry("float32", (UNIT * n,), (1,)) for n in (1, *lengths)]
    ops = [
        Op("aten::full.default", ((UNIT * n,), 2.0), FLOATS, (Out(k + 1, k + 1),))
        for k, n in enumerate(lengths)
    ]
    twice = Op("aten::add_.Tensor", (Slot(0, 0), Slot(0, 0)), {}, (Out(-1, 0),))
    return program(1, [*ops, twice], vectors)


def test_what_waits_and_could_never_fit_is_done_in_parts_and_waits_for_nobody(small):
    """The scheduler knows nothing of limits, and would wait for memory that nobody gives up."""
    other, client = small.connect("user2"), small.connect("user1")
    model = other.upload(bytes(30 * NBYTES))
    other.send(m.Tag((model,), m.RESIDENT))
    other.sync()
    x = client.upload(as_bytes([1.0]))
    client.upload(bytes(20 * NBYTES))
    client.sync()
    first = client.run(twos([2, 60, 1]), [x], ends_iteration=True)
    after = client.run(twos([1]), [x], ends_iteration=True)
    for number, length in {first: 2, first + 2: 1, after: 1}.items():
        assert client.download(number, length * NBYTES) == as_bytes([2.0] * length)
    assert client.download(first + 1, 4).error == "OutOfMemoryError"
    assert client.download(x, NBYTES) == as_bytes([4.0])
    (failure,) = client.failures
    assert (failure.op, failure.buffers) == (1, (first + 1,))
    assert "Tried to allocate 240.00 KiB" in failure.text
    assert client.memory().peak == 25 * NBYTES
    for each in (client, other):
        each.close()
        small.ended(each.session)
