"""How an executor ended and whose work it was, read from its flight page. Pure.

A fatal signal of an op names its thread (`faulthandler`), and the thread's record names the op.
Where the thread is none of Python's, one of torch's own that share an op's work, the op is certain
only if no other ran. A kernel that breaks a GPU is told of later, when others may have been
launched: it was of a program in flight; one that is tried is alone, and its op is known. Whatever
else ends a process (the host, for want of memory; the device's driver) leaves those whose work ran:
it may have been one of them, or none.
"""

import re
import signal
from dataclasses import dataclass
from typing import Final

from jgpu.broker.flightpage import FlightEntry, FlightPage, Kind, State
from jgpu.broker.settings import DEVICE_FAULT

__all__ = ["End", "read_end"]

#: signals that a process gets for what one of its threads does
_FAULTS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGABRT}
)
_CURRENT: Final = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)", re.MULTILINE)
_OF_THE_FAULT: Final = re.compile(r"^Current thread 0x([0-9a-f]+)", re.MULTILINE)
_COMPUTING: Final = (Kind.PROGRAM, Kind.PROBE, Kind.TRIAL)
_WORDS: Final = {
    Kind.UPLOAD: "an upload",
    Kind.DOWNLOAD: "a download",
    Kind.RANDOM: "the random number generator",
    Kind.SYNC: "a wait",
    Kind.DEFINITION: "the check of a program",
    Kind.COPY: "the spilling of its memory",
}


@dataclass(frozen=True, slots=True)
class End:
    """The end of one executor process."""

    #: "was ended by signal 8 (SIGFPE)"
    how: str
    #: for the log: what process, and how it ended
    sentence: str
    #: the work that ended it, where that is certain
    culprit: FlightEntry | None = None
    #: works that ran at the end, where none is certain
    suspects: tuple[FlightEntry, ...] = ()
    #: it was one of the suspects
    fault: bool = False
    #: what broke is the device, under a kernel
    on_device: bool = False


def read_end(pid: int, status: int, page: FlightPage, fault: str) -> End:
    """The end of a process by its exit status, its page and what `faulthandler` wrote of it."""
    how = f"ended with status {status}" if status >= 0 else f"was ended by {_signal_text(-status)}"
    sentence = f"The executor process (pid {pid}) {how}."
    if status == 0:
        return End(how, sentence)
    running = [entry for entry in page.entries() if entry.state is State.WORKS]
    if -status in _FAULTS and _CURRENT.search(fault):
        found = _OF_THE_FAULT.search(fault)
        if found is not None:
            running = [entry for entry in running if entry.ident == int(found[1], 16)]
        if len(running) == 1:
            return End(how, sentence, running[0])
        return End(how, sentence, suspects=tuple(running), fault=True)
    if status == DEVICE_FAULT:
        how = "broke under a program's kernel"
        sentence = f"The device {how}; the executor process (pid {pid}) ended."
    known = {(entry.session, entry.work) for entry in running}
    flying = [each for each in page.in_flight() if (each.session, each.work) not in known]
    if status != DEVICE_FAULT:
        return End(how, sentence, suspects=(*running, *flying))
    # Copies break nothing, and many runs of one program are one suspect.
    computing = [each for each in (*running, *flying) if each.kind in _COMPUTING]
    suspects = tuple({(each.session, each.program): each for each in computing}.values())
    if len(suspects) == 1:
        return End(how, sentence, _with_its_op(suspects[0], page), on_device=True)
    return End(how, sentence, suspects=suspects, fault=True, on_device=True)


def _with_its_op(culprit: FlightEntry, page: FlightPage) -> FlightEntry:
    """The same with its op, where ops flew one by one: the one that its lane noted last."""
    if culprit.kind is Kind.TRIAL:
        key = culprit.label, culprit.session, culprit.work
        for entry in page.entries():
            if (entry.label, entry.session, entry.work) == key:
                return entry
    return culprit


def described(entry: FlightEntry) -> str:
    """What a record was at, in words."""
    if entry.kind is Kind.PROBE:
        return f"a trial of {entry.name}"
    if entry.name:
        return entry.name
    return _WORDS.get(entry.kind, "a program")


def _signal_text(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number} (unknown)"
