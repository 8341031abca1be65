"""JupyterHub's side: its users train on one shared GPU under their own names.

In `jupyterhub_config.py`, after everything else that it says of spawners:

    import jgpu.hub
    jgpu.hub.configure(c)
    jgpu.hub.add_page(c)

The hub tells the host's broker, over the administrators' socket, whose server is being started. It
holds nothing itself, may be restarted at any time, and needs neither torch nor a GPU.
"""

from jgpu.hub.configuration import configure
from jgpu.hub.service import add_page

__all__ = ["add_page", "configure"]
