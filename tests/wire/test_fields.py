"""Text that was no UTF-8 where it came from."""

import msgspec
import pytest

from jgpu.wire.fields import sendable


@pytest.mark.parametrize("text", ["", "a/lesson.ipynb", "caf\u00e9 \U0001f600\n<b>"])
def test_text_stays_as_it_is(text):
    assert sendable(text) == text


@pytest.mark.parametrize(("text", "sent"), [("caf\udce9.ipynb", "caf?.ipynb"), ("\ud83d b", "? b")])
def test_what_is_none_is_replaced_and_can_be_sent(text, sent):
    with pytest.raises(UnicodeEncodeError):
        msgspec.msgpack.encode(text)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sendable(text))) == sent
