"""Makes calls with hostile values on the shared device, as a notebook's code would.

    python hostile_client.py CASES FIRST LAST PROGRESS

CASES holds pickled cases, as `hostile_values.py --write` makes them: an op, the geometries of its
tensors, and what these are filled with. The number of the case that is being made stands in the
file PROGRESS; for each batch, after which the device is waited for, a line of JSON is printed:
the next case, and of the batch the number of cases, their outcomes, and the seconds they took.

A call that keeps this process busy for too long ends it.
"""

import json
import os
import pickle
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from hostile_values import fill

from jgpu.wire.program import Complex, Dtype, GeneratorArg, HostTensor, Layout, MemoryFormat, Slot

BATCH = 8
#: bytes of a tensor that are sent
LARGE = 4 << 20
#: processor seconds of a batch, and bytes of this process
PATIENCE_S, ROOM = 30, 8 << 30


def on_device(geometry, few):
    """A tensor of such a geometry, full of a few values."""
    last = geometry.offset
    for size, stride in zip(geometry.shape, geometry.stride, strict=True):
        last += (size - 1) * stride
    count = 0 if 0 in geometry.shape else last + 1
    dtype = getattr(torch, geometry.dtype)
    if count * dtype.itemsize > LARGE:
        raise MemoryError
    base = torch.zeros(count * dtype.itemsize, dtype=torch.uint8)
    fill(base, dtype, few)
    sent = base.view(dtype).to("cuda")
    return torch.as_strided(sent, geometry.shape, geometry.stride, geometry.offset)


def said(arg, tensors):
    """An argument as torch takes it."""
    if isinstance(arg, Slot):
        return tensors[arg.slot]
    if isinstance(arg, tuple):
        return [said(item, tensors) for item in arg]
    if isinstance(arg, (Dtype, Layout, MemoryFormat)):
        return getattr(torch, arg.name)
    if isinstance(arg, GeneratorArg):
        return torch.cuda.default_generators[0]
    if isinstance(arg, HostTensor):
        raw = torch.frombuffer(bytearray(arg.data), dtype=getattr(torch, arg.dtype))
        return raw.reshape(arg.shape)
    return complex(arg.real, arg.imag) if isinstance(arg, Complex) else arg


def make(op, geometries, fills):
    """Make a call."""
    tensors = [on_device(*each) for each in zip(geometries, fills, strict=True)]
    name, _, overload = op.name.removeprefix("aten::").partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload)
    args = [said(arg, tensors) for arg in op.args]
    kwargs = {key: said(arg, tensors) for key, arg in op.kwargs.items()}
    if any(argument.name == "device" for argument in function._schema.arguments):
        kwargs["device"] = "cuda"
    return function(*args, **kwargs)


def waited_for(outcomes):
    """Wait for the device, through all the errors that it has to tell."""
    while True:
        try:
            torch.cuda.synchronize()
        except Exception as error:
            outcomes[f"later {type(error).__name__}"] += 1
        else:
            return


def main(path, first, last, progress):
    """Make the cases from `first` up to `last`."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C++ warns of thousands of calls
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    cases = pickle.loads(Path(path).read_bytes())
    file = os.open(progress, os.O_WRONLY | os.O_CREAT)
    last = min(int(last), len(cases))
    for start in range(int(first), last, BATCH):
        outcomes, began = Counter(), time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
        for number in range(start, min(start + BATCH, last)):
            os.pwrite(file, f"{number:9}".encode(), 0)
            try:
                made = make(*cases[number])
            except Exception as error:
                outcomes[type(error).__name__] += 1
            else:
                outcomes["ran"] += 1
                del made
        waited_for(outcomes)
        took_s = time.monotonic() - began
        told = {"next": number + 1, "cases": number + 1 - start, "outcomes": outcomes, "s": took_s}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
