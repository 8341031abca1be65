"""The protocol's versions against what is stored of them: nothing changes by mistake."""

import copy

import golden_frames
import msgspec
import pytest
from golden_frames import CONVERSATIONS, READ_BY_CLIENTS, differences, schema, stored

from jgpu.wire import limits

SERVED = range(limits.OLDEST_PROTOCOL, limits.PROTOCOL + 1)
BEFORE = SERVED[:-1]

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode


def frames_of(version):
    """Each stored payload, with the types of its conversation."""
    for conversation, kinds in stored(version, "frames").items():
        for kind, payloads in kinds.items():
            for payload in payloads:
                yield conversation, kind, bytes.fromhex(payload)


def test_this_version_and_the_one_before_are_served():
    assert list(SERVED) == [limits.PROTOCOL - 1, limits.PROTOCOL]


def test_what_is_stored_of_this_version_is_what_it_is():
    remedy = "; `python tests/wire/golden_frames.py` writes it, or says what to do"
    assert schema() == stored(limits.PROTOCOL, "schema"), f"the protocol has changed{remedy}"
    assert golden_frames.frames() == stored(limits.PROTOCOL, "frames"), f"other bytes{remedy}"


@pytest.mark.parametrize("version", SERVED)
def test_this_version_is_compatible_with_each_that_is_served(version):
    assert differences(stored(version, "schema"), schema()) == []


@pytest.mark.parametrize("version", SERVED)
def test_what_clients_of_a_served_version_send_is_read_with_the_same_values(version):
    for conversation, kind, payload in frames_of(version):
        if conversation in READ_BY_CLIENTS:
            continue
        message = decode(payload, type=CONVERSATIONS[conversation])
        assert type(message).__name__ == kind
        sent, understood = decode(payload), decode(encode(message))
        assert says_at_least(understood, sent)


def says_at_least(understood, sent):
    """The same values, but for fields at the end of a message or of its parts."""
    if not isinstance(sent, list):
        return understood == sent
    pairs = zip(understood, sent, strict=False)
    return len(understood) >= len(sent) and all(says_at_least(u, s) for u, s in pairs)


@pytest.mark.parametrize("version", BEFORE)
def test_what_clients_of_the_version_before_are_sent_has_the_bytes_that_they_know(version):
    now = golden_frames.frames()
    for conversation in READ_BY_CLIENTS:
        for kind, payloads in stored(version, "frames")[conversation].items():
            assert now[conversation][kind] == payloads


# --- what counts as compatible


def changed(conversation, kind, change):
    """Today's schema with one message changed."""
    made = copy.deepcopy(schema())
    change(made[conversation][kind])
    return made


MORE = {"name": "more", "form": {"bool": {}}, "default": False}


def test_a_message_more_is_compatible():
    more = copy.deepcopy(schema())
    for kinds in more.values():
        kinds["Another"] = [{"name": "field", "form": {"bool": {}}}]
    assert differences(schema(), more) == []


def test_a_field_more_with_a_default_at_the_end_of_what_clients_send_is_compatible():
    assert differences(schema(), changed("requests", "Hello", lambda f: f.append(MORE))) == []


@pytest.mark.parametrize(
    ("conversation", "kind", "change", "why"),
    [
        ("requests", "Hello", lambda f: f.pop(), "other fields"),
        ("requests", "Hello", lambda f: f.insert(0, MORE), "other fields"),
        ("requests", "Hello", lambda f: f[0].update(name="another"), "other fields"),
        ("requests", "Hello", lambda f: f[0].update(form={"str": {}}), "other fields"),
        ("requests", "Hello", lambda f: f[-1].update(default=7), "other fields"),
        ("requests", "Hello", lambda f: f.append({"name": "a", "form": {}}), "without a default"),
        ("replies", "Welcome", lambda f: f.append(MORE), "older clients refuse"),
        ("from the executor", "Ready", lambda f: f.append(MORE), "older clients refuse"),
        ("programs", "Program", lambda f: f[0]["form"]["int"].update(le=3), "other fields"),
    ],
)
def test_whatever_else_changes_is_another_protocol(conversation, kind, change, why):
    (found,) = differences(schema(), changed(conversation, kind, change))
    assert kind in found
    assert why in found


def test_a_message_less_is_another_protocol():
    less = copy.deepcopy(schema())
    del less["requests"]["Hello"]
    assert differences(schema(), less) == ["Hello (requests) is gone"]


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.append({"name": "more", "form": {"bool": {}}}),
        lambda fields: fields.insert(0, MORE),
        lambda fields: fields.pop(),
        lambda fields: fields[0].update(form={"int": {}}),
        lambda fields: fields[-1].update(default=7),
    ],
)
def test_a_part_of_a_message_that_changes_is_another_protocol(change):
    def change_part(fields):
        change(next(f for f in fields if f["name"] == "flags")["form"]["array"])

    assert differences(schema(), changed("to the executor", "Probe", change_part)) == [
        "Probe (to the executor) has other fields than before"
    ]


def test_a_field_more_with_a_default_at_the_end_of_a_part_is_compatible_where_clients_send_it():
    def change(fields):
        flags = next(field for field in fields if field["name"] == "flags")
        flags["form"]["array"].append(MORE)
        flags["default"].append(False)

    assert differences(schema(), changed("to the executor", "Probe", change)) == []


def test_a_part_that_clients_read_may_not_change():
    def change(fields):
        told = next(field for field in fields if field["name"] == "device")
        told["form"]["array"].append(MORE)

    (found,) = differences(schema(), changed("from the executor", "Ready", change))
    assert "other fields" in found


def test_the_command_writes_what_may_be_written_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(golden_frames, "GOLDEN", tmp_path)
    assert golden_frames.main() == 0
    assert stored(limits.PROTOCOL, "schema") == schema()
    less = copy.deepcopy(schema())
    del less["requests"]["Hello"]
    monkeypatch.setattr(golden_frames, "schema", lambda: less)
    assert golden_frames.main() == 1
    assert "raise PROTOCOL" in capsys.readouterr().err
    assert "Hello" in stored(limits.PROTOCOL, "schema")["requests"]
