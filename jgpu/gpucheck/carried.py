"""jgpu for an interpreter that has all it needs but jgpu, from the folder that it is run from.

Torch finds the shared device by an entry point of an installed package. Where nothing may be
installed, a folder on the path says what an installation would.
"""

import os
from importlib import metadata
from pathlib import Path
from typing import Final

import jgpu

__all__ = ["carried_environment"]

_POINTS: Final = "[torch.backends]\njgpu = jgpu.device.autoload:autoload\n"


def carried_environment(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """The environment of processes that import this jgpu; `folder` holds what is written for it."""
    above = str(Path(jgpu.__file__).parents[1])
    paths = [above] if not _is_installed() else []
    if paths:
        about = folder / "carried" / f"jgpu-{jgpu.__version__}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: jgpu\nVersion: {jgpu.__version__}\n"
        )
        (about / "entry_points.txt").write_text(_POINTS)
        paths.append(str(about.parent))
    paths += [each for each in [environ.get("PYTHONPATH", "")] if each]
    return environ | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})


def _is_installed() -> bool:
    return any(point.name == "jgpu" for point in metadata.entry_points(group="torch.backends"))
