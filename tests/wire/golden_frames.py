"""What the protocol's messages looked like, version by version.

Under `golden/<version>/` lie `schema.json`, which says of each conversation with clients what its
messages' fields are, in order, and `frames.json`, the bytes of two samples of each: with the fields
alone that have no default, and with all. The command writes those of the version that
`jgpu.wire.limits.PROTOCOL` names, where what changed is compatible with what is there already, and
says what to do otherwise. Files of earlier versions never change.

Compatible is, and needs no new version: a message more; fields more with defaults, at the end of a
message that clients send, or of one of its parts. What clients are sent has no field more in any
version: clients of the version before refuse it. It takes a message more, sent to those alone who
asked for it.
"""

import itertools
import json
import operator
import sys
from pathlib import Path
from typing import get_args

import msgspec

from jgpu.wire import limits, messages, program

GOLDEN = Path(__file__).with_name("golden")
#: conversation -> any of its messages
CONVERSATIONS = {
    "requests": messages.ControlMessage,
    "replies": messages.ControlReply,
    "to the executor": messages.ClientMessage,
    "from the executor": messages.ExecutorMessage,
    "programs": program.Program,
}
#: those that clients read
READ_BY_CLIENTS = ("replies", "from the executor")

inspect = msgspec.inspect


# -- the schema ------------------------------------------------------------------------------


def schema():
    """Conversation -> message -> its fields in order: name, form, default where there is one."""
    return {
        name: {kind.__name__: msgspec.to_builtins(_fields(kind)) for kind in _kinds(union)}
        for name, union in CONVERSATIONS.items()
    }


def _kinds(union):
    return sorted(get_args(union) or (union,), key=lambda kind: kind.__name__)


def _fields(kind):
    return [
        {"name": field.name, "form": _form(field.type)}
        | ({} if field.required else {"default": _default(field)})
        for field in inspect.type_info(kind).fields
    ]


def _default(field):
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return json.loads(msgspec.json.encode(value))


def _form(info):
    """A type as text and lists, whatever it is called."""
    if isinstance(info, inspect.UnionType):
        return {"one of": [_form(each) for each in info.types]}
    if isinstance(info, inspect.VarTupleType | inspect.ListType):
        return {"many of": _form(info.item_type), "at most": info.max_length}
    if isinstance(info, inspect.TupleType):
        return {"in order": [_form(each) for each in info.item_types]}
    if isinstance(info, inspect.DictType):
        return {"keys": _form(info.key_type), "values": _form(info.value_type)}
    if isinstance(info, inspect.StructType):
        tag = {"tag": info.tag} if info.tag is not None else {}
        return tag | {"array" if info.array_like else "object": _fields(info.cls)}
    if isinstance(info, inspect.LiteralType):
        return {"words": list(info.values)}
    limits_of = {
        name: getattr(info, name)
        for name in ("gt", "ge", "lt", "le", "pattern", "min_length", "max_length")
        if getattr(info, name, None) is not None
    }
    return {type(info).__name__.removesuffix("Type").lower(): limits_of}


def differences(old, new):
    """What of a new schema is not compatible with an old one, in words; none where all is."""
    found = []
    for conversation, kinds in old.items():
        same = operator.eq if conversation in READ_BY_CLIENTS else _extends
        for kind, before in kinds.items():
            after = new[conversation].get(kind)
            what = f"{kind} ({conversation})"
            if after is None:
                found.append(f"{what} is gone")
            elif not same(after[: len(before)], before):
                found.append(f"{what} has other fields than before")
            elif conversation in READ_BY_CLIENTS and after != before:
                found.append(f"{what} has a field more, which older clients refuse")
            elif any("default" not in field for field in after[len(before) :]):
                found.append(f"{what} has a field more without a default")
    return found


def _extends(after, before):
    """Whether a form is what it was, but that parts may have more fields at their end."""
    if isinstance(before, list):
        pairs = zip(after, before, strict=False)
        return len(after) == len(before) and all(_extends(a, b) for a, b in pairs)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after == before
    if before.keys() != after.keys():
        return False
    return all(_GROWS.get(key, _extends)(after[key], before[key]) for key in before)


