"""What is told of the record: read by programs of any age."""

import msgspec
import pytest

from jgpu.errors import ProtocolError
from jgpu.wire.reports.records import (
    EventReport,
    EventsReport,
    UsageReport,
    UsageRow,
    decode_events,
    decode_usage,
)

EVENTS = EventsReport(events=(EventReport(id=2, when=1.5, who="user1", kind="quota"),))
USAGE = UsageReport(rows=(UsageRow(start=0.0, name="user1", device_seconds=2.0),))


def test_what_is_written_is_read():
    assert decode_events(msgspec.json.encode(EVENTS)) == EVENTS
    assert decode_usage(msgspec.json.encode(USAGE)) == USAGE


def test_a_reader_passes_over_what_it_does_not_know():
    told = msgspec.to_builtins(EVENTS)
    told["later"] = told["events"][0]["later"] = [1]
    assert decode_events(msgspec.json.encode(told)) == EVENTS


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"events": 1, "rows": 1}'])
@pytest.mark.parametrize("decode", [decode_events, decode_usage])
def test_what_is_no_record_is_a_sentence(data, decode):
    with pytest.raises(ProtocolError, match=r"of the broker at unix:/b .*same version"):
        decode(data, "unix:/b")
