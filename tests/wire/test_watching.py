"""A watcher's side: reports from bytes cut anywhere, refusals, brokers that end or fall silent."""

import asyncio
import socket
import threading

import msgspec
import pytest
from msgspec.structs import replace

from jgpu.errors import BrokerRefused, BrokerUnreachable, FrameError
from jgpu.wire.address import Address
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import ControlMessage, Done, Refused, StatusChanged, StatusIs, Watch
from jgpu.wire.reports.changes import changes
from jgpu.wire.reports.report import BrokerReport, Report, SessionReport
from jgpu.wire.reports.watching import Subscription, follow, watch

FIRST = Report(broker=BrokerReport(pid=1))
SECOND = replace(FIRST, sessions=(SessionReport(id=4, user="user1"),))
JSON = msgspec.json.encode(FIRST)


def frames(*messages):
    writer = FrameWriter()
    return [writer.encode(message, 1) for message in messages]


def whole_and_change():
    change = msgspec.json.encode(changes(FIRST, SECOND))
    return frames(StatusIs(JSON), StatusChanged(change))


def by_waiting(address, timeout_s):
    yield from watch(address, timeout_s)


def on_a_loop(address, timeout_s):
    with asyncio.Runner() as runner:
        reports = follow(address, timeout_s)
        try:
            while (report := runner.run(anext(reports, None))) is not None:
                yield report
        finally:
            runner.run(reports.aclose())


@pytest.fixture(params=[by_waiting, on_a_loop])
def reader(request):
    """Both ways to watch."""
    return request.param


@pytest.fixture
def answer(tmp_path):
    """Answer the next who comes with these bytes, and then end the connection, or not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        threads, heard, over = [], [], threading.Event()

        def serve(data, end, listens):
            connection, _ = server.accept()
            with connection:
                messages = FrameReader(ControlMessage)
                while listens and not heard:
                    heard.extend(messages.feed(connection.recv(1 << 16)))
                connection.sendall(data)
                if not end:
                    over.wait(30)

        def start(*data, end=True, listens=True):
            given = (b"".join(data), end, listens)
            threads.append(threading.Thread(target=serve, args=given))
            threads[-1].start()
            return Address(tmp_path / "s", "environment"), heard

        yield start
        over.set()
        for thread in threads:
            thread.join(30)


def test_what_was_told_is_the_same_however_the_bytes_are_cut():
    data = b"".join(whole_and_change())
    subscription = Subscription()
    assert [
        report for at in range(len(data)) for report in subscription.feed(data[at : at + 1])
    ] == [FIRST, SECOND]
    assert subscription.report == SECOND


def test_a_change_without_a_report_before_it_is_refused():
    with pytest.raises(FrameError, match="StatusChanged"):
        list(Subscription().feed(whole_and_change_alone()))


def whole_and_change_alone():
    return frames(StatusChanged(b"{}"))[0]


def test_a_broker_that_is_older_is_told_by_an_error_of_its_own():
    refused = Refused("frame", "A frame holds no message that is known here.")
    with pytest.raises(FrameError, match="no message that is known"):
        list(Subscription().feed(frames(refused)[0]))


def test_the_report_comes_and_then_what_changes_until_the_broker_ends(reader, answer):
    address, heard = answer(*whole_and_change())
    reports = reader(address, 30.0)
    assert [next(reports), next(reports)] == [FIRST, SECOND]
    assert heard == [Watch()]
    with pytest.raises(BrokerUnreachable, match="ended the connection"):
        next(reports)


def test_a_watcher_that_goes_closes_its_connection(reader, answer):
    address, _ = answer(*whole_and_change(), end=False)
    reports = reader(address, 30.0)
    assert next(reports) == FIRST
    reports.close()


def test_without_a_change_the_report_comes_again_for_whoever_wants_to_show_that_time_passes(answer):
    address, _ = answer(*whole_and_change(), end=False)
    reports = watch(address, 30.0, every_s=0.01)
    assert [next(reports) for _ in range(4)] == [FIRST, SECOND, SECOND, SECOND]
    reports.close()


def test_a_refusal_is_its_error(reader, answer):
    address, _ = answer(*frames(Refused("refused", "Too many watch.")), end=False)
    with pytest.raises(BrokerRefused, match="Too many watch"):
        next(reader(address, 30.0))


def test_another_answer_is_an_error(reader, answer):
    address, _ = answer(*frames(Done("What?")), end=False)
    with pytest.raises(FrameError, match="was told Done"):
        next(reader(address, 30.0))


def test_a_broker_that_says_nothing_is_not_waited_for(reader, answer):
    address, _ = answer(end=False)
    with pytest.raises(BrokerUnreachable, match=r"no answer within 0\.05 s"):
        next(reader(address, 0.05))


def test_a_connection_that_breaks_is_told(reader, answer):
    address, _ = answer(*whole_and_change(), listens=False)  # closed with the request unread
    with pytest.raises(BrokerUnreachable, match=r"broke the connection|ended the connection"):
        list(reader(address, 30.0))
