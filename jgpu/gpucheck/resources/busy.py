"""Works without end beside others, and looks whether its own sums are right.

    python busy.py HOW

Begins at the first line that it reads; "end" has it print whether all sums were right, another
line how many steps there were.
"""

import json
import sys
from threading import Event, Thread
from typing import Any

import place
import torch

SIZE = 256
_seen: dict[str, Any] = {"steps": 0, "same": True}


def work(device: torch.device, stop: Event) -> None:
    """Whole numbers, whose sums are exact."""
    right = torch.arange(SIZE * SIZE).view(SIZE, SIZE)
    kept = right.to(device)
    total = int(right.sum())
    while not stop.is_set():
        made = (kept + 1) * 3
        made -= kept * 2
        grown = torch.cat([made, kept])
        same = int(made.sum()) == total + 3 * SIZE * SIZE
        _seen["same"] &= same and int(grown[SIZE:].sum()) == total
        _seen["steps"] += 1


def main() -> None:
    """Until the input ends."""
    stop = Event()
    torch.set_num_threads(1)
    with place.computing(sys.argv[1]) as device:
        thread = Thread(target=work, args=(device, stop), daemon=True)
        for line in sys.stdin:
            if not thread.ident:
                thread.start()
            if line.strip() == "end":
                stop.set()
                thread.join(60)
            print(json.dumps(_seen), flush=True)


if __name__ == "__main__":
    main()
