"""Bytes in words."""

import pytest

from jgpu.wire.sizes import size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (3 << 19, "1.50 MiB"),
        (80 << 30, "80.00 GiB"),
    ],
)
def test_sizes_are_told_in_the_largest_unit_that_they_reach(nbytes, text):
    assert size_text(nbytes) == text
