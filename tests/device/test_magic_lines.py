"""What `%jgpu` says of a report, word by word; no torch, no broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jgpu.device.magics.state import describe
from jgpu.device.magics.words import of, seconds
from jgpu.wire.reports.report import (
    BrokerReport,
    DeviceReport,
    QuotaReport,
    Report,
    SessionReport,
    UserReport,
)

GIB = 1 << 30
DEVICE = DeviceReport(name="GPU", kind="cuda", capacity_bytes=80 * GIB)
OWN = SessionReport(
    id=7,
    user="user1",
    state="idle",
    resident_bytes=int(0.9 * GIB),
    ephemeral_bytes=int(0.3 * GIB),
    device_seconds=12.3,
)
USER = UserReport(
    name="user1",
    quota=QuotaReport(memory=4 * GIB),
    resident_bytes=OWN.resident_bytes,
    ephemeral_bytes=OWN.ephemeral_bytes,
)


def said(row=OWN, user=USER, device=DEVICE, others=(), **broker):
    told = Report(
        broker=BrokerReport(**broker),
        devices=(device,) if device else (),
        sessions=(*((row,) if row else ()), *others),
        users=(user,) if user else (),
    )
    return "\n".join(describe(told, row, user))


def other(number, state):
    return SessionReport(id=number, state=state)


def test_a_notebook_that_rests():
    assert said() == (
        "GPU: resting · 1.2 of 4 GiB (model 922 MiB, kept 307 MiB) · 12.3 s of device time · "
        "nobody waits"
    )


def test_a_notebook_that_waits_says_for_what_and_behind_how_many():
    row = replace(OWN, state="waiting", waits_on="turn", queue_position=2, ahead=2)
    others = (other(1, "running"), other(2, "waiting"), other(3, "waiting"))
    text = said(row, others=others)
    assert text.startswith("GPU: waiting, 2 ahead · ")
    assert text.endswith(" · 2 others wait")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("turn", "waiting"),
        ("memory", "waiting for memory"),
        ("copy", "waiting for its memory"),
        ("drain", "waiting for maintenance"),
        ("budget", "waiting, over budget"),
        ("", "waiting"),
        ("something newer", "waiting"),
    ],
)
def test_every_reason_has_words(what, words):
    row = replace(OWN, state="waiting", waits_on=what, queue_position=3)
    assert said(row).startswith(f"GPU: {words} · ")


def test_with_nobody_before_it_a_notebook_is_next():
    row = replace(OWN, state="waiting", waits_on="turn", queue_position=1, ahead=0)
    assert said(row).startswith("GPU: waiting, next · ")


@pytest.mark.parametrize(
    ("state", "word"),
    [("running", "running"), ("spilled", "resting"), ("starting", "starting"), ("newer", "newer")],
)
def test_every_state_has_a_word(state, word):
    assert said(replace(OWN, state=state)).startswith(f"GPU: {word} · ")


def test_what_is_on_the_host_and_in_other_notebooks_is_told_apart():
    row = replace(OWN, spilled_bytes=GIB // 4)
    user = replace(USER, ephemeral_bytes=USER.ephemeral_bytes + 2 * GIB)
    text = "kept 307 MiB; of this 256 MiB on the host), 2 GiB in your other notebooks"
    assert text in said(row, user)


def test_a_notebook_that_does_not_use_it_is_told_what_it_could_have():
    yet = "GPU: this notebook does not use it yet"
    assert said(None) == f"{yet} · 4 GiB for you · nobody waits"
    assert said(None, None) == f"{yet} · 80 GiB on the device · nobody waits"
    assert said(None, None, None) == f"{yet} · nobody waits"


def test_a_device_that_is_not_ready_has_no_size_yet():
    device = replace(DEVICE, capacity_bytes=0)
    assert said(None, None, device) == "GPU: this notebook does not use it yet · nobody waits"
    assert "· 1.2 GiB (model 922 MiB, kept 307 MiB) ·" in said(device=device)


def test_a_budget_is_told_with_what_is_used_of_it():
    quota = QuotaReport(device_seconds=4 * 3600.0, period=86400.0)
    text = said(user=replace(USER, quota=quota, used_in_period=342.0))
    assert "1.2 of 80 GiB" in text
    assert "12.3 s of device time (you: 5.7 min of 4 h in 1 d)" in text


def test_what_is_wrong_is_a_sentence_of_its_own():
    user = replace(USER, state="throttled", text="Your device time is used up.")
    device = replace(DEVICE, note="The device is being started again.")
    text = said(OWN, user, device, drain="draining", drain_text="Nothing new begins.")
    assert text.splitlines()[1:] == [device.note, "Nothing new begins.", user.text]


def test_the_cpu_is_no_gpu():
    assert said(device=replace(DEVICE, kind="cpu")).endswith(" · the device is the CPU")


def test_a_part_has_its_own_unit_where_it_needs_one():
    assert of(GIB, 4 * GIB) == "1 of 4 GiB"
    assert of(GIB // 2, 4 * GIB) == "512 MiB of 4 GiB"
    assert of(0, 4 * GIB) == "0 B of 4 GiB"
    assert of(5, 12) == "5 of 12 B"


def test_times_have_the_unit_that_a_person_takes():
    assert [seconds(s) for s in (0.0, 12.34, 120, 5400, 172800)] == [
        "0 s", "12.3 s", "2 min", "1.5 h", "2 d",
    ]  # fmt: skip


numbers = st.integers(0, 1 << 50)
rows = st.builds(
    SessionReport,
    id=st.just(7),
    state=st.sampled_from(["idle", "waiting", "running", "spilled", "x", ""]),
    resident_bytes=numbers,
    ephemeral_bytes=numbers,
    spilled_bytes=numbers,
    waits_on=st.text(max_size=9),
    queue_position=st.none() | numbers,
    ahead=st.none() | numbers,
    device_seconds=st.floats(0, 1e9),
)
quotas = st.builds(
    QuotaReport, memory=numbers, device_seconds=st.floats(0, 1e9), period=st.floats(0, 1e9)
)
users = st.builds(UserReport, name=st.just("user1"), quota=quotas, resident_bytes=numbers)


@given(st.none() | rows, st.none() | users, st.lists(rows, max_size=3))
def test_whatever_a_broker_says_is_one_line(row, user, others):
    text = said(row, user, others=others)
    assert text.startswith("GPU: ")
    assert len(text.splitlines()) == 1
