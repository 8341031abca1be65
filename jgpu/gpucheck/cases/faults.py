"""What ends a device, and what must never wait: executors with something taken out on purpose."""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from jgpu.gpucheck.stand import RESOURCES, CaseBroker, SkipCase, Stand

__all__ = ["broken", "memcheck", "strict"]

_READY_S: Final = 15.0
_PATIENCE_S: Final = 90.0
_SANITIZER: Final = "compute-sanitizer"
_PLACES: Final = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


def _executor(*arguments: str) -> list[str]:
    """The command of an executor with something taken out, or looked at."""
    return [sys.executable, "-P", str(RESOURCES / "executor.py"), *arguments]


def broken(stand: Stand) -> None:
    """A kernel asserts in one of three sessions: who did it is told, all others are, and it ends.

    The executor's guards of indices are taken out, so that a wrong one gets to its kernel.
    """
    with stand.broker(executor_command=_executor("unguarded")) as place:
        others = [place.start("lost", "wait", user=f"user{k}") for k in (2, 3)]
        for other in others:
            other.ask("begin")
        began = time.monotonic()
        own = place.seat("lost", "break", user="user1")
        stand.check("its notebook is told", "DeviceLost" in own["errors"], own)
        stand.check("its kernel goes on", own["after"] == [2.0, 4.0], own)
        stand.figure("until it works again", time.monotonic() - began, "s", at_most=_READY_S)
        for k, other in enumerate(others, 2):
            told = other.ask("use")
            other.end()
            stand.check(f"user{k} is told", "DeviceLost" in told["errors"], told)
            stand.check(f"user{k} goes on", told["after"] == [2.0, 4.0], told)
            stand.check(f"user{k} is not blamed", "this notebook ended" not in told["text"], told)
        device = place.device()
        stand.same("executors that ended", device.restarts, 1)
        _blames(stand, place, "a program")  # told later: of its ops none is known
        again = place.seat("lost", "break", user="user1")
        stand.check("tried alone, it is certain", "Nothing else ran then" in again["text"], again)
        stand.check("its line is told", "It was asked for at line" in again["text"], again)
        stand.check("its op is told", "index_select" in again["text"], again)
        _blames(stand, place, "aten::index_select")
        refused = place.seat("lost", "break", user="user1")
        stand.check("then it is refused", "not run any more" in refused["text"], refused)
        stand.same("executors that ended for it", place.device().restarts, 2)


def _blames(stand: Stand, place: CaseBroker, op: str) -> None:
    """The status says how the device ended, by whom and by which op."""
    end = place.device().last_end
    stand.check("how it ended is told", end is not None and end.how, end)
    if end is not None and end.culprit is not None:
        stand.same("who is blamed", (end.culprit.user, end.culprit.op), ("user1", op))
    else:
        stand.check("somebody is blamed", holds=False, text=end)


def strict(stand: Stand) -> None:
    """Programs run in an executor that raises where its launches would wait for the GPU."""
    if stand.on_host:
        raise SkipCase("Only CUDA's own calls say that they make the host wait.")
    with stand.broker(executor_command=_executor("strict")) as place:
        _trains(stand, place, ("dense", "images", "recurrent", "attention"))


def memcheck(stand: Stand) -> None:
    """The same under compute-sanitizer, which reports every byte that is none of a kernel's."""
    tool = shutil.which(_SANITIZER) or shutil.which(_SANITIZER, path=":".join(_PLACES))
    if tool is None or stand.on_host:
        raise SkipCase(f"{_SANITIZER} is not installed." if tool is None else "It is about GPUs.")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "sanitizer.log")
        command = [tool, "--tool", "memcheck", "--log-file", str(log), *_executor("plain")]
        environ = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTORCH_ALLOC_CONF": ""}
        with stand.broker(executor_command=command, executor_environment=environ) as place:
            _trains(stand, place, ("dense",))
            place.seat("values", "indices")
        said = log.read_text(errors="replace")
    stand.check("no byte of others is touched", "ERROR SUMMARY: 0 errors" in said, said[-500:])


def _trains(stand: Stand, place: CaseBroker, groups: tuple[str, ...]) -> None:
    """Every model of the groups learns without an error."""
    for group in groups:
        found: dict[str, Any] = place.seat("identity", group, 1, 6)
        for name, each in found.items():
            stand.check(name, "error" not in each, each.get("error", ""))
