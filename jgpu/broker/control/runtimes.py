"""Does a client's torch fit the executor's? One sentence says why not.

Programs name ops by schema, so equal schemas are what counts; the version is compared first
because a version is what people can change. A difference after the + (the build: cpu, cu128) is
none: the kernel computes nothing itself.
"""

from importlib import metadata

from jgpu.errors import VersionMismatch
from jgpu.wire import limits
from jgpu.wire.messages import Runtime

__all__ = ["check_protocol", "check_runtime", "own_torch"]


def own_torch() -> str:
    """Version of the torch that the executor will import, without importing it; empty if none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def check_protocol(protocol: int) -> None:
    """Raises `VersionMismatch` unless a client speaks this protocol, or the one before."""
    served = range(limits.OLDEST_PROTOCOL, limits.PROTOCOL + 1)
    if protocol not in served:
        older = "notebook's" if protocol < limits.PROTOCOL else "broker's"
        raise VersionMismatch(
            f"The notebook's jgpu speaks protocol {protocol}, the broker serves "
            f"{' and '.join(map(str, served))}. Upgrade jgpu in the {older} environment."
        )


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:2])


def check_runtime(client: Runtime, served: Runtime) -> None:
    """Raises `VersionMismatch` where programs of `client` could mean something else in `served`.

    What `served` leaves empty is not known yet, or not needed (device null), and not compared.
    """
    if served.torch and _release(client.torch) != _release(served.torch):
        raise VersionMismatch(
            f"The notebook has torch {client.torch}, this host's shared device is served with "
            f"torch {served.torch}. Install torch {'.'.join(_release(served.torch))} in the "
            "notebook's environment, or ask the administrator for a broker with the notebook's."
        )
    if served.schema and client.schema and client.schema != served.schema:
        raise VersionMismatch(
            f"The ops of the notebook's torch {client.torch} are not those of the broker's torch "
            f"{served.torch}, although the versions are alike. Install the same build of torch in "
            "both environments."
        )
