"""Where the built library lies: beside the package, named for what it was built for.

A library fits one release of torch, one Python and one state of its source. Whatever is another is
another file, so that none is ever loaded into what it was not built for. Imports no torch.
"""

import hashlib
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Final

__all__ = ["SOURCE", "SWITCH", "library"]

SOURCE: Final = Path(__file__).parent / "source"
_BUILT: Final = Path(__file__).parent / "built"
#: variable of the environment; "0" leaves the library aside
SWITCH: Final = "JGPU_ACCELERATOR"


def library() -> Path:
    """The file for this interpreter's torch, whether it is there or not.

    Raises `importlib.metadata.PackageNotFoundError` where there is no torch.
    """
    text = b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))
    digest = hashlib.sha256(text).hexdigest()[:12]
    soabi = sysconfig.get_config_var("SOABI")
    return _BUILT / f"torch-{metadata.version('torch')}.{soabi}.{digest}.so"
