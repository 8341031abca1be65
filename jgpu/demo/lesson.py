"""One notebook of one user, executed cell by cell in a real Jupyter kernel.

The kernel is started as any Jupyter application starts one: by its kernelspec, whose provisioner
takes a seat at the broker. Nothing here knows what the cells do.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from jgpu.kernelprovider.kernelspec import KERNEL_NAME
from jgpu.wire.reports.report import SessionReport

__all__ = ["RESULT_TAG", "Lesson"]

#: The one cell of a lesson whose printed line is its result.
RESULT_TAG: Final = "result"
_START_S: Final = 120


@dataclass(slots=True)
class Lesson:
    """A notebook with its user, and what became of it so far."""

    path: Path
    user: str
    #: "starting", "running", "done" or "failed"
    state: str = "starting"
    kernel_id: str = ""
    #: the kernel's process while it lives, else None
    pid: int | None = None
    #: code cells begun, and all of them
    cell: int = 0
    cells: int = 0
    result: str = ""
    #: one sentence, if it failed, and what the notebook would show
    problem: str = ""
    traceback: str = ""
    started: float = 0.0
    seconds: float = 0.0
    #: the session as the broker last reported it
    session: SessionReport | None = None

    @property
    def name(self) -> str:
        """The notebook's name without its ending."""
        return self.path.stem

    async def run(
        self, specs: KernelSpecManager, environ: Mapping[str, str], runtime: Path, timeout_s: int
    ) -> None:
        """Execute all cells; what goes wrong ends in `problem`. The kernel is gone afterwards."""
        self.started = time.monotonic()
        try:
            await self._run(specs, environ, runtime, timeout_s)
        except CellExecutionError as error:
            self._fail(f"cell {self.cell} of {self.cells} raised {error.ename}: {error.evalue}")
            self.traceback = error.traceback
        except CellTimeoutError:
            self._fail(f"cell {self.cell} of {self.cells} took longer than {timeout_s} s")
        except DeadKernelError:
            self._fail(f"the kernel died in cell {self.cell} of {self.cells}")
        except Exception as error:  # whatever it is, the other lessons go on
            self._fail(f"the kernel could not be used ({type(error).__name__}: {error})")
        finally:
            self.seconds = time.monotonic() - self.started
            self.pid = None

    async def _run(
        self, specs: KernelSpecManager, environ: Mapping[str, str], runtime: Path, timeout_s: int
    ) -> None:
        notebook = nbformat.read(self.path, as_version=4)
        self.cells = sum(_is_executed(cell) for cell in notebook.cells)
        manager = AsyncKernelManager(
            kernel_name=KERNEL_NAME,
            kernel_spec_manager=specs,
            transport="ipc",
            connection_file=str(runtime / f"{self.name}.json"),
        )
        client = NotebookClient(
            notebook, km=manager, timeout=timeout_s, startup_timeout=_START_S, kernel_name=""
        )
        # Not `async_execute`: it takes over the signals of the whole process.
        client.reset_execution_trackers()
        try:
            with (runtime / f"{self.name}.log").open("wb") as log:
                await client.async_start_new_kernel(
                    env={**environ, "JPY_SESSION_NAME": str(self.path)},
                    cwd=str(self.path.parent),
                    stdout=log,
                    stderr=log,
                )
            self.kernel_id = manager.kernel_id or ""
            self.pid = getattr(manager.provisioner, "pid", None)
            await client.async_start_new_kernel_client()
            await self._execute(client)
        finally:
            await asyncio.shield(_end(client))

    async def _execute(self, client: NotebookClient) -> None:
        self.state = "running"
        for index, cell in enumerate(client.nb.cells):
            self.cell += _is_executed(cell)
            await client.async_execute_cell(
                cell, index, execution_count=client.code_cells_executed + 1
            )
            if RESULT_TAG in cell.metadata.get("tags", []):
                self.result = _printed(cell)
        self.state = "done"

    def _fail(self, sentence: str) -> None:
        self.state = "failed"
        self.problem = " ".join(sentence.split())


async def _end(client: NotebookClient) -> None:
    if client.kc is not None:
        client.kc.stop_channels()
    if client.km is not None and client.km.has_kernel:
        await client.km.shutdown_kernel(now=True)  # type: ignore[misc]


def _is_executed(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def _printed(cell: Any) -> str:
    outputs = (o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
    return "".join(outputs).strip()
