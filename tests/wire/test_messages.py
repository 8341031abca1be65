"""The closed set of messages: every one travels, nothing else does."""

from types import UnionType
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import values_of

from jgpu.errors import FrameError
from jgpu.wire import limits, messages
from jgpu.wire.framing import FrameReader, FrameWriter

UNIONS = {name: union for name, union in vars(messages).items() if isinstance(union, UnionType)}
CONVERSATIONS = {
    name: UNIONS[name]
    for name in (
        "ControlMessage",
        "ControlReply",
        "ClientMessage",
        "ExecutorMessage",
        "ExecutorOrder",
        "ExecutorNotice",
    )
}
MEMBERS = [(name, kind) for name, union in CONVERSATIONS.items() for kind in get_args(union)]
KINDS = sorted({kind for _, kind in MEMBERS}, key=lambda kind: kind.__name__)
HASH = bytes(16)

encode = msgspec.msgpack.encode


def payload_frame(payload):
    """A frame with any payload, well-formed or not."""
    return FrameWriter().encode(msgspec.Raw(payload), 0)


def read(union, frame):
    return list(FrameReader(union).feed(frame))


@pytest.mark.parametrize(
    ("union", "kind"), MEMBERS, ids=lambda value: getattr(value, "__name__", value)
)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_every_message_of_every_conversation_travels(union, kind, data):
    message = data.draw(values_of(kind))
    (arrived,) = read(CONVERSATIONS[union], FrameWriter().encode(message, 0))
    assert type(arrived) is kind
    assert encode(arrived) == encode(message)


@pytest.mark.parametrize("union", CONVERSATIONS)
def test_a_message_of_another_conversation_is_refused(union):
    members = set(get_args(CONVERSATIONS[union]))
    strangers = [kind for kind in KINDS if kind not in members]
    assert strangers
    for kind in strangers:
        with pytest.raises(FrameError, match="no message that is known"):
            read(CONVERSATIONS[union], payload_frame(encode([kind.__name__])))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        encode(["Nonsense"]),
        encode([1]),
        encode([]),
        encode({"type": "AskStatus"}),
        encode(["AskStatus", 1]),
        encode(["AskStatus"]) + b"\x00",
        encode(["Sync", 1]),
        encode(["Sync", -1, 1]),
        encode(["Sync", 1 << 63, 1]),
        encode(["Sync", "1", 1]),
        encode(["Run", 1, HASH[:15], [], 1, b""]),
        encode(["Tag", [], 2]),
        encode(["Seed", 1, 1 << 63]),
        encode(["CellStarted", "x" * (limits.MAX_TEXT + 1)]),
        encode(["Upload", 1, 1, 1, 0, bytes(limits.INLINE_BYTES + 1)]),
        b"\x92\xabCellStarted\xa2\xff\xff",
        b"\x92\xabCellStarted\xc7\x01\x01a",
    ],
)
def test_a_malformed_message_is_refused(payload):
    union = messages.ClientMessage | messages.AskStatus
    with pytest.raises(FrameError, match="no message that is known"):
        read(union, payload_frame(payload))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 1_000_000,
        b"\x96\xa5Probe\x01\x94\xa1a" + b"\x91" * 1_000_000,
        b"\x9a\xa5Hello\x01\x94\xa1a\xa1a\xa1a" + b"\x91" * 1_000_000,
        b"\x9a\xa5Hello\x01\x94\xa1a\xa1a\xa1a" + b"\x81\xa1a" * 300_000,
    ],
)
def test_a_message_that_nests_too_deep_is_refused(payload):
    with pytest.raises(FrameError, match="no message that is known"):
        read(messages.ClientMessage | messages.ControlMessage, payload_frame(payload))


@pytest.mark.parametrize(
    "prefix",
    [
        b"",
        b"\x92\xa7Waiting",
        b"\x96\xa5Probe\x01" + encode(["aten::x", [], {}, []]),
        b"\x96\xa3Run\x01\xc4\x10" + HASH,
        b"\x96\xa5Probe\x01\x94\xa1a\x91",
    ],
)
def test_a_list_that_claims_four_thousand_million_elements_costs_nothing(prefix):
    with pytest.raises(FrameError, match="no message that is known"):
        read(
            messages.ClientMessage | messages.ExecutorMessage,
            payload_frame(prefix + b"\xdd\xff\xff\xff\xff"),
        )


def test_every_message_says_whether_a_reply_follows_or_is_a_reply_itself():
    replies = set(get_args(messages.ControlReply) + get_args(messages.ExecutorNotice))
    replies |= set(get_args(messages.ExecutorMessage))
    for kind in KINDS:
        text = (kind.__doc__ or "").lower()
        assert kind in replies or "reply" in text, kind


def test_everything_exported_is_a_message_or_a_part_of_one():
    exported = {getattr(messages, name) for name in messages.__all__}
    assert set(KINDS) <= exported
    assert all(isinstance(item, type | UnionType) for item in exported)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_messages_are_immutable_and_compare_by_value(kind):
    assert kind.__struct_config__.frozen
    assert kind.__struct_config__.eq
    assert kind.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize(
    ("kind", "has_cuda_kernels", "tells_values"),
    [("cpu", False, True), ("cuda", True, False), ("null", False, False)],
)
def test_what_a_device_can_is_asked_by_name(kind, has_cuda_kernels, tells_values):
    facts = messages.DeviceFacts(kind, "any", 1 << 30)
    assert facts.has_cuda_kernels is has_cuda_kernels
    assert facts.tells_values is tells_values
