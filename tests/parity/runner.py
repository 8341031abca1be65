"""Runs the cases of one module on one device and writes what they returned, as bytes.

    python runner.py DEVICE MODULE OUT [--runs N] [--order SEED] [--as-on-cuda] [NAME ...]

All cases run once, then all again, each time in another order that follows from the seed: what
comes second and third was met before, among other things. Each case starts from the same seeds. A
case that fails is written down as its error; the others run all the same. What is written: by case
the outcome of each run. `--as-on-cuda`: natively, through the kernels of a CUDA without a GPU.
"""

import argparse
import importlib
import pickle
import random
import sys
import traceback
import warnings
from contextlib import nullcontext
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


def run(function, device, as_on_cuda=False):
    """The outcome of a case: ("ok", values) or ("error", traceback)."""
    try:
        with cases.as_on_cuda() if as_on_cuda else nullcontext():
            cases.seed(1234)
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


def main():
    """Run the module's cases (or those named) and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("module")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--as-on-cuda", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    importlib.import_module(options.module)
    chosen = options.names or list(cases.CASES)
    found = {name: [] for name in chosen}
    chance = random.Random(options.order)
    for _ in range(options.runs):
        for name in chance.sample(chosen, len(chosen)):
            found[name].append(run(cases.CASES[name], options.device, options.as_on_cuda))
    options.out.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
