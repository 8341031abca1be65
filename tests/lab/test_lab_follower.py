"""The line to the broker: only while somebody listens, back by itself, and never a broker's reason.

Brokers that hang, or are older, are played; all others are real.
"""

import asyncio
import contextlib
import json
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from lab_server import Notebook
from merging import merged
from real_broker import real_broker

from jgpu.errors import FrameError
from jgpu.labserver.feed import Feed
from jgpu.labserver.follower import Delays, Follower
from jgpu.wire.address import Address, user_socket
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import AskStatus, ControlMessage, Refused, StatusIs
from jgpu.wire.reports.report import BrokerReport, Report

DEADLINE_S = 20.0
SOON = Delays(timeout_s=0.5, again_s=0.05, older_s=0.05, silence_s=0.3)


class Recorder:
    """A page that keeps what it is told; it reads while `reads` is set."""

    def __init__(self):
        self.state = None
        self.messages = []
        self.told = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()

    async def tell(self, text):
        message = json.loads(text)
        self.messages.append(message)
        self.state = message.get("state") or merged(message["patch"], self.state)
        self.told.set()
        await self.reads.wait()

    async def until(self, condition):
        async with asyncio.timeout(DEADLINE_S):
            while self.state is None or not condition(self.state):
                self.told.clear()
                await self.told.wait()
        return self.state


@contextlib.asynccontextmanager
async def listening(environ):
    feed, page = Feed(environ, SOON), Recorder()
    feed.join(page, may_act=True)
    try:
        yield feed, page
    finally:
        await feed.close()


class Played:
    """A broker's socket that answers as the test says."""

    def __init__(self, path, answer):
        self.path = path
        self.answer = answer
        self.connections = 0
        self.open = 0
        self.writers = []

    async def serve(self, reader, writer):
        self.connections += 1
        self.open += 1
        self.writers.append(writer)
        frames = FrameReader(ControlMessage)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in frames.feed(data):
                    if (reply := self.answer(message)) is not None:
                        writer.write(FrameWriter().encode(reply, 1))
        self.open -= 1
        self.writers.remove(writer)
        writer.close()

    async def __aenter__(self):
        self.server = await asyncio.start_unix_server(self.serve, self.path)
        return self

    async def __aexit__(self, *exc):
        self.server.close()
        self.path.unlink(missing_ok=True)
        for writer in self.writers:
            writer.close()
        await soon(lambda: not self.open)


async def soon(condition):
    """Wait for what other tasks bring about."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - of counters
            await asyncio.sleep(0.01)


@pytest.fixture
def place():
    """A socket's path, and the environment that leads there."""
    with tempfile.TemporaryDirectory(prefix="jgpu-") as name:
        path = Path(name, "broker.sock")
        yield path, {"JGPU_ADDRESS": f"unix:{path}", "HOME": name}


def status(text="played"):
    return StatusIs(msgspec.json.encode(Report(broker=BrokerReport(version=text, asker="user1"))))


def test_a_broker_that_is_not_there_is_said_and_found_when_it_comes(place):
    path, environ = place

    async def main():
        async with listening(environ) as (_, page):
            state = await page.until(lambda state: state["problem"])
            assert state["problem"].startswith(f"There is no broker at unix:{path}.")
            assert not state["known"]
            assert state["shares"]
            async with Played(path, lambda message: status()):
                state = await page.until(lambda state: not state["problem"])
                assert state["known"]

    asyncio.run(main())


def test_a_broker_that_takes_the_question_and_hangs_is_said(place):
    path, environ = place

    async def main():
        async with Played(path, lambda message: None), listening(environ) as (_, page):
            state = await page.until(lambda state: state["problem"])
            assert "gave no answer within 0.5 s" in state["problem"]

    asyncio.run(main())


def test_a_broker_that_hangs_later_is_said_too_and_the_last_figures_stay(place):
    path, environ = place
    hangs = False

    async def main():
        nonlocal hangs
        broker = Played(path, lambda message: None if hangs else status())
        async with broker, listening(environ) as (_, page):
            await page.until(lambda state: state["known"])
            hangs = True
            state = await page.until(lambda state: state["problem"])
            assert "gave no answer within 0.5 s" in state["problem"]
            assert state["known"]
            assert "drain" in state
            hangs = False
            await page.until(lambda state: not state["problem"])

    asyncio.run(main())


def test_silence_of_a_broker_that_answers_is_none(place):
    path, environ = place
    asked = 0

    def answer(message):
        nonlocal asked
        asked += isinstance(message, AskStatus)
        return status()

    async def main():
        async with Played(path, answer), listening(environ) as (_, page):
            await page.until(lambda state: state["known"])
            await soon(lambda: asked >= 3)
            assert len(page.messages) == 1

    asyncio.run(main())


def test_a_broker_that_knows_no_watching_is_asked_again_and_again(place):
    path, environ = place
    version = "1"

    def answer(message):
        if isinstance(message, AskStatus):
            return StatusIs(
                msgspec.json.encode(
                    Report(broker=BrokerReport(asker="user1", drain_text=version, drain="draining"))
                )
            )
        return Refused(FrameError.reason, "What came is none of the messages.")

    async def main():
        nonlocal version
        async with Played(path, answer), listening(environ) as (_, page):
            await page.until(lambda state: state.get("drain_text") == "1")
            version = "2"
            state = await page.until(lambda state: state.get("drain_text") == "2")
            assert state["problem"] == ""

    asyncio.run(main())


