"""The kernel provisioner `jgpu-provisioner`: an ordinary local kernel with a seat on the device.

Every kernel gets a seat and sees no GPU, in whatever language it is; only PyTorch's `cuda` is the
shared device. A seat that cannot be had never keeps a kernel from starting: the sentence why goes
into its environment and is raised at its first use of `cuda`.

Of the manager's calls only `cleanup` tells a restart from an end (jupyter_client#1061), and a
killed server makes none at all; what then remains is the broker's to notice.

Nothing here waits for the device, and nothing here fails.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from jgpu.errors import JgpuError
from jgpu.kernelprovider.environment import furnish, set_startup
from jgpu.kernelprovider.seat import LABEL_LENGTH, Seat, leave, take
from jgpu.wire.address import Address, parse

__all__ = ["SharedGpuProvisioner"]

_T = TypeVar("_T")


class SharedGpuProvisioner(LocalProvisioner):
    """Starts kernels as Jupyter's own provisioner does, each with a seat on the shared device."""

    #: the seat, from the first start to the last cleanup; None where none could be had
    seat: Seat | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Add the seat to the kernel's environment; kept over restarts."""
        kwargs = await super().pre_launch(**kwargs)
        environ: dict[str, str] = kwargs["env"]
        label = environ.get("JPY_SESSION_NAME", "")[:LABEL_LENGTH]
        problem = ""
        if self.seat is None:
            self.seat, problem = await self._take(environ, label)
        furnish(
            environ,
            where=self.seat.address if self.seat else None,
            ticket=self.seat.ticket if self.seat else "",
            problem=problem,
            label=label,
            kernel_id=self.kernel_id or "",
        )
        if self.kernel_spec.language.lower() == "python":
            set_startup(environ)
        return kwargs

    async def cleanup(self, restart: bool = False) -> None:
        """Give the seat up, or on a restart the tensors alone."""
        await super().cleanup(restart=restart)
        seat = self.seat
        if seat is None:
            return
        if not restart:
            self.seat = None
        try:
            await _aside(leave, seat, restart=restart)
        except JgpuError as error:
            # The broker went, and with it the seat; a restarted kernel takes a new one.
            self.seat = None
            self.log.info("jgpu: the seat of kernel %s is gone: %s", self.kernel_id, error)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """What a persistent application stores of this kernel: also its seat."""
        info: dict[str, Any] = await super().get_provisioner_info()
        if self.seat is not None:
            info["jgpu_address"] = str(self.seat.address)
            info["jgpu_ticket"] = self.seat.ticket
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take over a running kernel with its seat."""
        await super().load_provisioner_info(provisioner_info)
        ticket = provisioner_info.get("jgpu_ticket")
        if ticket:
            path = parse(provisioner_info["jgpu_address"])
            self.seat = Seat(Address(path, "environment"), ticket)

    async def _take(self, environ: dict[str, str], label: str) -> tuple[Seat | None, str]:
        """A seat, or the sentence why there is none."""
        try:
            seat = await _aside(take, environ, kernel_id=self.kernel_id or "", label=label)
        except JgpuError as error:
            problem = f"{error} {error.advice}".strip()
        except Exception as error:
            self.log.exception("jgpu: taking a seat for kernel %s failed", self.kernel_id)
            problem = f"jgpu could not take a seat ({type(error).__name__}: {error})."
        else:
            return seat, ""
        self.log.warning("jgpu: kernel %s has no seat: %s", self.kernel_id, problem)
        return None, problem


async def _aside(function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call it in a thread; here, where the interpreter is at its end and starts none any more."""
    call = functools.partial(function, *args, **kwargs)
    try:
        waiting = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError:
        return call()
    return await waiting
