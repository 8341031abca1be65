"""Ctrl-C where an error would tear torch for good: it comes a moment later, and nothing is torn.

The handler is called as Python calls it: where a function begins, or a function of C's is over.
"""

import _thread
import ctypes
import inspect
import signal
import sys
import warnings
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from torch.overrides import _len_torch_function_stack
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from jgpu.device import flags, interrupts
from jgpu.device.hooks import collectives, guard
from jgpu.device.likenative import warned
from jgpu.device.struck import would_tear
from jgpu.device.tracebacks import OURS, TORCH


@pytest.fixture
def put_off(monkeypatch):
    """The signals that a thread would send again."""
    started = []

    def start(function, arguments):
        assert function is interrupts._again
        interrupts._under_way.clear()
        interrupts._since.clear()
        started.append(arguments[0])

    monkeypatch.setattr(interrupts, "start_new_thread", start)
    yield started
    interrupts._under_way.clear()
    interrupts._since.clear()


def strike(frame):
    interrupts._raw_get(signal.SIGINT)(signal.SIGINT, frame)


@contextmanager
def striking(at):
    """Ctrl-C at the place `at` of those where Python calls handlers; gives their count, a list."""
    counted = [0]

    def profile(frame, event, _):
        # An error in a profiler would end a generator behind its back.
        if event in ("call", "c_return") and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            counted[0] += 1
            if counted[0] == at:
                strike(frame)

    sys.setprofile(profile)
    try:
        yield counted
    finally:
        sys.setprofile(None)


