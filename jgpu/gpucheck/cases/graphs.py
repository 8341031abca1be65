"""Could repeated programs be CUDA graphs? Recorded, and not judged: jgpu builds none yet."""

from jgpu.errors import WorkFailed
from jgpu.gpucheck.stand import SkipCase, Stand

__all__ = ["graphs"]


def graphs(stand: Stand) -> None:
    """A capture and its replays, random numbers in it, and a capture that fails."""
    if stand.on_host:
        raise SkipCase("Only CUDA has graphs.")
    for name, value in stand.run("graphs", "whole").items():
        if isinstance(value, float):
            stand.figure(name, value)
        else:
            stand.note(f"{name}: {value}")
    try:
        stand.note(f"after a capture that failed: {stand.run('graphs', 'failed')}")
    except WorkFailed as error:
        stand.note(f"a capture that failed ended its process: {error}")
    stand.check("everything was recorded", holds=True)