def test_nobody_asks_a_broker_when_nobody_listens(place):
    path, environ = place

    async def main():
        async with Played(path, lambda message: status()) as broker:
            feed = Feed(environ, SOON)
            pages = [Recorder(), Recorder()]
            assert broker.connections == 0
            for page in pages:
                feed.join(page)
            for page in pages:
                await page.until(lambda state: state["known"])
            assert broker.open == 1
            feed.leave(pages[0])
            assert broker.open == 1
            feed.leave(pages[1])
            await soon(lambda: not broker.open)
            many = broker.connections
            again = Recorder()
            feed.join(again)
            await again.until(lambda state: state["known"])
            assert again.messages[0]["state"]["known"], "what was known before is old"
            assert broker.connections == many + 1
            await feed.close()

    asyncio.run(main())


def test_a_page_that_does_not_read_is_told_what_is_different_by_then(place):
    path, environ = place
    text = "0"

    def answer(message):
        if isinstance(message, AskStatus):
            broker = BrokerReport(asker="user1", drain="draining", drain_text=text)
            return StatusIs(msgspec.json.encode(Report(broker=broker)))
        return Refused(FrameError.reason, "older")

    async def main():
        nonlocal text
        async with Played(path, answer), listening(environ) as (feed, slow):
            await slow.until(lambda state: state["known"])
            slow.reads.clear()
            quick = Recorder()
            feed.join(quick)
            for number in range(1, 4):
                text = str(number)
                await quick.until(lambda state, text=text: state.get("drain_text") == text)
            assert len(slow.messages) == 2
            slow.reads.set()
            await slow.until(lambda state: state.get("drain_text") == "3")
            assert len(slow.messages) == 3

    asyncio.run(main())


def test_kernels_without_a_way_to_the_gpu_are_said_to_have_none(place):
    _, environ = place
    environ |= {"JGPU_TICKET": "none", "JGPU_PROBLEM": "Your server got no part of the GPU."}

    async def main():
        async with listening(environ) as (feed, page):
            state = await page.until(lambda state: True)
            assert (state["shares"], state["problem"]) == (False, environ["JGPU_PROBLEM"])
            assert (await feed.asked())["problem"] == environ["JGPU_PROBLEM"]

    asyncio.run(main())


def test_a_mistake_of_our_own_is_said_and_does_not_last(place, caplog):
    path, environ = place
    problems = []

    def changed():
        problems.append(follower.problem)
        if problems.count("") <= 3 and not follower.problem:
            raise ValueError("a mistake")

    async def main():
        nonlocal follower
        follower = Follower(changed, environ, SOON)
        async with Played(path, lambda message: status()):
            follower.start()
            await soon(lambda: len(problems) >= 7)
            assert follower.known
            await follower.close()

    follower = None
    asyncio.run(main())
    assert problems == ["", "a mistake"] * 3 + [""]
    assert len(caplog.records) == 3


def test_an_address_that_is_none_is_said(place):
    _, environ = place

    async def main():
        async with listening(environ | {"JGPU_ADDRESS": "tcp:nowhere"}) as (_, page):
            state = await page.until(lambda state: state["problem"])
            assert "it has to read unix:/path" in state["problem"]

    asyncio.run(main())


@pytest.mark.slow
def test_a_private_broker_ends_unused_although_a_page_watches_and_none_is_started():
    with tempfile.TemporaryDirectory(prefix="jgpu-") as name:
        environ = {"XDG_STATE_HOME": name, "HOME": name}
        path = user_socket(environ)
        path.parent.mkdir(parents=True, mode=0o700)

        async def main():
            async with listening(environ) as (_, page):
                state = await page.until(lambda state: state["known"])
                assert (state["problem"], state["kernels"]) == ("", {})
                assert os.listdir(path.parent) == []
                options = ("--private", "--idle", "1.5", "--device", "null")
                broker = real_broker(path.parent, *options, private=False)
                await asyncio.to_thread(broker.__enter__)
                try:
                    await page.until(lambda state: "device" in state)
                    notebook = await asyncio.to_thread(Notebook, Address(path, "user"), "k")
                    await page.until(lambda state: "k" in state["kernels"])
                    notebook.close()
                    await page.until(lambda state: not state["kernels"])
                    state = await page.until(lambda state: "device" not in state)
                    assert state["problem"] == ""
                    assert not path.exists()
                    await asyncio.sleep(SOON.again_s * 4)
                    assert not path.exists()
                finally:
                    await asyncio.to_thread(broker.__exit__, None, None, None)

        asyncio.run(main())


@pytest.mark.slow
def test_a_broker_that_is_killed_and_started_again_is_found(place):
    path, environ = place
    options = ("--device", "null", "--spool", f"{path.parent}/spool")

    async def main():
        async with listening(environ) as (_, page):
            for _ in range(2):
                broker = real_broker(path.parent, *options)
                await asyncio.to_thread(broker.__enter__)
                try:
                    await page.until(lambda state: not state["problem"] and "device" in state)
                finally:
                    await asyncio.to_thread(broker.__exit__, None, None, None)
                state = await page.until(lambda state: state["problem"])
                assert "device" in state, "the last figures stay"

    asyncio.run(main())
