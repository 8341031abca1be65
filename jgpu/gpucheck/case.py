"""One case in a process of its own: `python -m jgpu.gpucheck.case NAME DEVICE`.

Prints what it finds, a line of JSON each; ends with 1 where something did not hold.
"""

import importlib
import json
import sys

from jgpu.gpucheck.catalogue import by_name
from jgpu.gpucheck.stand import SkipCase, Stand

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run the case."""
    name, device = arguments
    case = by_name(name)
    stand = Stand(device)
    module = importlib.import_module(f"jgpu.gpucheck.cases.{case.module}")
    try:
        getattr(module, case.function)(stand)
    except SkipCase as reason:
        sys.stdout.write(f"{json.dumps({'skip': str(reason)})}\n")
    except Exception as error:
        stand.check("to its end", holds=False, text=f"{type(error).__name__}: {error}")
    sys.stdout.write(f"{json.dumps({'through': True})}\n")
    return int(stand.faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
