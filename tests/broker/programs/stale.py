"""Runs programs in memory that a neighbour has just given back, and keeps every byte they show.

    python stale.py FILE PATTERN [--device KIND] [--every N --turn K] [--databases]

The C library fills each block with a pattern when it is taken and when it is given back
(`glibc.malloc.perturb`), and so does the memory of a CUDA that is computed on the host: whatever an
op does not write itself shows it. Run twice with other patterns, and compare (`differences`): a
byte that differs is one that the executor left as it was.

The programs: factories and whatever makes a storage grow, written here; training steps of many
models and calls of internal ops (`contract_seeds`); where there are some, CUDA's own kernels; with
`--databases` samples of all operators of PyTorch's, forward and backward. Each runs step by step
and twice compiled, everything kept.
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


def kept(found):
    """All bytes of a storage, large ones by piece."""
    data = found.numpy().tobytes()
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

    from jgpu.wire.program import DeviceArgument, Geometry

    whole = contiguous(3, 4)
    for shape in ((40,), (3, 40), (7, 9)):
        sketch = Sketch(inputs=1)
        sketch.op("resize_.default", sketch.seen(0, whole), shape, outs=[None])
        yield f"resize_ {shape}", sketch.bytes(), [48]
        sketch = Sketch(inputs=0)
        made = sketch.op("zeros.default", (3, 4), device=DeviceArgument(), outs=[whole])
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


def recorded(ground, databases, every, turn):
    """Native calls as programs: (name, recording)."""
    import torch
    from contract_seeds import over_lists
    from recorder import Recorder
    from test_programs_contracts import steps

    calls = [("step", call) for call in steps()] + [("call", call) for call in over_lists()]
    if ground.kind != "cpu":
        calls += cudas_own(ground)
    calls += samples() if databases else []
    for number, (name, call) in enumerate(calls):
        if number % every != turn:
            continue
        torch.manual_seed(3)
        recorder = Recorder()
        try:
            with ground.recording(), recorder:
                call()
            yield f"{name} {number}", recorder.recording()
        except Exception:  # what natively fails, or cannot be recorded
            continue


def cudas_own(ground):
    """Calls of kernels that only CUDA has: (what it is, call); what a backward needs is kept."""
    import torch

    a, kept = torch.ops.aten, []

    def attends(op, *rest, dtype=torch.float16):
        """Forward and backward, of heads as a projection to all of them lays them out."""
        values = torch.linspace(-1, 1, 2 * 5 * 3 * 16).view(2, 5, 3, 16).to(dtype).transpose(1, 2)
        heads = [values.clone().requires_grad_() for _ in range(3)]

        def call():
            made = op(*heads, *rest)
            kept.append(made)
            made[0].float().sum().backward()

        return call

    def recurs(mode, gates):
        """Two layers of cuDNN's, with dropout between them."""
        sizes = [size for width in (6, 5) for size in
                 ((5 * gates, width), (5 * gates, 5), (5 * gates,), (5 * gates,))]  # fmt: skip
        weights = [torch.full(size, 0.1) for size in sizes]
        rows, first = torch.linspace(-1, 1, 72).view(4, 3, 6), torch.zeros(2, 3, 5)
        cells = torch.zeros(2, 3, 5) if gates == 4 else None
        with ground.recording():
            state = a._cudnn_init_dropout_state(0.3, True, 7, dtype=torch.uint8, device="cpu")
            flat = a._cudnn_rnn_flatten_weight(weights, 4, 6, mode, 5, 0, 2, False, False)
        described = mode, 5, 0, 2, False, 0.3, True, False, [], state
        return lambda: kept.append(a._cudnn_rnn(rows, weights, 4, flat, first, cells, *described))

    def normalizes(training):
        given, channels = torch.linspace(-1, 1, 96).view(4, 3, 8), torch.linspace(0.5, 1, 3)
        moments = channels.clone(), channels.clone()
        rest = channels, channels, *moments, training, 0.1, 1e-5
        return lambda: kept.append(a.cudnn_batch_norm(given, *rest))

    flash, cudnn = a._scaled_dot_product_flash_attention, a._scaled_dot_product_cudnn_attention
    efficient = a._scaled_dot_product_efficient_attention
    bias, single = torch.linspace(-1, 1, 150).view(2, 3, 5, 5), {"dtype": torch.float32}
    yield "flash", attends(flash)
    yield "flash-dropout", attends(flash, 0.3, True)
    yield "cudnn", attends(cudnn, None, True)
    yield "cudnn-dropout", attends(cudnn, None, True, 0.4, True)
    yield "efficient", attends(efficient, None, True, **single)
    yield "efficient-dropout", attends(efficient, None, True, 0.4, **single)
    yield "efficient-bias", attends(efficient, bias, True, **single)
    for name, mode, gates in (("tanh", 1, 1), ("lstm", 2, 4), ("gru", 3, 3)):
        yield name, recurs(mode, gates)
    yield "batch-norm", normalizes(training=True)
    yield "batch-norm-evaluated", normalizes(training=False)
    yield (
        "dropout-state",
        lambda: a._cudnn_init_dropout_state(0.5, True, 7, dtype=torch.uint8, device="cpu"),
    )


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


def shown(ground, name, data, params, inputs, rng=None):
    """Every storage after each of three runs of one program."""
    import torch
    from sketch import all_live

    from jgpu.broker.executor.programs import Buffer, define
    from jgpu.errors import ProgramError

    try:
        definition = define(data, ground.kind)
    except ProgramError:
        return
    makers = {s: step.info.name for step in definition.plan.steps for s in step.outs}
    for run in range(3):
        with ground.running():
            buffers = [Buffer(k, ground.bring(tensor)) for k, tensor in enumerate(inputs)]
            context = ground.context(rng, run + 1)
            outcome = definition.run(buffers, params, all_live(definition), b"", context)
            for buffer in buffers:
                if buffer.base is not None:
                    yield (name, run, f"input {buffer.id}"), kept(ground.bytes_of(buffer.base))
            for slot, made in enumerate(outcome.outputs, definition.inputs):
                if isinstance(made, torch.Tensor):
                    yield (name, run, makers[slot]), kept(ground.bytes_of(made))


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("pattern", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--turn", type=int, default=0)
    parser.add_argument("--databases", action="store_true")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    import torch
    from grounds import GROUNDS

    torch.set_num_threads(1)
    torch.manual_seed(2)  # for what models are made with
    ground, found = GROUNDS[options.device](options.pattern), []
    for name, data, sizes in sketches():
        inputs = [torch.full((size,), 7, dtype=torch.uint8) for size in sizes]
        found += shown(ground, name, data, (), inputs)
    for name, recording in recorded(ground, options.databases, options.every, options.turn):
        given = recording.data, recording.params, recording.inputs, recording.rng
        found += shown(ground, name, *given)
    with open(options.file, "wb") as file:
        pickle.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1:])
