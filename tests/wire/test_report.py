"""The report: read by programs of any age, and described by a schema that only grows."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from jgpu.errors import ProtocolError
from jgpu.wire.reports import report

SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"
WHOLE = report.Report(
    broker=report.BrokerReport(version="1.0", pid=7),
    devices=(
        report.DeviceReport(
            name="cpu (shared)",
            kind="cpu",
            lanes=(report.LaneReport(id=0, sessions=(1,), running=1),),
            last_end=report.EndReport(
                when=1.0, how="was killed", culprit=report.CulpritReport(user="user1", session=1)
            ),
        ),
    ),
    sessions=(report.SessionReport(id=1, user="user1", waits_for=("user2",)),),
    users=(report.UserReport(name="user1", groups=("class",), device_seconds=1.5),),
    ledger=report.LedgerReport(state="working"),
)


def test_what_is_written_is_read():
    assert report.decode(msgspec.json.encode(WHOLE)) == WHOLE


def test_a_reader_passes_over_what_it_does_not_know():
    told = msgspec.to_builtins(WHOLE)
    told["later"] = told["sessions"][0]["later"] = {"any": ["thing"]}
    assert report.decode(msgspec.json.encode(told)) == WHOLE


def test_a_report_of_an_older_broker_has_the_defaults_of_what_it_does_not_say():
    old = {"broker": {}, "devices": [{"name": "cpu", "kind": "cpu"}], "sessions": [{"id": 1}]}
    read = report.decode(msgspec.json.encode(old))
    assert read.sessions == (report.SessionReport(id=1),)
    assert read.devices[0].lanes == ()
    assert not read.ledger


def test_what_was_moved_to_the_host_is_not_on_the_device():
    session = report.SessionReport(
        id=1, resident_bytes=100, ephemeral_bytes=30, spilled_bytes=60, spilled_resident_bytes=40
    )
    assert session.resident_on_device == 60
    assert session.ephemeral_on_device == 10
    assert session.bytes_on_device == 70


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"broker": 1}'])
@pytest.mark.parametrize("decode", [report.decode, report.decode_quotas])
def test_what_is_no_report_is_a_sentence(data, decode):
    if decode is report.decode_quotas and data == b"{}":
        assert decode(data) == report.QuotasReport()  # nothing is set, nobody was here
        return
    if decode is report.decode_quotas and data == b'{"broker": 1}':
        return  # nothing that it knows
    with pytest.raises(ProtocolError, match=r"of the broker at unix:/b .*same version"):
        decode(data, "unix:/b")


def test_only_administrators_are_told_of_the_ledger():
    told = msgspec.to_builtins(msgspec.structs.replace(WHOLE, ledger=msgspec.UNSET))
    assert "ledger" not in told


def test_the_schema_in_the_documentation_is_the_reports():
    """When this fails: write the schema anew, and see below that nothing was taken away."""
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(report.schema()))


def test_the_schema_describes_reports():
    jsonschema.Draft202012Validator.check_schema(report.schema())
    jsonschema.validate(json.loads(msgspec.json.encode(WHOLE)), report.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"broker": {}, "sessions": [{"id": "one"}]}, report.schema())


#: fields as first published: scripts rely on them
PUBLISHED = {
    "DeviceReport": {"name", "kind", "capacity_bytes", "policy", "lanes"},
    "LaneReport": {"id", "capacity_bytes", "sessions", "running"},
    "SessionReport": {
        "id", "user", "kernel_id", "state", "lane", "resident_bytes", "ephemeral_bytes",
        "spilled_bytes", "device_seconds", "iterations", "queue_position", "waits_for",
    },
}  # fmt: skip


@pytest.mark.parametrize("part", PUBLISHED)
def test_no_published_field_is_renamed(part):
    assert PUBLISHED[part] <= report.schema()["$defs"][part]["properties"].keys()
