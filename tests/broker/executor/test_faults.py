"""Wrong values that only the device sees: replaced, noted, read at the next wait, and told."""

from pathlib import Path
from struct import pack, unpack

import pytest
from client import Executor, add, add_in_place, bad_index, chain, program, scale, vector

from jgpu.wire import messages as m
from jgpu.wire.program import Geometry, Op, Out, Slot

GOOD, BAD = (0, 1, 2, 3), (0, 9, 2, 3)


@pytest.fixture(scope="module")
def trusting():
    script = Path(__file__).with_name("trusting_executor.py")
    with Executor("cpu", program=[str(script)], lanes=2, threads=1, capacity=1 << 30) as executor:
        yield executor


@pytest.fixture
def client(trusting):
    opened = trusting.connect()
    yield opened
    opened.close()
    trusting.ended(opened.session)


def index(client, values):
    return client.upload(pack(f"{len(values)}q", *values))


def is_index_error(failed, work, op=0):
    return (failed.error, failed.work, failed.op) == ("IndexError", work, op)


def picked_and_scaled():
    """c = a + a; d = a[i]; e = d + c; a += e, in place."""
    ops = [
        Op("aten::add.Tensor", (Slot(0, 0), Slot(0, 0)), {}, (Out(2, 0),)),
        Op("aten::index_select.default", (Slot(0, 0), 0, Slot(1, 1)), {}, (Out(3, 0),)),
        Op("aten::add.Tensor", (Slot(3, 0), Slot(2, 0)), {}, (Out(4, 0),)),
        Op("aten::add_.Tensor", (Slot(0, 0), Slot(4, 0)), {}, (Out(-1, 0),)),
    ]
    return program(2, ops, [vector(4), vector(4, "int64")])


@pytest.mark.parametrize("runs", [0, 3])
def test_a_wrong_index_is_told_once_at_the_next_wait_with_its_work_and_op(client, runs):
    table, good = client.floats(1, 2, 3, 4), index(client, GOOD)
    for _ in range(runs):  # step by step at first, compiled later
        assert client.read_floats(client.run(bad_index(), [table, good]), 4) == (1, 2, 3, 4)
    made = client.run(bad_index(), [table, index(client, BAD)])
    work = client.work
    assert isinstance(client.sync(), m.Synced)
    (failed,) = client.failures
    assert is_index_error(failed, work)
    assert failed.name == "aten::index_select.default"
    assert failed.text == ("aten::index_select.default: index holds a value that is not in [0, 4).")
    assert failed.buffers == (made,)
    assert isinstance(client.sync(), m.Synced)
    assert len(client.failures) == 1
    # the session lives on, and so does what the op only read
    assert client.read_floats(client.run(bad_index(), [table, good]), 4) == (1, 2, 3, 4)


def test_what_was_proven_of_one_index_says_nothing_of_the_next(client):
    """Each run is alone on the device, and so done at once when its time is known."""
    table, good = client.floats(1, 2, 3, 4), index(client, GOOD)
    for told in range(1, 13):
        assert client.read_floats(client.run(bad_index(), [table, good]), 4) == (1, 2, 3, 4)
        bad = index(client, BAD)
        assert isinstance(client.sync(), m.Synced)
        client.run(bad_index(), [table, bad])
        assert isinstance(client.sync(), m.Synced)
        assert [failed.error for failed in client.failures] == ["IndexError"] * told
        assert client.failures[-1].text.endswith("holds a value that is not in [0, 4).")


def test_no_number_is_given_that_was_computed_of_a_wrong_index(client):
    table = client.floats(1, 2, 3, 4)
    made = client.run(bad_index(), [table, index(client, BAD)])
    work = client.work
    later = client.run(chain(4, 3), [made])
    reply = client.download(later + 2, 16)
    assert isinstance(reply, m.Failed)
    assert is_index_error(reply, work)
    (told,) = client.failures
    assert set(told.buffers) == {made, later, later + 1, later + 2}
    # and again, for whoever asks again
    assert is_index_error(client.download(made, 16), work)
    assert client.read_floats(table, 4) == (1, 2, 3, 4)


def test_what_a_wrong_index_was_written_into_is_lost_and_nothing_else(client):
    table, other = client.floats(1, 2, 3, 4), client.floats(5, 6, 7, 8)
    first = client.run(picked_and_scaled(), [table, index(client, BAD)])
    work = client.work
    untouched = client.run(add(), [other, other])
    client.run(add_in_place(), [other, table], dead=b"\x00")
    assert isinstance(client.sync(), m.Synced)
    (failed,) = client.failures
    assert is_index_error(failed, work, 1)
    assert set(failed.buffers) == {table, first + 1, first + 2, other}
    assert client.read_floats(first, 4) == (2, 4, 6, 8)
    assert client.read_floats(untouched, 4) == (10, 12, 14, 16)
    for lost in (table, other):
        assert is_index_error(client.download(lost, 16), work, 1)


def test_a_buffer_that_is_written_whole_afterwards_is_good_again(client):
    table = client.floats(1, 2, 3, 4)
    made = client.run(bad_index(), [table, index(client, BAD)])
    client.send(m.Upload(client.next_work(), made, 16, 0, data=pack("4f", 4, 3, 2, 1)))
    assert client.read_floats(made, 4) == (4, 3, 2, 1)
    assert [failed.error for failed in client.failures] == ["IndexError"]


