"""Ctrl-C at the wire steps of a notebook: a slice of them everyday, all of them again and again.

And how it is put off, it and the handlers of other signals.
"""

import ctypes
import json
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress

import pytest
import torch
from interrupted import Steps, Walk, connecting

from jgpu.device import current, interrupts
from jgpu.wire.messages import Cancel

EVERY = int(os.environ.get("JGPU_EVERY", "20"))
ROUNDS = int(os.environ.get("JGPU_ROUNDS", "1"))


@pytest.mark.timeout(0 if EVERY == 1 else 120)
def test_an_interrupt_at_any_wire_step_costs_the_cell_and_nothing_else():
    with Steps().watched() as steps:
        walks = (Walk(steps, EVERY, number) for number in range(ROUNDS))
        found = [(walk.go(), walk.survived) for walk in walks]
    counts, survived = [count for count, _ in found], sum(each for _, each in found)
    assert counts[0] > 100 / EVERY
    assert survived <= sum(counts) // 10
    if "JGPU_FIGURES" in os.environ:
        with open(os.environ["JGPU_FIGURES"], "w") as file:
            json.dump({"steps": counts, "interrupts": sum(counts), "ignored": survived}, file)


def test_an_interrupt_while_the_connection_is_made_loses_no_seed():
    with Steps().watched() as steps:
        at = 1
        while connecting(steps, at):
            at += 1
    assert at > 5


@pytest.fixture(params=["as it is", "in Python"])
def quiet(request, monkeypatch):
    """Either form of the blocks, which the handlers ask."""
    if request.param == "in Python":
        monkeypatch.setattr(interrupts, "quiet", interrupts.QuietInPython)
    yield interrupts.quiet
    assert interrupts.quiet.depth() == 0


def strike():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_put_off_to_the_end_of_the_outermost_block(quiet):
    done, before = [], interrupts.passed()

    def blocks():
        with quiet():
            with quiet():
                strike()
                strike()
                done.append(quiet.depth())
            done.append(quiet.depth())

    with pytest.raises(KeyboardInterrupt):
        blocks()
    assert (done, interrupts.passed()) == ([2, 1], before + 1)
    with quiet():
        pass  # it was told, once
    with pytest.raises(KeyboardInterrupt):
        strike()


def test_an_interrupt_in_a_block_that_fails_says_so_too(quiet):
    def block(*, struck):
        with quiet():
            if struck:
                strike()
            raise ValueError("mine")

    with pytest.raises(KeyboardInterrupt) as caught:
        block(struck=True)
    assert str(caught.value.__context__) == "mine"
    with pytest.raises(ValueError, match="mine"):
        block(struck=False)


def test_blocks_of_other_threads_put_nothing_off(quiet):
    inside, over = threading.Event(), threading.Event()

    def block():
        with quiet():
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=block)
    thread.start()
    assert inside.wait(60)
    assert quiet.depth() == 0
    with pytest.raises(KeyboardInterrupt):
        strike()
    over.set()
    thread.join(60)


