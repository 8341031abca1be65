"""Runs programs in memory that a neighbour has just given back, and keeps every byte they show.

    python stale.py FILE [--every N --turn K] [--databases]

The C library fills each block with a pattern when it is taken and when it is given back
(`glibc.malloc.perturb`), so whatever an op does not write itself shows it. Run twice with other
patterns, and compare (`differences`): a byte that differs is one that the executor left as it was.

The programs: factories and whatever makes a storage grow, written here; training steps of many
models and calls of internal ops (`contract_seeds`); with `--databases` samples of all operators of
PyTorch's, forward and backward. Each runs step by step and twice compiled, everything kept.
"""

import argparse
import os
import pickle
import sys
import warnings
from hashlib import blake2b

#: fills of the two runs: what is taken shows their complement
PATTERNS = (0x5A, 0xC3)
#: storages beyond this are kept as digests of their pieces
PIECE = 4096
SAMPLES = 6


def environment(pattern):
    """What a process is started with, so that its memory shows a pattern."""
    tunables = {"perturb": pattern, "tcache_count": 0, "mmap_max": 0, "arena_max": 1}
    return os.environ | {
        "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{k}={v}" for k, v in tunables.items()),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def differences(first, second):
    """What of two runs differs: (name, op, where, differing pieces, of so many)."""
    found = []
    assert [key for key, _ in first] == [key for key, _ in second]
    for ((name, run, op), ours), (_, theirs) in zip(first, second, strict=True):
        if ours != theirs:
            count = sum(a != b for a, b in zip(ours, theirs, strict=True))
            found.append((name, run, op, count, len(ours)))
    return found


def kept(tensor):
    """All bytes of a storage, large ones by piece."""
    from recorder import storage_bytes

    data = storage_bytes(tensor).numpy().tobytes()
    if len(data) <= PIECE:
        return data
    return [blake2b(data[k : k + PIECE]).digest() for k in range(0, len(data), PIECE)]


def sketches():
    """Programs by hand: (name, definition's bytes, inputs)."""
    from sketch import Sketch, contiguous

    from jgpu.wire.program import DeviceArgument, Dtype, Geometry

    def one(name, *args, out, inputs=(), dtype="float32"):
        sketch = Sketch(inputs=len(inputs))
        seen = [sketch.seen(k, geometry) for k, geometry in enumerate(inputs)]
        kwargs = {"dtype": Dtype(dtype), "device": DeviceArgument()}
        sketch.op(name, *seen, *args, outs=[out], **kwargs)
        return sketch.bytes(), [4096] * len(inputs)

    def lies(shape, stride, dtype="float32"):
        return Geometry(dtype, shape, stride)

    whole = contiguous(3, 4)
    wide, overlapping = lies((2,), (1000,)), lies((3, 4), (1, 1))
    holes = lies((3, 4), (40, 2))
    yield "empty", *one("empty.memory_format", (3, 4), out=whole)
    for geometry in (wide, overlapping, holes):
        shape, stride = geometry.shape, geometry.stride
        lying = {"out": geometry}
        yield f"empty strided {stride}", *one("empty_strided.default", shape, stride, **lying)
        lying["inputs"] = [whole]
        yield (
            f"new_empty strided {stride}",
            *one("new_empty_strided.default", shape, stride, **lying),
        )
    yield "like", *one("empty_like.default", out=whole, inputs=[whole])
    yield "permuted", *one("empty_permuted.default", (3, 4), (1, 0), out=lies((3, 4), (1, 3)))
    yield "new_empty", *one("new_empty.default", (5,), out=contiguous(5), inputs=[whole])
    yield from growing()


