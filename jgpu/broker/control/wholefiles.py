"""Files that whoever finds them finds whole."""

import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(file: Path, data: bytes) -> Path:
    """Write or replace a file that its owner alone may read; where it raises `OSError`, neither."""
    draft = file.with_suffix(".part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return draft.replace(file)