@contextmanager
def handling(handlers):
    """Signals' handlers, by number, for a block."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGRTMAX])
def test_a_handler_that_was_set_anew_is_put_off_too(quiet, number):
    called = []
    with handling({number: lambda number, frame: called.append((number, frame))}):
        with quiet():
            signal.raise_signal(number)
            assert called == []
        assert called == [(number, sys._getframe())]


def test_a_handler_that_was_set_before_the_device_was_there_is_put_off_too(quiet):
    called = []
    with handling({signal.SIGUSR1: signal.SIG_DFL}):
        interrupts._raw_set(signal.SIGUSR1, lambda number, frame: called.append(number))
        interrupts.install()
        with quiet():
            signal.raise_signal(signal.SIGUSR1)
            assert called == []
        assert called == [signal.SIGUSR1]


def test_a_handler_that_raises_costs_no_other_signal(quiet):
    called = []

    def raising(number, frame):
        called.append(number)
        raise ValueError("mine")

    def block():
        with quiet():
            for number in (third, second, first):
                signal.raise_signal(number)
            assert called == []

    first, second, third = signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
    with handling({first: raising, second: lambda *_: called.append(second), third: raising}):
        with suppress(ValueError):  # the third's
            try:
                block()
            except ValueError:  # the first's
                len(called)  # Python looks for signals behind a call
        assert called == [first, second, third]


def test_a_handler_that_was_taken_away_in_a_block_is_called_no_more(quiet):
    called = []
    with handling({signal.SIGUSR1: lambda number, frame: called.append(number)}):
        with quiet():
            signal.raise_signal(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert called == []


def test_whoever_asks_for_a_handler_is_told_the_one_that_was_set():
    def handler(number, frame):
        raise AssertionError

    with handling({signal.SIGUSR1: signal.SIG_DFL}):
        assert signal.signal(signal.SIGUSR1, handler) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGUSR1) is handler
        assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is handler
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        with pytest.raises(TypeError, match="signal handler must be"):
            signal.signal(signal.SIGUSR1, "no handler")


def test_whose_code_is_at_an_address_is_what_the_linker_says_whenever_it_is_asked():
    makers = [getattr(ctypes.pythonapi, name.decode()) for name in interrupts._MAKERS]
    others = [ctypes.pythonapi.PyList_New, ctypes.CDLL(None).getpid]
    starts = [ctypes.cast(each, ctypes.c_void_p).value for each in (*makers, *others)]
    for _ in range(2):
        for address in (*starts, *(start + 8 for start in starts), None):
            assert interrupts._known(address) == interrupts._known.__wrapped__(address)
    assert [interrupts._known(start)[0] for start in starts] == [True] * len(makers) + [False] * 2


@pytest.fixture
def after_a_piece(monkeypatch):
    """Ctrl-C behind the first piece of the next upload."""
    session = current.session
    pump = session.connection.pump
    torch.cuda.synchronize()
    works = session.outbox.work

    def pump_and_strike(link, timeout_s=0.0):
        pump(link, timeout_s)
        if session.outbox.work > works:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(session.connection, "pump", pump_and_strike)


def test_an_interrupt_between_the_pieces_of_an_upload_leaves_nothing_behind(request):
    torch.ones(1, device="cuda").sum().item()
    host, before = torch.arange(3 << 20), current.session.memory().used
    request.getfixturevalue("after_a_piece")
    with pytest.raises(KeyboardInterrupt):
        host.cuda()
    assert current.session.memory().used == before


def test_a_tensor_whose_filling_was_interrupted_can_be_used(request):
    torch.ones(1, device="cuda").sum().item()
    host, generation = torch.arange(3 << 20), current.session.connection.generation
    request.getfixturevalue("after_a_piece")
    target = torch.empty(3 << 20, dtype=torch.int64, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        target.copy_(host)
    target[:4] = 7
    assert target[:5].tolist() == [7, 7, 7, 7, 4]
    assert torch.equal(target.copy_(host).cpu(), host)
    assert current.session.connection.generation == generation


def test_an_event_whose_wait_was_interrupted_is_over(monkeypatch):
    x = torch.randn(1000, 1000, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(30):
        x = x @ x
        x = x / x.norm()
    end.record()
    receive = type(current.session.connection.link).receive

    def strike(link, timeout_s=0.0):
        if timeout_s:
            monkeypatch.undo()
            raise KeyboardInterrupt
        receive(link, timeout_s)

    monkeypatch.setattr(type(current.session.connection.link), "receive", strike)
    with pytest.raises(KeyboardInterrupt):
        end.synchronize()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert torch.ones(2, device="cuda").tolist() == [1, 1]


@pytest.fixture
def second_cell(monkeypatch):
    """A cell that asked for much and waited for nothing; then the next one began.

    Gives what the first one wrote in place, and a function that has Ctrl-C strike the next wait.
    """
    session = current.session
    counter, large = torch.zeros(3, device="cuda"), torch.rand(1200, 1200, device="cuda")
    torch.cuda.synchronize()
    for _ in range(12):
        large = large @ large
    counter += 1
    session.progress.finish_cell(None)
    session.progress.begin_cell("2")

    def interrupt():
        pump = session.connection.pump

        def strike(link, timeout_s=0.0):
            pump(link)
            if timeout_s:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(session.connection, "pump", strike)
            with pytest.raises(KeyboardInterrupt):
                large.sum().item()

    yield counter, interrupt
    torch.cuda.synchronize()
    session.outbox.before_cell = 0


def test_what_an_earlier_cell_wrote_is_written_whatever_is_interrupted_later(second_cell):
    counter, interrupt = second_cell
    interrupt()
    assert counter.tolist() == [1, 1, 1]


def test_a_second_interrupt_takes_back_earlier_cells_too(second_cell, monkeypatch):
    _, interrupt = second_cell
    session, queued = current.session, []
    before = session.outbox.before_cell
    link = session.connection.link
    queue = link.queue
    with monkeypatch.context() as patch:
        patch.setattr(link, "queue", lambda each: (queued.append(each), queue(each)))
        interrupt()
        interrupt()
        torch.cuda.synchronize()  # both were answered
        session._asker.cancel()
    assert [each.since for each in queued if isinstance(each, Cancel)] == [before, 0, before]