def _more_fields(after, before):
    more = after[len(before) :]
    return _extends(after[: len(before)], before) and all("default" in field for field in more)


def _more_values(after, before):
    """The default of a part that has more fields now."""
    return after == before or (isinstance(before, list) and after[: len(before)] == before)


_GROWS = {"array": _more_fields, "default": _more_values}


# -- the samples -----------------------------------------------------------------------------


def frames():
    """Conversation -> message -> two payloads, in hexadecimal."""
    return {
        name: {
            kind.__name__: [msgspec.msgpack.encode(each).hex() for each in samples(kind)]
            for kind in _kinds(union)
        }
        for name, union in CONVERSATIONS.items()
    }


def samples(kind):
    """The message with its required fields alone, and with all; always the same values."""
    return [_sample(inspect.type_info(kind), itertools.count(3), full) for full in (False, True)]


def _sample(info, numbers, full):
    if isinstance(info, inspect.StructType):
        return info.cls(
            **{
                field.name: _sample(field.type, numbers, full)
                for field in info.fields
                if full or field.required
            }
        )
    if isinstance(info, inspect.UnionType):
        kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        return _sample(kinds[next(numbers) % len(kinds)], numbers, full)
    if isinstance(info, inspect.VarTupleType | inspect.ListType):
        count = min(2, 2 if info.max_length is None else info.max_length) if full else 0
        return tuple(_sample(info.item_type, numbers, full) for _ in range(count))
    if isinstance(info, inspect.TupleType):
        return tuple(_sample(each, numbers, full) for each in info.item_types)
    if isinstance(info, inspect.DictType):
        return {_sample(info.key_type, numbers, full): _sample(info.value_type, numbers, full)}
    return _plain(info, next(numbers))


def _plain(info, number):
    if isinstance(info, inspect.BoolType):
        return True
    if isinstance(info, inspect.FloatType):
        return max(number + 0.5, info.ge or 0.0)
    if isinstance(info, inspect.BytesType):
        return bytes([number % 256]) * (info.min_length or 1)
    if isinstance(info, inspect.StrType):
        return "int" if info.pattern is not None else f"word {number}"
    if isinstance(info, inspect.NoneType):
        return None
    if isinstance(info, inspect.LiteralType):
        return info.values[number % len(info.values)]
    least = info.ge if info.ge is not None else 0
    most = info.le if info.le is not None else (1 << 30 if info.lt is None else info.lt - 1)
    return max(least, min(number, most))


# -- the files -------------------------------------------------------------------------------


def stored(version, name):
    """A golden file's content."""
    return json.loads((GOLDEN / str(version) / f"{name}.json").read_text())


def _text(content):
    """JSON with a field, or a sample, a line, so that a change shows as what it is."""
    conversations = []
    for conversation, kinds in sorted(content.items()):
        shown = []
        for kind, rows in kinds.items():
            lines = ",".join(f"\n   {json.dumps(row, sort_keys=True)}" for row in rows)
            shown.append(f"\n  {json.dumps(kind)}: [{lines}]")
        conversations.append(f"\n {json.dumps(conversation)}: {{{','.join(shown)}}}")
    return f"{{{','.join(conversations)}\n}}\n"


def main():
    """Write the files of this version; the exit status."""
    directory = GOLDEN / str(limits.PROTOCOL)
    if (directory / "schema.json").exists():
        wrong = differences(stored(limits.PROTOCOL, "schema"), schema())
        if wrong:
            said = "\n".join(wrong)
            sys.stderr.write(
                f"{said}\nThat is another protocol: raise PROTOCOL and OLDEST_PROTOCOL in "
                "jgpu/wire/limits.py, see to it that clients of the version before are served, and "
                "run this again.\n"
            )
            return 1
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (("schema", schema()), ("frames", frames())):
        (directory / f"{name}.json").write_text(_text(content))
    sys.stdout.write(f"Written: {directory}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
