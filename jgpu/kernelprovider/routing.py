"""Routing every kernel of a user, an environment or a host through our provisioner, and back.

Written into `jupyter_config.json`, which Jupyter's servers (Lab, Notebook, a hub's single-user
ones) read. Programs that start kernels by themselves (nbval, papermill, nbclient, and nbconvert
with it) read no such setting, only the variable `ENVIRONMENT`.

Invariant: what others wrote in that file stays as it is.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from jupyter_core.paths import jupyter_config_dir

from jgpu.errors import ConfigError
from jgpu.kernelprovider.kernelspec import PROVISIONER, Place

__all__ = ["ENVIRONMENT", "config_file", "is_routed", "route", "unroute"]

#: What nbval, papermill, nbclient and nbconvert need in their environment.
ENVIRONMENT: Final = f"JUPYTER_DEFAULT_PROVISIONER_NAME={PROVISIONER}"
_CLASS: Final = "KernelProvisionerFactory"
_TRAIT: Final = "default_provisioner_name"


def config_file(place: Place) -> Path:
    """The file that Jupyter reads for this place; `/usr` and `/` mean the host's `/etc`."""
    if place.prefix is None:
        return Path(jupyter_config_dir(), "jupyter_config.json")
    top = Path("/") if place.prefix == Path("/usr") else place.prefix
    return top / "etc" / "jupyter" / "jupyter_config.json"


def is_routed(place: Place) -> bool:
    """Whether kernels without a provisioner of their own go through ours."""
    return bool(_read(config_file(place)).get(_CLASS, {}).get(_TRAIT) == PROVISIONER)


def route(place: Place) -> Path:
    """Make ours the default provisioner; returns the file.

    `ConfigError` if the file is not JSON, cannot be written, or names another provisioner.
    """
    file = config_file(place)
    content = _read(file)
    section = content.setdefault(_CLASS, {})
    other = section.get(_TRAIT, PROVISIONER)
    if other != PROVISIONER:
        raise ConfigError(
            f"{file} already makes {other!r} the default provisioner; remove that setting first."
        )
    section[_TRAIT] = PROVISIONER
    _write(file, content)
    return file


def unroute(place: Place) -> Path | None:
    """Undo `route`; returns the file, or None if it said nothing of us."""
    file = config_file(place)
    content = _read(file)
    section = content.get(_CLASS, {})
    if section.get(_TRAIT) != PROVISIONER:
        return None
    del section[_TRAIT]
    if not section:
        del content[_CLASS]
    if content:
        _write(file, content)
    else:
        file.unlink()
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes() or b"{}")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON ({error}); mend it first.") from None
    if not isinstance(content, dict) or not isinstance(content.get(_CLASS, {}), dict):
        raise ConfigError(f"{file} does not hold a Jupyter configuration; mend it first.")
    return content


def _write(file: Path, content: dict[str, Any]) -> None:
    """Replace the file at once, so that no application ever reads half of it."""
    text = json.dumps(content, indent=2) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        descriptor, scratch = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text)
            Path(scratch).chmod(mode)
            Path(scratch).replace(file.resolve())
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None