def growing():
    """Programs that make a storage grow, of an input and of their own."""
    from sketch import Sketch, contiguous

    from jgpu.wire.program import Geometry

    whole = contiguous(3, 4)
    for shape in ((40,), (3, 40), (7, 9)):
        sketch = Sketch(inputs=1)
        sketch.op("resize_.default", sketch.seen(0, whole), shape, outs=[None])
        yield f"resize_ {shape}", sketch.bytes(), [48]
        sketch = Sketch(inputs=0)
        made = sketch.op("zeros.default", (3, 4), outs=[whole])
        sketch.op("resize_.default", sketch.seen(made, whole), shape, outs=[None])
        yield f"zeros, resize_ {shape}", sketch.bytes(), []
    sketch = Sketch(inputs=2)
    given = sketch.seen(0, whole), sketch.seen(1, contiguous(100))
    sketch.op("resize_as_.default", *given, outs=[None])
    yield "resize_as_", sketch.bytes(), [48, 400]
    sketch = Sketch(inputs=3)
    given = sketch.seen(0, contiguous(6, 5)), sketch.seen(1, contiguous(6, 5))
    sketch.op("add.out", *given, out=sketch.seen(2, Geometry("float32", (2,), (3,))),
              outs=[None])  # fmt: skip
    yield "add.out", sketch.bytes(), [120, 120, 16]


def recorded(databases, every, turn):
    """Native calls as programs: (name, recording)."""
    import torch
    from contract_seeds import over_lists
    from recorder import Recorder
    from test_programs_contracts import steps

    calls = [("step", call) for call in steps()] + [("call", call) for call in over_lists()]
    calls += samples() if databases else []
    for number, (name, call) in enumerate(calls):
        if number % every != turn:
            continue
        torch.manual_seed(3)
        recorder = Recorder()
        try:
            with recorder:
                call()
            yield f"{name} {number}", recorder.recording()
        except Exception:  # what natively fails, or cannot be recorded
            continue


def samples():
    """Forward and backward of samples of all operators."""
    import torch
    from contract_seeds import run_sample
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    for op in op_db:
        for dtype in (torch.float32, torch.int64, torch.complex64):
            if dtype not in op.dtypes:
                continue
            grad = dtype.is_floating_point and op.supports_autograd
            torch.manual_seed(1)
            try:
                given = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
            except Exception:  # a sample that cannot be made here
                continue
            for sample in given[:: max(1, len(given) // SAMPLES)][:SAMPLES]:
                yield op.name, lambda op=op, sample=sample: run_sample(op, sample)


def shown(name, data, params, inputs, rng=None):
    """Every storage after each of three runs of one program."""
    import torch
    from sketch import all_live

    from jgpu.broker.executor.programs import Buffer, RunContext, define
    from jgpu.errors import ProgramError

    try:
        definition = define(data, "cpu")
    except ProgramError:
        return
    makers = {s: step.info.name for step in definition.plan.steps for s in step.outs}
    for run in range(3):
        buffers = [Buffer(k, tensor.clone()) for k, tensor in enumerate(inputs)]
        generator = torch.Generator()
        if rng is not None:
            generator.set_state(rng)
        context = RunContext(torch.device("cpu"), {0: generator}, work=run + 1)
        outcome = definition.run(buffers, params, all_live(definition), b"", context)
        for buffer in buffers:
            if buffer.base is not None:
                yield (name, run, f"input {buffer.id}"), kept(buffer.base)
        for slot, made in enumerate(outcome.outputs, definition.inputs):
            if isinstance(made, torch.Tensor):
                yield (name, run, makers[slot]), kept(made)


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--turn", type=int, default=0)
    parser.add_argument("--databases", action="store_true")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(2)  # for what models are made with
    found = []
    for name, data, sizes in sketches():
        inputs = [torch.full((size,), 7, dtype=torch.uint8) for size in sizes]
        found += shown(name, data, (), inputs)
    for name, recording in recorded(options.databases, options.every, options.turn):
        found += shown(name, recording.data, recording.params, recording.inputs, recording.rng)
    with open(options.file, "wb") as file:
        pickle.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1:])
