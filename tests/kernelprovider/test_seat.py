"""Seats and private brokers, against the fake."""

import os
import threading

import pytest

from jgpu.errors import BrokerRefused, BrokerUnreachable
from jgpu.kernelprovider import privatebroker
from jgpu.kernelprovider.environment import HIDDEN, furnish, outer_environment, set_startup
from jgpu.kernelprovider.seat import Seat, leave, take
from jgpu.wire.address import Address, find
from jgpu.wire.limits import PROTOCOL
from jgpu.wire.messages import LeaveSeat, Refused, TakeSeat


def test_a_seat_is_asked_for_with_kernel_label_and_user(control):
    environ = {**os.environ, "JGPU_USER": "user1"}
    seat = take(environ, kernel_id="k1", label="a.ipynb")
    assert seat == Seat(Address(control.path, "environment"), "ticket-1")
    leave(seat, restart=True)
    leave(seat)
    assert control.requests == [
        TakeSeat(PROTOCOL, "k1", "a.ipynb", "user1"),
        LeaveSeat("ticket-1", restart=True),
        LeaveSeat("ticket-1", restart=False),
    ]


def test_a_long_label_is_cut(control):
    take(kernel_id="k" * 999, label="x" * 99999)
    request = control.requests[0]
    assert (len(request.kernel_id), len(request.label)) == (256, 1024)


def test_a_broker_named_in_the_environment_is_never_replaced_by_a_private_one(control):
    control.stop()
    with pytest.raises(BrokerUnreachable, match=r"has ended\. JGPU_ADDRESS names it"):
        take(kernel_id="k1")


def test_a_refusal_is_no_reason_for_a_private_broker(control, private_python):
    control.refusal = Refused("refused", "Not on Sundays.")
    with pytest.raises(BrokerRefused, match="Not on Sundays"):
        take(kernel_id="k1")
    assert not private_python.exists()


def test_a_private_broker_is_started_where_none_answers_and_used_by_the_next(private_python):
    first, second = take(kernel_id="k1"), take(kernel_id="k2")
    assert (first.ticket, second.ticket) == ("ticket-1", "ticket-2")
    assert len(private_python.read_text().split()) == 1
    assert first.address.path.parent.stat().st_mode & 0o777 == 0o700


def test_many_that_start_a_private_broker_at_once_get_one(private_python):
    seats, barrier = [], threading.Barrier(6, timeout=30)

    def one(number):
        barrier.wait()
        seats.append(take(kernel_id=f"k{number}"))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({seat.ticket for seat in seats}) == 6
    assert len(private_python.read_text().split()) == 1


def test_a_private_broker_that_ends_at_once_is_quoted():
    command = ["/bin/sh", "-c", "echo first; echo the device is on fire >&2; exit 3"]
    with pytest.raises(BrokerUnreachable, match=r"status 3: the device is on fire \(log: "):
        privatebroker.start(find(), command=command)


def test_old_words_in_the_log_are_not_quoted():
    for words in ("old", "new"):
        with pytest.raises(BrokerUnreachable, match=f"status 1: {words} "):
            privatebroker.start(find(), command=["/bin/sh", "-c", f"echo {words}; exit 1"])


def test_a_private_broker_that_cannot_be_executed_is_an_error():
    with pytest.raises(BrokerUnreachable, match=r"/no/such: No such file"):
        privatebroker.start(find(), command=["/no/such"])


def test_a_private_broker_that_never_listens_is_an_error_in_time():
    with pytest.raises(BrokerUnreachable, match="not ready yet"):
        privatebroker.start(find(), command=["/bin/sleep", "1"], timeout_s=0.1)


def test_an_interpreter_without_the_extras_says_so(monkeypatch):
    monkeypatch.setattr(privatebroker, "_MODULES", ("sys", "no_such_module", "neither_this"))
    with pytest.raises(BrokerUnreachable, match="lacks no_such_module, neither_this: install"):
        privatebroker.start(find())


def test_the_hiding_is_undone_for_a_broker():
    outer = {"CUDA_VISIBLE_DEVICES": "1", "PYTHONSTARTUP": "/s.py", "HOME": "/h", "JGPU_X": "y"}
    inner = dict(outer)
    for _ in range(2):  # a kernel started from a kernel is furnished twice
        furnish(inner, where=Address("/a", "user"), ticket="t", label="l", kernel_id="k")
        set_startup(inner)
    assert {name: inner[name] for name in HIDDEN} == HIDDEN
    assert inner["JGPU_TICKET"] == "t"
    back = outer_environment(inner)
    assert back.pop("TORCH_DEVICE_BACKEND_AUTOLOAD") == "1"
    assert back == outer


def test_a_problem_stands_where_the_ticket_would():
    environ = {"JGPU_LABEL": "somebody else's"}
    furnish(environ, where=None, problem="No broker.")
    assert environ["JGPU_TICKET"] == "none"
    assert environ["JGPU_PROBLEM"] == "No broker."
    assert "JGPU_LABEL" not in environ
    assert "JGPU_ADDRESS" not in environ
