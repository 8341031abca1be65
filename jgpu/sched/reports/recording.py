"""A recording of what a core was told: JSON lines that a simulator can play again.

The first line is the header, `{"recording": "jgpu.sched", "version": 1, "policy": NAME}`, with
`"limits": {NAME: NUMBER}` where they are not the usual ones (`jgpu.sched.limits`). Every other
line is one event, `{"at": SECONDS, "event": TYPE, ...}` with the fields of its class in
`jgpu.sched.events`; fields with a default may be left out. Segments are pairs
`[predicted_s, live_bytes]`, and several equal ones in a row `[predicted_s, live_bytes, count]`.
Times never go back. Names of users are in it, nothing else that identifies anybody, and no data.

Limits: a line of 1 MB, 20 million lines, 100,000 segments a work. What is not covered: files, which
the caller opens, and sense, which the core checks when it is told the events.

The rule: whatever is read comes from the closed set of events, or `ConfigError` names the file, the
line and the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import FieldInfo, fields

from jgpu.errors import ConfigError
from jgpu.sched import events
from jgpu.sched.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "EVENTS",
    "VERSION",
    "EventRecorder",
    "Header",
    "Recorded",
    "Sink",
    "read_recording",
    "write_event",
]

VERSION: Final = 1
_NAME: Final = "jgpu.sched"
_LONGEST_LINE: Final = 1_000_000
_MOST_LINES: Final = 20_000_000
_MOST_SEGMENTS: Final = 100_000
_LARGEST: Final = 2**62
_LONGEST_TEXT: Final = 1000

#: every event there is, by name
EVENTS: Final[dict[str, type[events.Event]]] = {
    name: kind
    for name in events.__all__
    if issubclass(kind := getattr(events, name), events.Event)
    and kind not in (events.Event, events.SessionEvent)
}
#: by event, what there is to tell
_FIELDS: Final[dict[type[events.Event], tuple[FieldInfo, ...]]] = {
    kind: fields(kind) for kind in EVENTS.values()
}


class Sink(Protocol):
    """Where lines go: an open text file will do."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def close(self) -> None:
        """Take no more."""


