"""Frames, byte by byte: cut anywhere, broken in every way, begun anew at a marker."""

import contextlib
import itertools
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgpu.errors import FrameError
from jgpu.wire import limits
from jgpu.wire.framing import HEADER, MAGIC, FrameReader, FrameWriter, marker
from jgpu.wire.messages import CellStarted, ClientMessage, Define, Sync

TOKEN = bytes(range(100, 116))
OTHER = bytes(16)


def frame(payload=b"\x93\xa4Sync\x01\x01", *, sequence=1, seen=0, **changed):
    """A frame whose header may lie."""
    fields = {"magic": MAGIC, "length": len(payload), "crc": crc32(payload)} | changed
    return HEADER.pack(fields["magic"], fields["length"], sequence, seen, fields["crc"]) + payload


def labels(count, start=0):
    return [CellStarted(f"cell {start + index}") for index in range(count)]


def frames(messages, seen=0):
    """A writer that has written `messages`, and the bytes of each."""
    writer = FrameWriter()
    return writer, [writer.encode(message, seen) for message in messages]


def reader(**options):
    return FrameReader(ClientMessage, **options)


def pieces(data, cuts):
    """`data` cut at these places."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def feed_all(reading, chunks):
    return [message for chunk in chunks for message in reading.feed(chunk)]


texts = st.lists(st.text(max_size=30), max_size=8)
cuts = st.lists(st.integers(0, 1 << 16), max_size=12)


# -- a whole stream ------------------------------------------------------------------------------


def test_a_frame_is_magic_length_sequence_acknowledgement_checksum_payload():
    written = FrameWriter().encode(Sync(7, 9), 5)
    payload = b"\x94\xa4Sync\x07\x09\xc3"
    assert written == b"".join(
        [
            b"jgp1",
            len(payload).to_bytes(4, "big"),
            (1).to_bytes(8, "big"),
            (5).to_bytes(8, "big"),
            crc32(payload).to_bytes(4, "big"),
            payload,
        ]
    )


@given(texts, cuts)
def test_a_stream_cut_anywhere_holds_the_same_messages(words, where):
    sent = [CellStarted(text) for text in words]
    _, written = frames(sent)
    reading = reader()
    assert feed_all(reading, pieces(b"".join(written), where)) == sent
    assert reading.at_boundary()
    assert reading.seen == len(sent)


@pytest.mark.parametrize("options", [{}, {"token": TOKEN, "renumber": True}])
def test_byte_by_byte_nothing_comes_before_the_last_byte(options):
    _, (written,) = frames([Sync(1, 1)])
    reading = reader(**options)
    for index in range(len(written) - 1):
        assert list(reading.feed(written[index : index + 1])) == []
        assert not reading.at_boundary()
    assert list(reading.feed(written[-1:])) == [Sync(1, 1)]
    assert reading.at_boundary()


def test_bytes_are_taken_even_if_nobody_asks_for_their_messages_yet():
    _, written = frames(labels(3))
    reading = reader()
    reading.feed(written[0])
    later = reading.feed(written[1] + written[2][:5])
    assert list(later) == labels(2)
    assert list(reading.feed(memoryview(written[2])[5:])) == labels(1, start=2)


def test_the_peers_acknowledgement_is_the_highest_that_came():
    reading = reader()
    assert reading.peer_seen == 0
    list(reading.feed(frame(seen=9) + frame(sequence=2, seen=4)))
    assert reading.peer_seen == 9


def test_a_frame_seen_before_is_dropped():
    _, written = frames(labels(3))
    reading = reader()
    stream = written[0] + written[1] + written[0] + written[1] + written[2]
    assert list(reading.feed(stream)) == labels(3)


def test_a_payload_may_hold_what_looks_like_frames_and_markers():
    inside = marker(OTHER, 1) + marker(TOKEN, 0) + frame() + b"jgpR" + marker(OTHER, 9)[:20]
    writer, _ = frames([])
    written = writer.encode(Define(inside), 0) + writer.encode(Sync(1, 1), 0)
    reading = reader(token=TOKEN, renumber=True)
    got = feed_all(reading, [written[i : i + 3] for i in range(0, len(written), 3)])
    assert got == [Define(inside), Sync(1, 1)]
    assert reading.epoch == 0


# -- a broken stream -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" * 4, "not a jgpu frame"),
        (b"x", "not a jgpu frame"),
        (b"jgp2", "not a jgpu frame"),
        (frame() + b"\n", "not a jgpu frame"),
        (frame(magic=b"jgpR"), "not a jgpu frame"),
        (frame(length=limits.MAX_FRAME_BYTES + 1), "larger than a frame may be"),
        (frame(length=(1 << 32) - 1)[: HEADER.size], "larger than a frame may be"),
        (frame(crc=0), "checksum"),
        (frame(length=3), "checksum"),
        (frame(length=len(frame()) - HEADER.size + 1) + frame(sequence=2), "checksum"),
        (frame(sequence=2), "Frame 2 came where 1 was due"),
        (frame() + frame(sequence=3), "Frame 3 came where 2 was due"),
        (frame(b"\x91\xa4Nope"), "no message that is known"),
        (frame() + frame() + frame(b"\x91\xa4Nope", sequence=2), "no message that is known"),
        (frame(b""), "no message that is known"),
        (frame(b"\x91" * 5000), "no message that is known"),
    ],
)
@pytest.mark.parametrize("token", [b"", TOKEN])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_broken_stream_fails_loudly(stream, sentence, token, size):
    reading = reader(token=token)
    with pytest.raises(FrameError, match=sentence):
        feed_all(reading, [stream[i : i + size] for i in range(0, len(stream), size)])


def test_what_came_before_the_broken_byte_is_delivered():
    arriving = reader().feed(frame() + b"garbage")
    assert next(arriving) == Sync(1, 1)
    with pytest.raises(FrameError):
        next(arriving)


@given(st.binary(max_size=200), cuts)
def test_random_bytes_are_a_frame_error_or_wait_for_more(data, where):
    reading = reader(token=TOKEN)
    try:
        assert feed_all(reading, pieces(data, where)) == []
    except FrameError:
        pass
    else:
        assert len(data) < HEADER.size + limits.MAX_FRAME_BYTES


@given(texts.filter(bool), st.integers(0), st.integers(1, 255), cuts)
def test_one_changed_byte_never_changes_a_message(words, place, change, where):
    sent = [CellStarted(text) for text in words]
    _, written = frames(sent)
    stream = bytearray(b"".join(written))
    stream[place % len(stream)] ^= change
    reading, arrived = reader(), []
    with contextlib.suppress(FrameError):
        for chunk in pieces(bytes(stream), where):
            for message in reading.feed(chunk):
                arrived.append(message)  # noqa: PERF402 (what came before the error counts)
    assert arrived == sent[: len(arrived)]


def test_a_truncated_frame_waits_and_is_no_boundary():
    reading = reader()
    assert list(reading.feed(frame()[:-1])) == []
    assert not reading.at_boundary()


# -- the writer ----------------------------------------------------------------------------------


def test_frames_are_numbered_from_1_without_gaps():
    writer, written = frames(labels(3))
    assert [HEADER.unpack_from(each)[2] for each in written] == [1, 2, 3]
    assert writer.sequence == 3


def test_what_was_never_sent_cannot_be_acknowledged():
    writer, _ = frames(labels(1))
    writer.check_acknowledged(0)
    writer.check_acknowledged(1)
    with pytest.raises(FrameError, match="Frame 2 was acknowledged but never sent"):
        writer.check_acknowledged(2)


def test_a_message_larger_than_a_frame_is_not_sent_and_takes_no_number():
    writer = FrameWriter()
    with pytest.raises(FrameError, match=r"Define of 4194\d+ bytes is larger than a frame"):
        writer.encode(Define(bytes(limits.MAX_FRAME_BYTES)), 0)
    assert writer.sequence == 0
    largest = Define(bytes(limits.MAX_FRAME_BYTES - 13))
    assert list(reader().feed(writer.encode(largest, 0))) == [largest]


# -- a stream begun anew ------------------------------------------------------------------------


def test_a_marker_is_magic_token_epoch():
    assert marker(TOKEN, 258) == b"jgpR" + TOKEN + bytes(6) + b"\x01\x02"


@given(texts, st.integers(0), texts, cuts)
def test_a_new_peer_begins_anew_inside_a_half_written_frame(words, cut, after, where):
    """The old peer died in mid-frame; nobody told the reader, who may be fed any pieces."""
    _, written = frames([CellStarted(text) for text in words])
    stream = b"".join(written)
    new = [CellStarted(text) for text in after]
    _, renewed = frames(new)
    reading = reader(token=TOKEN, renumber=True)
    stream = stream[: cut % (len(stream) + 1)] + marker(TOKEN, 1) + b"".join(renewed)
    arrived = feed_all(reading, pieces(stream, where))
    old = arrived[: len(arrived) - len(new)]
    assert arrived[len(old) :] == new
    assert old == [CellStarted(text) for text in words[: len(old)]]
    assert (reading.epoch, reading.seen) == (1, len(new))


def test_every_cut_of_a_half_frame_and_of_its_marker_is_survived():
    _, (written,) = frames([CellStarted("x" * 40)])
    for cut in range(len(written)):
        stream = written[:cut] + marker(TOKEN, 1) + frame()
        for edge in range(len(stream) + 1):
            reading = reader(token=TOKEN, renumber=True)
            arrived = [*reading.feed(stream[:edge]), *reading.feed(stream[edge:])]
            assert arrived == [Sync(1, 1)], (cut, edge)


@pytest.mark.parametrize("stranger", [marker(OTHER, 1), marker(TOKEN, 0), marker(OTHER, 1 << 60)])
def test_a_marker_that_is_not_due_is_no_frame(stranger):
    with pytest.raises(FrameError, match="not a jgpu frame"):
        list(reader(token=TOKEN).feed(stranger + frame()))


def test_a_marker_seen_before_is_no_frame():
    reading = reader(token=TOKEN, renumber=True)
    assert list(reading.feed(marker(TOKEN, 3) + frame())) == [Sync(1, 1)]
    with pytest.raises(FrameError, match="not a jgpu frame"):
        list(reading.feed(marker(TOKEN, 3)))


def test_without_a_token_there_are_no_markers():
    with pytest.raises(FrameError, match="not a jgpu frame"):
        list(reader().feed(marker(bytes(16), 1)))


def test_the_newest_of_several_markers_counts():
    reading = reader(token=TOKEN, renumber=True)
    stream = frame() + marker(TOKEN, 1) + frame(sequence=1) + marker(TOKEN, 2) + frame(seen=1)
    assert list(reading.feed(stream)) == [Sync(1, 1)]
    assert (reading.epoch, reading.peer_seen) == (2, 1)


def test_an_older_marker_is_passed_over_on_the_way_to_the_newest():
    reading = reader(token=TOKEN)
    assert list(reading.feed(marker(TOKEN, 2) + marker(OTHER, 9) + marker(TOKEN, 3))) == []
    stream = b"half a frame" + marker(TOKEN, 3) + marker(TOKEN, 4) + frame()
    assert list(reading.feed(stream)) == [Sync(1, 1)]
    assert reading.epoch == 4
