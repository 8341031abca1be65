"""The kernelspec "Python 3 (shared GPU)": its content, installing, listing and removing it.

Does not cover what the kernel's environment needs (`jgpu.kernelprovider.interpreter`) or kernels
that have a spec of their own (`jgpu.kernelprovider.routing`).
"""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.paths import jupyter_data_dir

from jgpu.errors import ConfigError

__all__ = [
    "DISPLAY_NAME",
    "KERNEL_NAME",
    "PROVISIONER",
    "Place",
    "find_all",
    "install",
    "kernel_json",
    "remove",
]

KERNEL_NAME: Final = "jgpu"
DISPLAY_NAME: Final = "Python 3 (shared GPU)"
PROVISIONER: Final = "jgpu-provisioner"
_RESOURCES: Final = Path(__file__).with_name("resources")


@dataclass(frozen=True, slots=True)
class Place:
    """Where Jupyter's files go: below a prefix, or the user's own with `prefix` None."""

    prefix: Path | None = None

    @classmethod
    def default(cls) -> "Place":
        """This interpreter's environment if it is a virtual or conda one, else the user's."""
        own = sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()
        return cls(Path(sys.prefix) if own else None)

    @property
    def kernels(self) -> Path:
        """The directory with a directory per kernelspec."""
        data = self.prefix / "share" / "jupyter" if self.prefix else Path(jupyter_data_dir())
        return data / "kernels"


def kernel_json(python: str = sys.executable, display_name: str = DISPLAY_NAME) -> dict[str, Any]:
    """What `kernel.json` holds: ipykernel's own command, run by our provisioner."""
    return {
        "argv": [
            python,
            "-Xfrozen_modules=off",
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
        ],
        "display_name": display_name,
        "language": "python",
        "kernel_protocol_version": "5.5",
        "metadata": {
            "debugger": True,
            "kernel_provisioner": {"provisioner_name": PROVISIONER},
            "supported_encryption": ["curve"],
        },
    }


def install(
    place: Place,
    *,
    python: str = sys.executable,
    name: str = KERNEL_NAME,
    display_name: str = DISPLAY_NAME,
) -> Path:
    """Write the spec, replacing one of the same name; returns its directory.

    Raises `ConfigError` where the name is not one Jupyter takes or the place cannot be written.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, name)
        source.mkdir()
        for logo in _RESOURCES.glob("logo-*"):
            shutil.copyfile(logo, source / logo.name)
        text = json.dumps(kernel_json(python, display_name), indent=1) + "\n"
        (source / "kernel.json").write_text(text)
        prefix = str(place.prefix) if place.prefix else None
        try:
            destination = KernelSpecManager().install_kernel_spec(
                str(source), kernel_name=name, user=prefix is None, prefix=prefix
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            raise ConfigError(
                f"The kernel cannot be installed in {place.kernels}: {error.strerror}. Choose "
                "another place with --user, --sys-prefix or --prefix."
            ) from None
    return Path(destination)


def find_all(place: Place | None = None) -> dict[str, Path]:
    """Names and directories of all specs that use our provisioner, at one place or all."""
    if place is None:
        specs = KernelSpecManager(ensure_native_kernel=False).find_kernel_specs()
        found = {name: Path(directory) for name, directory in specs.items()}
    else:
        found = {
            file.parent.name.lower(): file.parent for file in place.kernels.glob("*/kernel.json")
        }
    return {name: path for name, path in sorted(found.items()) if _is_ours(path)}


def remove(place: Place, name: str = KERNEL_NAME) -> Path:
    """Remove a spec of ours; `ConfigError` if there is none of that name at this place."""
    directory = find_all(place).get(name.lower())
    if directory is None:
        others = ", ".join(str(path) for path in find_all().values())
        raise ConfigError(
            f"There is no kernel {name!r} of jgpu in {place.kernels}."
            + (f" There are: {others}." if others else "")
        )
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be removed: {error.strerror}.") from None
    return directory


def _is_ours(directory: Path) -> bool:
    try:
        content = json.loads((directory / "kernel.json").read_bytes())
        provisioner = content["metadata"]["kernel_provisioner"]["provisioner_name"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(provisioner == PROVISIONER)
