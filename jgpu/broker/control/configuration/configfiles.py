"""Which configuration files a broker reads, and what of them it takes over.

`jgpu_config.py`: the system's (/etc/jgpu), and for a private broker and one that is not root's the
user's (~/.config/jgpu, or $XDG_CONFIG_HOME/jgpu), which goes first. A private broker's files are in
its owner's folders, root's too: where the system's file puts the host's broker's is nothing to it.
"""

import os
from pathlib import Path
from typing import Final

from traitlets import TraitError
from traitlets.config import Application, Config

from jgpu.broker.control.quotas.configured import configuration_mistake
from jgpu.errors import ConfigError

__all__ = ["FromFiles"]

_SYSTEM_CONFIG: Final = Path("/etc/jgpu")
#: settings that say where files are
_PLACES: Final = ("ledger", "record", "socket_path", "spool", "trace")


class FromFiles(Application):
    """An application with these settings, which its class defines, read from files."""

    private: bool
    config_file: str
    #: the directory whose configuration file is being read
    _reading: Path | None = None

    def read_files(self) -> None:
        """Take over what the file that was named says, or else the default ones."""
        # What cannot be read must not be taken for "nothing set".
        self.raise_config_file_errors = True
        try:
            if self.config_file:
                file = Path(self.config_file).absolute()
                self.load_config_file(file.name, path=[str(file.parent)])
            else:
                for directory in reversed(self.config_directories()):
                    self._reading = directory
                    self.load_config_file("jgpu_config", path=[str(directory)])
                self._reading = None
        except (TraitError, ConfigError):
            raise
        except Exception as error:
            raise ConfigError(configuration_mistake(error)) from None

    def update_config(self, config: Config) -> None:
        """Take these settings over, from the system's file not all of them."""
        if self.private and self._reading == _SYSTEM_CONFIG:
            for name in _PLACES:
                config.JgpuBroker.pop(name, None)
        super().update_config(config)

    def config_directories(self) -> list[Path]:
        """Where jgpu_config.py is looked for, the strongest first."""
        if os.getuid() == 0 and not self.private:
            return [_SYSTEM_CONFIG]
        base = os.environ.get("XDG_CONFIG_HOME", "")
        user = Path(base) if base.startswith("/") else Path.home() / ".config"
        return [user / "jgpu", _SYSTEM_CONFIG]
