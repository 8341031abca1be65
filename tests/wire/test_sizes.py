"""Bytes and seconds in words."""

import pytest

from jgpu.wire.sizes import duration, exact_size, exact_time, short_size, size_text


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


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (1 << 30, "1 GiB"), (1000 << 20, "0.977 GiB")],
)
def test_short_sizes_have_three_digits(nbytes, text):
    assert short_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1:00"),
        (125.9, "2:05"),
        (3609, "1:00:09"),
        (48 * 3600 - 1, "47:59:59"),
        (76 * 3600, "3 d 4 h"),
    ],
)
def test_times_grow_in_unit_with_their_size(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0"),
        (1000, "1000"),
        (1536, "1536"),
        (3 << 19, "1536K"),
        (4 << 30, "4G"),
        (1 << 50, "1024T"),
    ],
)
def test_exact_sizes_are_whole_in_their_unit(nbytes, text):
    assert exact_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0"), (0.25, "0.25"), (90.0, "90"), (120.0, "2m"), (5400.0, "90m"), (7 * 86400.0, "7d")],
)
def test_exact_times_are_whole_in_their_unit(seconds, text):
    assert exact_time(seconds) == text