class Recorded(NamedTuple):
    """One event, when it was told, and the line that it stands in."""

    now: float
    event: events.Event
    line: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a recording says of itself."""

    policy: str
    limits: Limits


class EventRecorder:
    """Writes down what a core is told, in the order in which it is told."""

    def __init__(self, sink: Sink, policy: str, limits: Limits | None = None) -> None:
        """Begin a recording of a core that has been told nothing yet."""
        self._sink = sink
        #: lines written; as many as are read are written
        self._lines = 1
        self._closed = False
        header: dict[str, Any] = {"recording": _NAME, "version": VERSION, "policy": policy}
        if limits is not None and limits != Limits():
            header["limits"] = limits
        sink.write(msgspec.json.encode(header).decode() + "\n")

    def note(self, event: events.Event, now: float) -> None:
        """Write an event down; after `close`, or as many lines as are read, nothing happens."""
        if not self._closed and self._lines < _MOST_LINES:
            self._lines += 1
            self._sink.write(write_event(event, now) + "\n")

    def close(self) -> None:
        """End the recording; doing so twice is no error."""
        if not self._closed:
            self._closed = True
            self._sink.close()


# --- writing


def write_event(event: events.Event, now: float) -> str:
    """Return the line of an event, without its end; what equals the default is left out."""
    line: dict[str, Any] = {"at": now, "event": type(event).__name__}
    for field in _FIELDS[type(event)]:
        value = getattr(event, field.name)
        if value != field.default:
            line[field.name] = _plain(value)
    return msgspec.json.encode(line).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], events.Segment):
        return [_segments(segment, len(list(run))) for segment, run in groupby(value)]
    return value


def _segments(segment: events.Segment, count: int) -> list[float]:
    pair = [segment.predicted_s, segment.live_bytes]
    return pair if count == 1 else [*pair, count]


# --- reading


def read_recording(lines: Iterable[str], file: str) -> tuple[Header, Iterator[Recorded]]:
    """Return the header of a recording, and its events as they are read."""
    numbered = enumerate(lines, start=1)
    first = next(numbered, (1, ""))[1]
    return _header(first, file), _events(numbered, file)


def _header(line: str, file: str) -> Header:
    found = _object(line, file, 1)
    if found.get("recording") != _NAME:
        raise _wrong(file, 1, "recording", found.get("recording"), f"where {_NAME!r} belongs")
    if found.get("version") != VERSION:
        raise _wrong(file, 1, "version", found.get("version"), f"but this jgpu reads {VERSION}")
    policy = found.get("policy")
    if not isinstance(policy, str):
        raise _wrong(file, 1, "policy", policy, "where a name belongs")
    try:
        return Header(policy, msgspec.convert(found.get("limits", {}), Limits))
    except msgspec.ValidationError as error:
        raise _wrong(file, 1, "limits", found["limits"], f"but {error}") from None


def _events(numbered: Iterable[tuple[int, str]], file: str) -> Iterator[Recorded]:
    latest = 0.0
    for number, line in numbered:
        if number > _MOST_LINES:
            raise ConfigError(f"{file}, line {number}: a recording has at most {_MOST_LINES}.")
        if not line.strip():
            continue
        found = _object(line, file, number)
        now = found.pop("at", None)
        if not isinstance(now, int | float) or not isfinite(now):
            raise _wrong(file, number, "at", now, "where seconds belong")
        if now < latest:
            raise _wrong(file, number, "at", now, f"which is before {latest!r}, the line above")
        latest = now
        yield Recorded(float(now), _event(found, file, number), number)


def _object(line: str, file: str, number: int) -> dict[str, Any]:
    if len(line) > _LONGEST_LINE:
        raise ConfigError(
            f"{file}, line {number}: {len(line)} characters, where at most {_LONGEST_LINE} belong."
        )
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}, line {number}: {line[:80]!r} is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}, line {number}: {line[:80]!r} is not a JSON object.")
    return found


def _event(found: dict[str, Any], file: str, line: int) -> events.Event:
    name = found.pop("event", None)
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _wrong(file, line, "event", name, "which is no event that there is")
    known = {field.name: field for field in _FIELDS[kind]}
    for key, value in found.items():
        if key not in known:
            raise _wrong(file, line, key, value, f"which {name} has not")
        _check_size(key, value, file, line)
    for key, field in known.items():
        if key not in found and field.required:
            raise ConfigError(f"{file}, line {line}: {name} without {key!r}.")
    if "segments" in found:
        found["segments"] = _expand(found["segments"], file, line)
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}, line {line}: {name}: {error}, in {found!r:.200}.") from None


def _check_size(key: str, value: Any, file: str, line: int) -> None:
    if isinstance(value, int | float) and abs(value) > _LARGEST:
        raise _wrong(file, line, key, value, f"which is larger than {_LARGEST}")
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        raise _wrong(file, line, key, value, f"which is longer than {_LONGEST_TEXT}")


def _expand(value: Any, file: str, line: int) -> tuple[events.Segment, ...]:
    """Return segments from pairs, and from triples that stand for several equal ones."""
    segments: list[events.Segment] = []
    for each in value if isinstance(value, list) else [value]:
        if not (isinstance(each, list) and 2 <= len(each) <= 3):
            raise _wrong(file, line, "segments", each, "where [seconds, bytes] belong")
        predicted_s, live, count = (*each, 1)[:3]
        numbers = isinstance(predicted_s, int | float) and isinstance(live, int)
        if not numbers or not isinstance(count, int) or count < 1:
            raise _wrong(file, line, "segments", each, "where [seconds, bytes] belong")
        if count + len(segments) > _MOST_SEGMENTS:
            raise _wrong(file, line, "segments", count, f"where at most {_MOST_SEGMENTS} belong")
        segments += [events.Segment(float(predicted_s), live)] * count
    return tuple(segments)


def _wrong(file: str, line: int, key: str, value: Any, why: str) -> ConfigError:
    return ConfigError(f"{file}, line {line}: {key} is {value!r:.200}, {why}.")
