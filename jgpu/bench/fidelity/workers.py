"""Processes that compare: each has a seat at the broker, is fed cases, watched, and replaced.

A worker says which sample it is at before it begins. One that says nothing for too long is killed
and its sample counts as `hung`; one that dies gives an `error`; the next begins behind that sample.
How long is too long is the affair of whoever knows the device.
"""

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jgpu.bench.fidelity.cases import Case, CaseResult

__all__ = ["PATIENCE_S", "KnownOps", "compare", "list_cases"]

_WORKER: Final = Path(__file__).parent / "resources" / "worker.py"
#: seconds without a word at a sample
PATIENCE_S: Final = 60.0
#: before the first one, in which torch and its databases are imported
_START_S: Final = 120.0
#: a worker's memory grows with what it has seen; the next is another session, among what the
#: executor remembers of those before it
_CASES_EACH: Final = 150
_SESSIONS_EACH: Final = 2
_LINE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class KnownOps:
    """What this torch's databases have, and what the device says of itself."""

    cases: list[Case]
    #: how many ops the device names by hand, by reason
    by_hand: dict[str, int]


def list_cases(environ: dict[str, str]) -> KnownOps:
    """Every case of the databases, in their order."""
    return asyncio.run(_list(environ))


async def _list(environ: dict[str, str]) -> KnownOps:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_WORKER), "list", stdout=PIPE, stderr=PIPE, env=environ
    )
    said, complained = await process.communicate()
    if process.returncode:
        raise RuntimeError(complained.decode(errors="replace").strip())
    by_hand, *lines = (json.loads(line) for line in said.splitlines())
    return KnownOps([Case(**line) for line in lines], by_hand)


def compare(
    cases: Iterable[Case],
    environ: dict[str, str],
    tell: Callable[[CaseResult], None],
    *,
    workers: int,
    seed: int = 1,
    patience_s: float = PATIENCE_S,
) -> None:
    """Run all cases on so many processes at a time; `tell` is called with each that is over.

    Samples come in an order that follows from `seed`; one may take `patience_s` seconds.
    """
    asyncio.run(_compare(list(cases), environ, tell, workers, seed, patience_s))


async def _compare(
    cases: list[Case],
    environ: dict[str, str],
    tell: Callable[[CaseResult], None],
    workers: int,
    seed: int,
    patience_s: float,
) -> None:
    queue = list(reversed(cases))
    each = min(_CASES_EACH, -(-len(queue) // (workers * _SESSIONS_EACH)))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(_Worker(environ, tell, seed, each, patience_s).work(queue))


class _Worker:
    """One place at the broker, filled by one process after another."""

    def __init__(
        self,
        environ: dict[str, str],
        tell: Callable[[CaseResult], None],
        seed: int,
        cases: int,
        patience_s: float,
    ) -> None:
        self._environ = environ
        self._seed = seed
        self._patience_s = patience_s
        #: cases of one process, and those that the present one has had
        self._most = cases
        self._tell = tell
        self._process: Process | None = None
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `work`
        self._cases = 0

    async def work(self, queue: list[Case]) -> None:
        """Take cases until there are none."""
        try:
            while queue:
                self._tell(await self._case(queue.pop()))
                self._cases += 1
                if self._cases % self._most == 0:
                    await self._end()
        finally:
            await self._end()
            self._complaints.close()

    async def _case(self, case: Case) -> CaseResult:
        found = CaseResult(case)
        skip = 0
        silent = 0
        while silent < 2:
            line = {
                "database": case.database,
                "entry": case.entry,
                "dtype": case.dtype,
                "seed": self._seed,
            }
            process = await self._started()
            assert process.stdin is not None
            #: the place in the order, and the number in the database, of the sample in hand
            at, number = -1, skip
            try:
                process.stdin.write(json.dumps(line | {"skip": skip}).encode() + b"\n")
                async for said in _lines(process, self._patience_s):
                    if "at" in said:
                        at, number = said["at"], said["sample"]
                    elif "done" in said:
                        found.samples = said["done"]
                        return found
                    else:
                        for variant, outcome, text in said["found"]:
                            found.add(variant, said["sample"], outcome, text)
                        found.geometry.update(said["geometry"])
                        at += 1
            except TimeoutError:
                found.add("sample", number, "hung", f"no word for {self._patience_s:g} s")
            except (ConnectionError, EOFError):
                found.add("sample", number, "error", await self._last_words())
            await self._end(kill=True)
            silent = silent + 1 if at < 0 else 0
            skip = max(at, skip) + 1
        return found

    async def _started(self) -> Process:
        if self._process is None:
            self._complaints.seek(0)
            self._complaints.truncate()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, str(_WORKER), stdin=PIPE, stdout=PIPE, stderr=self._complaints,
                env=self._environ, limit=_LINE,
            )  # fmt: skip
        return self._process

    async def _last_words(self) -> str:
        assert self._process is not None
        status = await self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"the process ended with {status}: {said[-1] if said else 'it said nothing'}"

    async def _end(self, *, kill: bool = False) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if kill and process.returncode is None:
            process.kill()
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def _lines(process: Process, patience_s: float) -> Any:
    """What a worker says, line by line, until it is silent for too long or gone."""
    assert process.stdout is not None
    patience = _START_S
    while True:
        async with asyncio.timeout(patience):
            line = await process.stdout.readline()
        if not line:
            raise EOFError
        patience = patience_s
        yield json.loads(line)
