"""The Jupyter server's side of what JupyterLab shows of the shared GPU.

`state` cuts the broker's report to the server's owner, `follower` gets it while somebody looks,
`feed` tells the pages what changes of it, and `handlers` lets them in. Works for whoever the server
runs as, and never administers.
"""

from typing import Any

from jgpu import __version__

__all__ = ["__version__", "_jupyter_server_extension_points"]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """What Jupyter's server asks a module that its configuration names."""
    from jgpu.labserver.app import LabServer

    return [{"module": "jgpu.labserver", "app": LabServer}]