def state():
    """What blocks change and put back."""
    return (
        _len_torch_dispatch_stack(),
        _len_torch_function_stack(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda"),
        str(torch._C._dispatch_tls_local_exclude_set()),
        str(torch._C._dispatch_tls_local_include_set()),
        flags._instead,
        warnings.showwarning,
        tuple(warnings.filters),
    )


def lstm(model, given):
    return model(given)[0]


def lstm_in_inference_mode(model, given):
    with torch.inference_mode():
        return model(given)[0] + 1


def blocks(model, given):
    with (
        torch.no_grad(),
        torch.autocast("cuda", enabled=False),
        torch.enable_grad(),
        torch.set_grad_enabled(False),
        warned.collected(),
        flags.recorded_under(flags.current()),
        torch.device("cuda"),
    ):
        return given + 1


def backward_with_ordinary_memory(model, given):
    weight = torch.ones(3, device="cuda", requires_grad=True)
    (given * weight).sum().backward()
    return weight.grad


@pytest.mark.parametrize(
    "work", [lstm, lstm_in_inference_mode, blocks, backward_with_ordinary_memory]
)
def test_an_interrupt_anywhere_in_a_block_puts_back_what_it_changed(work, put_off, monkeypatch):
    if work is backward_with_ordinary_memory:
        monkeypatch.setattr(guard._Around, "make", staticmethod(collectives._Pageable))
    model, given = torch.nn.LSTM(3, 3).cuda(), torch.ones(2, 3, device="cuda")
    for _ in range(3):
        expected = work(model, given).tolist()
    before, at, raised, ignored = state(), 0, 0, 0
    while True:
        at += 1
        del put_off[:]
        try:
            with striking(at) as counted:
                work(model, given)
        except KeyboardInterrupt:
            raised += 1
        else:
            ignored += not put_off
        assert state() == before, at
        if counted[0] < at:
            break
    assert raised > 20
    assert ignored == 1  # the last
    assert work(model, given).tolist() == expected


def test_a_mode_is_struck_neither_where_its_end_begins_nor_where_its_beginning_ends(put_off):
    mode = collectives._Pageable()
    struck = []

    def profile(frame, event, _):
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            struck.append((frame.f_code.co_name, event))
            strike(frame)

    sys.setprofile(profile)
    try:
        with mode:
            sys.setprofile(None)
            inside = _len_torch_dispatch_stack()
            sys.setprofile(profile)
    finally:
        sys.setprofile(None)
    assert (inside, _len_torch_dispatch_stack()) == (1, 0)
    assert {("__enter__", "return"), ("__exit__", "call")} <= set(struck)
    assert put_off == [signal.SIGINT] * len(struck)


#: a module that notes whether an interrupt of its import would tear something
PROBE = """import sys
from jgpu.device.struck import would_tear
SAID = would_tear(sys._getframe())
"""


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """A module that can be imported by itself, and as one of torch's: `torch.jgpu_probe`."""
    (tmp_path / "jgpu_probe.py").write_text(PROBE)
    (tmp_path / "jgpu_outer.py").write_text("import torch.jgpu_probe as probe\nSAID = probe.SAID\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    names = ("jgpu_probe", "jgpu_outer", "torch.jgpu_probe")
    yield
    for name in names:
        sys.modules.pop(name, None)
    vars(torch).pop("jgpu_probe", None)


def ran_in(file, source):
    """What `source`, a function's body, returns, as if it stood in a file."""
    lines = "".join(f"    {line}\n" for line in source.splitlines())
    module = ModuleType("made")
    exec(compile(f"def function():\n{lines}", file, "exec"), vars(module))
    return module.function()


@pytest.mark.parametrize(
    ("file", "source", "tears"),
    [
        ("mine.py", "import jgpu_probe\nreturn jgpu_probe.SAID", False),
        ("mine.py", "import torch.jgpu_probe\nreturn torch.jgpu_probe.SAID", False),
        ("mine.py", "from torch import jgpu_probe\nreturn jgpu_probe.SAID", False),
        ("mine.py", "from torch.jgpu_probe import SAID\nreturn SAID", False),
        ("mine.py", "import jgpu_outer\nreturn jgpu_outer.SAID", False),
        ("mine.py", "return __import__('jgpu_probe').SAID", False),
        (
            "mine.py",
            "from importlib import import_module\nreturn import_module('torch.jgpu_probe').SAID",
            False,
        ),
        (f"{TORCH}made.py", "import jgpu_probe\nreturn jgpu_probe.SAID", True),
        (f"{TORCH}made.py", "from torch import jgpu_probe\nreturn jgpu_probe.SAID", True),
        (
            f"{OURS}made.py",
            "from importlib import import_module\nreturn import_module('jgpu_outer').SAID",
            True,
        ),
    ],
)
def test_an_import_is_torn_by_an_interrupt_if_it_is_torchs_own(probe, file, source, tears):
    assert ran_in(file, source) is tears


@pytest.mark.parametrize(("name", "tears"), [("jgpu_probe", False), ("torch.jgpu_probe", True)])
def test_an_import_of_parts_of_torch_from_within_a_call_is_its_own(probe, name, tears):
    import_module = ctypes.pythonapi.PyImport_ImportModule  # what the dispatcher calls
    import_module.restype = ctypes.py_object
    import_module(name.encode())
    assert sys.modules[name].SAID is tears


def test_nothing_is_torn_where_there_is_no_frame_and_nothing_of_torchs():
    assert not would_tear(None)
    assert not would_tear(sys._getframe())


def torn(then):
    """Call a function in the beginning of a block of torch's."""

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        @classmethod
        def is_infra_mode(cls):
            then(sys._getframe())
            return False

    with Mode():
        pass


def test_a_handler_that_was_put_off_for_half_a_minute_is_called(put_off, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(interrupts, "monotonic", lambda: now[0])
    interrupts._since[signal.SIGINT] = now[0]
    interrupts._under_way.add(signal.SIGINT)  # a thread that will send it
    now[0] += 29.9
    torn(strike)
    now[0] += 0.2
    try:
        with pytest.raises(KeyboardInterrupt):
            torn(strike)
    finally:
        torch.utils._python_dispatch._is_in_torch_dispatch_mode = False
    assert put_off == []
    assert interrupts._since == {}


@pytest.fixture
def sent(monkeypatch):
    """What threads start with, and the signals that they send."""
    started, sent = [], []
    monkeypatch.setattr(interrupts, "start_new_thread", lambda *call: started.append(call))
    monkeypatch.setattr(interrupts, "sleep", lambda _: None)
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: sent.append(number))
    yield started, sent
    interrupts._under_way.clear()
    interrupts._since.clear()


def test_interrupts_that_come_while_one_is_put_off_are_one_with_it(sent):
    started, sent = sent

    def twice(frame):
        strike(frame)
        strike(frame)

    torn(twice)
    [(again, arguments)] = started
    again(*arguments)
    assert sent == [signal.SIGINT]
    with pytest.raises(KeyboardInterrupt):
        strike(sys._getframe())


def test_an_interrupt_that_was_put_off_and_dealt_with_since_is_not_sent_again(sent):
    started, sent = sent
    torn(strike)
    with pytest.raises(KeyboardInterrupt):
        strike(sys._getframe())
    [(again, arguments)] = started
    again(*arguments)
    assert sent == []


def test_a_signal_that_was_put_off_comes():
    struck = _thread.allocate_lock()
    struck.acquire()
    before = signal.signal(signal.SIGUSR1, lambda *_: struck.release())
    try:
        torn(lambda frame: signal.raise_signal(signal.SIGUSR1))
        assert struck.acquire(timeout=60)
    finally:
        signal.signal(signal.SIGUSR1, before)
