"""The entry point that torch calls at the end of `import torch` (group `torch.backends`).

It costs next to nothing unless the process was started with a seat on a shared device
(`JGPU_TICKET` in its environment), and it is idempotent.
"""

import os

__all__ = ["autoload"]


def autoload() -> None:
    """Turn `cuda` into the shared device if this process has a seat there."""
    if not os.environ.get("JGPU_TICKET"):
        return
    from jgpu.device.activate import activate

    activate()
