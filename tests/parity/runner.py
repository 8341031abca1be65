"""Runs the cases of one module on one device and writes what they returned, as bytes.

    python runner.py DEVICE MODULE OUT [NAME ...]

Each case starts from the same seeds. A case that fails is written down as its error; the others run
all the same.
"""

import importlib
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import cases


def frozen(value):
    """A returned value as plain data that compares bit for bit."""
    if isinstance(value, torch.Tensor):
        host = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return (
            str(host.dtype),
            tuple(host.shape),
            host.flatten().view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, float):
        return "float", value.hex()
    return type(value).__name__, repr(value)


def run(function, device):
    """The outcome of a case: ("ok", values) or ("error", traceback)."""
    cases.seed(1234)
    try:
        return "ok", [frozen(value) for value in function(device)]
    except Exception:
        told = traceback.format_exc()
    if device == "cuda":
        _hear_out()
    return "error", told


def _hear_out():
    """What else of a failed case is still to be told must not fall on the next one."""
    for _ in range(20):
        try:
            torch.cuda.synchronize()
        except Exception:
            continue
        return


def main(device, module, out, *names):
    """Run the module's cases (or those named) and write them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    importlib.import_module(module)
    chosen = names or tuple(cases.CASES)
    found = {name: run(cases.CASES[name], device) for name in chosen}
    Path(out).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
