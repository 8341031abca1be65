"""How a directory of the host comes into a server's container, by kind of spawner."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from jgpu.errors import ConfigError

__all__ = ["Mount", "mount"]

#: (spawner, a directory of the host, where the server is to see it)
Mount: TypeAlias = Callable[[Any, str, str], None]

_SYSTEMD: Final = "BindReadOnlyPaths"


def mount(spawner: Any, directory: str, place: str) -> None:
    """Have the server see the directory there, and nothing that was mounted there before.

    Raises `ConfigError` for a spawner that is not known.
    """
    if hasattr(spawner, "read_only_volumes"):  # Docker's
        others = {k: v for k, v in spawner.read_only_volumes.items() if v != place}
        spawner.read_only_volumes = others | {directory: place}
    elif hasattr(spawner, "unit_extra_properties"):  # systemd's
        said = spawner.unit_extra_properties.get(_SYSTEMD, "")
        kept = [each for each in said.split() if not each.endswith(f":{place}")]
        spawner.unit_extra_properties = spawner.unit_extra_properties | {
            _SYSTEMD: " ".join([*kept, f"{directory}:{place}"])
        }
    else:
        raise ConfigError(
            f"How {type(spawner).__qualname__} mounts a directory is not known here; give mount=..."
        )
