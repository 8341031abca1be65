"""Programs run by the accelerator and by the function in Python, and what each of them shows.

    python assembled.py [--every N --turn K]

With it samples of the operators of PyTorch's database, in a process of their own: its module
freezes torch's switches. Prints how many went by the accelerator, of how many, and which differ.
"""

import argparse
import json
import random
import sys
import warnings

import torch
from recorder import Recorder, storage_bytes
from sketch import CPU, all_live

from jgpu.broker.executor.programs import Buffer, RunContext, define
from jgpu.broker.executor.programs.flags import gate
from jgpu.wire.program import Flags

__all__ = ["both"]

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
SAMPLES = 4
#: of the database: what torch computes from memory that nobody has set, so that no two runs agree
UNSET = {"linalg.lstsq": "the pivots that it gives to LAPACK's gelsy"}


def bits(tensor):
    return None if tensor is None else (storage_bytes(tensor).tolist(), tensor.stride())


class Run:
    """All that a run shows."""

    def __init__(self, definition, data, params, *, plainly):
        for variant in definition._variants.values():
            variant.straight = None if plainly else variant.straight
        given = [Buffer(k, t.clone()) for k, t in enumerate(data)]
        self.told, self.marks = [], memoryview(bytearray(8)).cast("q")
        generator = torch.Generator().manual_seed(3)
        run = RunContext(CPU, {0: generator}, work=1, mark=self.marks)
        run.wanted = tuple(range(definition.fresh))
        run.tell = lambda slot, made: self.told.append((slot, bits(made)))
        outcome = definition.run(given, params, all_live(definition), b"", run)
        self.failures = outcome.failures
        self.outputs = [
            bits(each) if isinstance(each, torch.Tensor) else each for each in outcome.outputs
        ]
        self.inputs = [bits(each.base) for each in given]
        self.random = generator.get_state().tolist()
        self.last = self.marks[0]

    def __eq__(self, other):
        return vars(self) | {"marks": 0} == vars(other) | {"marks": 0}


def both(definition, data, params=()):
    """One run of each form, once each op was seen."""
    Run(definition, data, params, plainly=False)
    Run(definition, data, params, plainly=False)
    straight = [variant.straight for variant in definition._variants.values()]
    ours = Run(definition, data, params, plainly=False)
    plain = Run(definition, data, params, plainly=True)
    return ours, plain, bool(straight) and all(straight)


def calls_of(every, turn):
    """Samples of the operators of PyTorch's database, as programs."""
    with gate.passing(Flags()):  # the module that is imported next lets nobody set them
        from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db[turn::every]:
        if info.name in UNSET:
            continue
        for dtype in DTYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            torch.manual_seed(5)
            random.seed(5)
            for number, sample in enumerate(info.sample_inputs("cpu", dtype)):
                if number >= SAMPLES:
                    break
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        with torch.no_grad(), Recorder(lift=True) as recorder:
                            info(sample.input, *sample.args, **sample.kwargs)
                        recording = recorder.recording()
                        definition = define(recording.data, "cpu")
                    except Exception:  # nothing that goes over the wire
                        continue
                yield f"{info.name} {dtype} {number}", recording, definition


def compare(every, turn):
    """How many of them were straight, of how many, and which differ."""
    told, total, differing = 0, 0, []
    for name, recording, definition in calls_of(every, turn):
        if not definition.ops:
            continue
        ours, plain, is_straight = both(definition, recording.inputs, recording.params)
        total += 1
        told += is_straight
        if ours != plain:
            differing.append(name)
    return told, total, differing


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--turn", type=int, default=0)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(compare(options.every, options.turn)))


if __name__ == "__main__":
    main()
