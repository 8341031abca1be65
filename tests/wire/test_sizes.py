"""Bytes and seconds in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgpu.wire.sizes import (
    duration,
    exact_size,
    exact_time,
    parse_bytes,
    parse_seconds,
    short_size,
    torch_size,
)


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
def test_in_torchs_manner_sizes_are_told_in_the_largest_unit_that_they_reach(nbytes, text):
    assert torch_size(nbytes) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KiB"),
        (1024, "1 KiB"),
        (1023488, "1000 KiB"),
        (1000 << 20, "1 GiB"),
        (1 << 30, "1 GiB"),
        (1500 << 20, "1.46 GiB"),
        (900 << 30, "900 GiB"),
        (1 << 60, "1050000 TiB"),
    ],
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


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("1000", 1000), ("2G", 2 << 30), ("1.5 GiB", 3 << 29), (" 512mb", 512 << 20)],
)
def test_sizes_are_written_as_people_write_them(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "G", "-1", "2Q", "1e9", "2G2", "inf", "٢G", "9" * 400])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is no size; write it like 512M or 2G"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("1.5 m", 90.0), ("2h", 7200.0), ("7d", 7 * 86400.0)],
)
def test_times_are_written_as_people_write_them(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "2w", "1e9", "nan", "9" * 400])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="is no time; write it like 90, 15m, 2h or 7d"):
        parse_seconds(text)


@given(st.integers(0, 1 << 50))
def test_what_is_told_as_settings_are_written_is_read_as_it_was(nbytes):
    assert parse_bytes(exact_size(nbytes)) == nbytes


@given(st.integers(0, 1 << 50))
def test_a_short_size_is_right_to_three_digits(nbytes):
    text = short_size(nbytes)
    # "1 GiB" is also what is just short of it
    part = 0.025 if text.startswith("1 ") else 0.005
    assert abs(parse_bytes(text) - nbytes) <= nbytes * part + 1