def test_of_several_works_in_flight_each_names_its_own_and_consequences_are_no_failures(client):
    table = client.floats(1, 2, 3, 4)
    bad = index(client, BAD)
    client.run(bad_index(), [table, index(client, GOOD)])
    first = client.run(bad_index(), [table, bad])
    one = client.work
    client.run(bad_index(), [first, bad])  # of what is wrong already
    second = client.run(bad_index(), [table, bad])
    two = client.work
    assert isinstance(client.sync(), m.Synced)
    assert [(failed.work, failed.op) for failed in client.failures] == [(one, 0), (two, 0)]
    assert client.failures[0].buffers == (first, first + 1)
    assert client.failures[1].buffers == (second,)


def test_a_value_that_is_told_unasked_is_none_after_a_wrong_index(client):
    table, bad, good = client.floats(1, 2, 3, 4), index(client, BAD), index(client, GOOD)

    def told(indices):
        made = client.run(bad_index(), [table, indices], wanted=(0,))
        value = client.receive(m.Value)
        assert value.buffer == made
        return made, value.data

    for _ in range(3):
        assert unpack("4f", told(good)[1]) == (1, 2, 3, 4)
    made, data = told(bad)
    assert data == b""
    assert is_index_error(client.download(made, 16), client.work - 1)


def test_an_iteration_that_ends_reads_what_was_noted(client):
    table = client.floats(1, 2, 3, 4)
    client.run(bad_index(), [table, index(client, BAD)])
    work = client.work
    client.run(scale(), [table], (2.0,), ends_iteration=True)
    failed = client.receive(m.Failed)
    assert is_index_error(failed, work)


def wrong_draw(name, arguments, geometry=None, **kwargs):
    """c = op(a)"""
    return program(
        1, [Op(name, arguments, kwargs, (Out(1, 1),))], [vector(4), geometry or vector(4)]
    )


DRAWS = {
    "Expected p_in >= 0 && p_in <= 1 to be true, but got false.": wrong_draw(
        "aten::bernoulli.default", (Slot(0, 0),)
    ),
    "invalid Poisson rate, expected rate to be non-negative": wrong_draw(
        "aten::poisson.default", (Slot(0, 0),)
    ),
    "probability tensor contains either `inf`, `nan` or element < 0": wrong_draw(
        "aten::multinomial.default", (Slot(0, 0), 1), Geometry("int64", (1,), (1,))
    ),
    "all elements of input should be between 0 and 1": wrong_draw(
        "aten::binary_cross_entropy.default", (Slot(0, 0), Slot(0, 0), None, 0)
    ),
}


@pytest.mark.parametrize("text", DRAWS)
@pytest.mark.parametrize("value", [-2.0, float("nan")])
def test_values_that_kernels_assert_are_told_in_native_words(client, text, value):
    made = client.run(DRAWS[text], [client.floats(0.5, value, 0.5, 0.5)])
    assert isinstance(client.download(made, 8), m.Failed)
    (failed,) = client.failures
    assert (failed.error, failed.text) == ("RuntimeError", text)
    fine = client.run(DRAWS[text], [client.floats(0.5, 0.25, 0.5, 0.5)])
    assert isinstance(client.download(fine, 8), bytes)


def test_weights_of_no_sum_are_told(client):
    draw = DRAWS["probability tensor contains either `inf`, `nan` or element < 0"]
    made = client.run(draw, [client.floats(0, 0, 0, 0)])
    assert isinstance(client.download(made, 8), m.Failed)
    (failed,) = client.failures
    assert failed.text == "invalid multinomial distribution (sum of probabilities <= 0)"


def test_a_source_that_is_too_short_for_its_mask_changes_nothing(client):
    geometries = [vector(4), vector(4, "bool"), vector(2)]
    scatter = program(
        3,
        [
            Op(
                "aten::masked_scatter_.default",
                (Slot(0, 0), Slot(1, 1), Slot(2, 2)),
                {},
                (Out(-1, 0),),
            )
        ],
        geometries,
    )
    target, source = client.floats(1, 2, 3, 4), client.floats(8, 9)
    client.run(scatter, [target, client.upload(b"\1\0\1\0"), source])
    assert client.read_floats(target, 4) == (8, 2, 9, 4)
    client.run(scatter, [target, client.upload(b"\1\1\1\0"), source])
    assert isinstance(client.download(target, 16), m.Failed)
    (failed,) = client.failures
    assert failed.text == "Number of elements of source < number of ones in mask"


def test_a_session_that_ends_with_unread_notes_gives_everything_back(trusting):
    leaving, staying = trusting.connect(), trusting.connect("user2")
    leaving.run(bad_index(), [leaving.floats(1, 2, 3, 4), index(leaving, BAD)])
    leaving.close()
    trusting.ended(leaving.session)
    table = staying.floats(1, 2, 3, 4)
    made = staying.run(bad_index(), [table, index(staying, GOOD)])
    assert staying.read_floats(made, 4) == (1, 2, 3, 4)
    staying.close()
