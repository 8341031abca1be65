"""IPython, where it runs: nothing here imports it, or torch."""

import sys
from typing import Any

__all__ = ["shell"]


def shell() -> Any:
    """IPython's shell; None where there is none."""
    module = sys.modules.get("IPython.core.interactiveshell")
    if module is None or not module.InteractiveShell.initialized():
        return None
    return module.InteractiveShell.instance()
