"""Hypothesis strategies made from msgspec types, with the limits that the types declare."""

import msgspec
from hypothesis import strategies as st

#: Lists and texts are tried up to this length; the limits themselves have tests of their own.
LONGEST = 4


def values_of(kind):
    """Values of a Python type as msgspec understands it."""
    return _strategy(msgspec.inspect.type_info(kind))


def _strategy(info):
    return _BUILDERS[type(info)](info)


def _integers(info):
    low, high = info.ge, info.le
    if low is None and info.gt is not None:
        low = info.gt + 1
    if high is None and info.lt is not None:
        high = info.lt - 1
    return st.integers(-(1 << 63) if low is None else low, (1 << 64) - 1 if high is None else high)


def _text(info):
    if info.pattern is not None:
        return st.from_regex(info.pattern, fullmatch=True)
    return st.text(max_size=_shorter(info.max_length))


def _bytes(info):
    least = info.min_length or 0
    return st.binary(min_size=least, max_size=max(least, _shorter(info.max_length)))


def _struct(info):
    fields = {field.name: _strategy(field.type) for field in info.fields}
    return st.builds(info.cls, **fields)


def _shorter(limit):
    return LONGEST if limit is None else min(limit, LONGEST)


_BUILDERS = {
    msgspec.inspect.BoolType: lambda _: st.booleans(),
    msgspec.inspect.IntType: _integers,
    msgspec.inspect.FloatType: lambda i: st.floats(i.ge, i.le),
    msgspec.inspect.StrType: _text,
    msgspec.inspect.BytesType: _bytes,
    msgspec.inspect.NoneType: lambda _: st.none(),
    msgspec.inspect.LiteralType: lambda i: st.sampled_from(i.values),
    msgspec.inspect.UnionType: lambda i: st.one_of(*map(_strategy, i.types)),
    msgspec.inspect.VarTupleType: lambda i: st.lists(
        _strategy(i.item_type), max_size=_shorter(i.max_length)
    ).map(tuple),
    msgspec.inspect.TupleType: lambda i: st.tuples(*map(_strategy, i.item_types)),
    msgspec.inspect.DictType: lambda i: st.dictionaries(
        _strategy(i.key_type), _strategy(i.value_type), max_size=_shorter(i.max_length)
    ),
    msgspec.inspect.StructType: _struct,
}
