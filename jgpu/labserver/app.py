"""The extension of a Jupyter server: routes for its pages, and an end in good order."""

from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Unicode

from jgpu import __version__
from jgpu.labserver.feed import Feed
from jgpu.labserver.handlers import ROUTES

__all__ = ["LabServer"]


class LabServer(ExtensionApp):
    """Shows the owner of a Jupyter server their kernels' part of the shared GPU."""

    name = "jgpu"
    version = __version__
    description = Unicode("Show each notebook's part of the shared GPU in JupyterLab.")
    open_browser = False

    def initialize_settings(self) -> None:
        """Nothing is asked of a broker before somebody listens."""
        self.settings["jgpu_feed"] = Feed()
        # Pages ask only where this says that somebody answers.
        self.settings.setdefault("page_config_data", {})["jgpuServer"] = True

    def initialize_handlers(self) -> None:
        """What pages may ask."""
        routes: list[Any] = self.handlers
        routes.extend(ROUTES)

    async def stop_extension(self) -> None:
        """The server ends: so does the line to the broker."""
        await self.settings["jgpu_feed"].close()
