"""A session whose device is lost: by its own wrong index, or by another's.

    python lost.py shared break|wait

"break" computes with the index, and goes on; "wait" begins at the first line, and uses what it had
at the second. Both say by which error they were told, and what they compute afterwards.
"""

import json
import sys
from typing import Any

import place
import torch


def told(use: Any, device: torch.device) -> dict[str, Any]:
    """The error's classes and text, and two numbers computed afterwards."""
    found: dict[str, Any] = {"errors": [], "text": ""}
    try:
        use()
    except Exception as error:
        found = {"errors": [each.__name__ for each in type(error).__mro__], "text": str(error)}
    found["after"] = (torch.tensor([1.0, 2.0], device=device) * 2).tolist()
    return found


def main() -> None:
    """One of the two."""
    _, how, what = sys.argv
    torch.set_num_threads(1)
    with place.computing(how) as device:
        kept = torch.ones(5, device=device)
        kept.sum().item()
        if what == "break":
            index = torch.full((3,), 7, device=device)
            print(json.dumps(told(lambda: kept.index_select(0, index).sum().item(), device)))
            return
        for line in sys.stdin:
            found = told(lambda: kept.sum().item(), device) if line.strip() == "use" else {}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
