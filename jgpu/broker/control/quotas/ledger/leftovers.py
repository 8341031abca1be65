"""What could not be written before the broker ended: kept in a file, written by the next one.

One JSON file for each run, beside the spilled memory, mode 0600. Writing rows twice changes
nothing, so a file is deleted only when its rows are known to be in the ledger.
"""

from pathlib import Path

import msgspec

from jgpu.broker.control.quotas.ledger.meter import Charge
from jgpu.broker.control.quotas.ledger.problems import SettingKey, StoredSetting
from jgpu.broker.control.wholefiles import write_whole
from jgpu.wire.reports.records import EventReport

__all__ = ["Leftovers", "find_leftovers", "leave", "read_leftovers"]

_PATTERN = "usage-unwritten-*.json"


class Leftovers(msgspec.Struct, frozen=True):
    """Rows for a ledger; a setting of None is to be taken out."""

    charges: list[Charge]
    #: earlier versions wrote a text where it was set for good
    settings: list[tuple[SettingKey, StoredSetting | str | None]]
    events: list[EventReport] = []

    @property
    def kept(self) -> dict[SettingKey, StoredSetting | None]:
        """The settings by their rows."""
        return {
            key: StoredSetting(setting) if isinstance(setting, str) else setting
            for key, setting in self.settings
        }


def find_leftovers(directory: Path) -> list[Path]:
    """Files of earlier runs, in no order that matters."""
    return sorted(directory.glob(_PATTERN)) if directory.is_dir() else []


def read_leftovers(file: Path) -> Leftovers | None:
    """What a file holds; None if it is none that this module wrote whole."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Leftovers)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def leave(directory: Path, run: str, left: Leftovers) -> Path:
    """Write what is left; raises `OSError`. Whoever finds the file finds it whole."""
    file = directory / f"usage-unwritten-{run}.json"
    return write_whole(file, msgspec.json.encode(left))
