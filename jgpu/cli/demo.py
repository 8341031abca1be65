"""Train notebooks of several users at once on one shared device, with a live table.

Starts a broker of its own on the GPU where there is one, else on the CPU, and ends it again. The
exit status is 1 if a notebook failed, or if not exactly one process held the device.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jgpu
from jgpu.errors import BrokerUnreachable, ConfigError
from jgpu.requirements import lacking
from jgpu.wire import address

if TYPE_CHECKING:
    from rich.console import Console

    from jgpu.demo.broker import DemoBroker
    from jgpu.demo.display import Display
    from jgpu.demo.evidence import Evidence
    from jgpu.demo.lesson import Lesson
    from jgpu.wire.reports.report import Report

__all__ = ["main"]

#: Who runs which lesson; one of the users has two at once.
_LESSONS: Final = (
    ("user1", "02-cnn-digits"),
    ("user2", "03-transformer-text"),
    ("user3", "04-vae-digits"),
    ("user1", "05-fine-tuning"),
)
_EVERY_S: Final = 1.0
_NEEDS: Final = ("nbclient", "nbformat", "psutil", "pynvml", "rich", "sklearn", "torch")


def main(arguments: Sequence[str]) -> int:
    """`jgpu demo [--device auto|cuda|cpu] [--lanes N] [--notebooks DIRECTORY]`."""
    options = _parser().parse_args(arguments)
    if missing := lacking(_NEEDS):
        raise ConfigError(
            f"The demonstration needs {', '.join(missing)}; "
            "`pip install 'jgpu[broker,notebooks]'` adds what is missing."
        )
    paths = [options.notebooks / f"{name}.ipynb" for _, name in _LESSONS]
    if absent := [path.name for path in paths if not path.is_file()]:
        raise ConfigError(
            f"{options.notebooks} has no {', '.join(absent)}; name the directory of the lessons "
            "with --notebooks."
        )
    from rich.console import Console

    from jgpu.demo.lesson import Lesson

    users = [user for user, _ in _LESSONS]
    lessons = [Lesson(path.resolve(), user) for path, user in zip(paths, users, strict=True)]
    with tempfile.TemporaryDirectory(prefix="jgpu-demo-") as directory:
        return asyncio.run(_demonstrate(lessons, options, Path(directory), Console()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jgpu demo", description=__doc__)
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cuda", "cpu"), help="default: auto"
    )
    parser.add_argument("--lanes", type=int, metavar="N", help="most lanes open at once")
    parser.add_argument(
        "--notebooks",
        type=Path,
        default=Path(jgpu.__file__).parents[1] / "notebooks",
        metavar="DIRECTORY",
        help="where the lessons are (default: beside the package)",
    )
    parser.add_argument(
        "--timeout",
        type=int,
        default=900,
        metavar="SECONDS",
        help="the longest that one cell may take (default: 900)",
    )
    return parser


async def _demonstrate(
    lessons: "list[Lesson]", options: argparse.Namespace, directory: Path, console: "Console"
) -> int:
    from jgpu.demo.broker import DemoBroker
    from jgpu.demo.display import Display, summary
    from jgpu.demo.evidence import Evidence

    words = ["--device", options.device]
    words += ["--lanes", str(options.lanes)] if options.lanes else []
    evidence = Evidence()
    with DemoBroker(directory, words) as broker:
        console.print("Starting a broker and its device ...")
        status = await asyncio.to_thread(broker.wait_until_ready)
        for device in status.devices:
            if device.note:
                console.print(device.note, style="yellow", markup=False)
        with Display(console) as display:
            running = _start(lessons, broker, directory, options.timeout)
            try:
                while not all(task.done() for task in running):
                    status = await _watch(lessons, broker, evidence, display, status)
                    await asyncio.wait(running, timeout=_EVERY_S)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
            status = await _settled(broker, status)
            display.update(lessons, status, last=True)
        console.print(summary(lessons, status, evidence))
    good = evidence.one_executor and evidence.no_context_in_kernels
    return 0 if good and all(lesson.state == "done" for lesson in lessons) else 1


def _start(
    lessons: "list[Lesson]", broker: "DemoBroker", directory: Path, timeout_s: int
) -> "list[asyncio.Task[None]]":
    """A task per lesson; their kernels are of this interpreter, by a kernelspec of our own."""
    from jupyter_client.kernelspec import KernelSpecManager

    from jgpu.kernelprovider.environment import outer_environment
    from jgpu.kernelprovider.kernelspec import Place, install

    place = Place(directory)
    install(place)
    specs = KernelSpecManager(kernel_dirs=[str(place.kernels)])
    common = {**outer_environment(os.environ), address.ADDRESS: str(broker.address)}
    return [
        asyncio.create_task(
            lesson.run(specs, {**common, address.USER: lesson.user}, directory, timeout_s)
        )
        for lesson in lessons
    ]


async def _watch(
    lessons: "list[Lesson]",
    broker: "DemoBroker",
    evidence: "Evidence",
    display: "Display",
    before: "Report",
) -> "Report":
    """One look at everything; returns the broker's report, the one before if it gives none."""
    from jgpu.wire.reports.asking import ask_report

    try:
        status = await asyncio.to_thread(ask_report, broker.address)
    except BrokerUnreachable:
        status = before
    sessions = {session.kernel_id: session for session in status.sessions}
    for lesson in lessons:
        lesson.session = sessions.get(lesson.kernel_id, lesson.session)
    kernels = [lesson.pid for lesson in lessons if lesson.pid is not None]
    await asyncio.to_thread(evidence.look, status, broker.pid, kernels)
    display.update(lessons, status)
    return status


async def _settled(broker: "DemoBroker", before: "Report") -> "Report":
    """The broker's report when the last session is accounted for."""
    from jgpu.wire.reports.asking import ask_report

    status = before
    for _ in range(50):
        try:
            status = await asyncio.to_thread(ask_report, broker.address)
        except BrokerUnreachable:
            break
        if not status.sessions:
            break
        await asyncio.sleep(0.1)
    return status
