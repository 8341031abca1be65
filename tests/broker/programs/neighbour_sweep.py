"""Calls of every op beside their neighbours: what one left in a cache would answer for another.

    python neighbour_sweep.py [--only TEXT] [--every N] [--first K] [--seed S]

From the samples of PyTorch's database of operators, forward and backward, come native calls of
single ops, and from what the contracts' fuzzer begins with those of internal ops. Their integers,
bools and reductions are varied over their neighbours; all are made, in one random order, in one
process: recorded natively, then run by the executor three times (step by step, compiled, and with
values told). Each run's results and written inputs are compared bit by bit with the native ones.

Inputs lie in larger storages between margins of a pattern, which must be whole afterwards; what
kernels make lies between forbidden pages and patterns (`guarded.c`). A touch outside ends the
process, and is told as the fault that it is. Prints one line of JSON.
"""

import argparse
import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

from contract_fuzz import in_a_child, prepared

#: elements of a tensor, and calls of one op, that are taken from the database
LARGEST = 2048
CALLS_EACH = 3
VARIANTS_EACH = 4
#: elements of pattern before and behind an input
MARGIN = 16
#: what they leave unset is nobody's number
UNSET = ("empty", "new_empty", "resize", "mkldnn_rnn_layer", "set_", "_efficientzerotensor")
#: what may come of a try: natively an error (or the process's end), refused, the same
KNOWN = ("native", "refused", "same")
RAISED = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)


def native_calls(only, every, first, chance):
    """Calls of single ops, by op, from every n-th entry of the database whose name has `only`."""
    import torch

    from jgpu.broker.executor.programs.flags import gate
    from jgpu.wire.program import Flags

    with gate.passing(Flags()):  # the database forbids everybody to set switches from here on
        pass
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._python_dispatch import TorchDispatchMode

    found = {}

    class Collector(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kept = found.setdefault(func, {})
            signature = repr(plain((args, kwargs)))
            if func.namespace == "aten" and len(kept) < CALLS_EACH and signature not in kept:
                copied = copies((args, kwargs or {}))
                if copied is not None:
                    kept[signature] = copied
            return func(*args, **(kwargs or {}))

    entries = [op for op in op_db if only in op.name]
    for op in entries[first % every :: every]:
        dtype = torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.int64
        if dtype not in op.supported_dtypes("cpu"):
            continue
        grads = op.supports_autograd and dtype.is_floating_point
        torch.manual_seed(1)
        try:
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=grads))
        except RAISED:
            continue
        for sample in chance.sample(samples, min(6, len(samples))):
            with Collector():
                try:
                    made = op(sample.input, *sample.args, **sample.kwargs)
                    if grads and isinstance(made, torch.Tensor) and made.requires_grad:
                        made.sum().backward()
                except RAISED:
                    continue
    return {func: list(kept.values()) for func, kept in found.items() if kept and wanted(func)}


def contracted_calls(only, every, first, chance):
    """Calls by op of every n-th internal op that has a contract and is not CUDA's alone.

    Indices are 0: natively what lies outside is written to.
    """
    import torch
    from contract_fuzz import arguments, described
    from contract_reach import ON_CUDA
    from contract_seeds import base_of, seeds

    from jgpu.broker.executor.programs.checking.arguments import bind
    from jgpu.broker.executor.programs.geometry import dtype_of, intern, required_bytes

    def made(geometry):
        base, dtype = (
            torch.zeros(required_bytes(geometry), dtype=torch.uint8),
            dtype_of(geometry.dtype),
        )
        if dtype.is_floating_point and base.numel():
            base = torch.randn(base.numel() // dtype.itemsize).to(dtype).view(torch.uint8)
        return between(intern(geometry).over(base))

    found, known = {}, seeds(databases=False)
    names = [n for n in sorted(known) if only in n and base_of(n) not in ON_CUDA]
    for name in names[first % every :: every]:
        info = described(name, "cpu")
        if wanted(info.overload):
            found[info.overload] = [
                ((), arguments(info, bind(op, info, torch.device("cpu")), list(map(made, seen))))
                for op, seen in known[name][:CALLS_EACH]
            ]
    return found


def wanted(func):
    """Whether a call of this op is a program's op with a result that repeats."""
    import torch

    base = func._schema.name.removeprefix("aten::")
    tensors = [str(r.real_type) for r in func._schema.returns]
    makes = any("Tensor" in kind for kind in tensors)
    return makes and not func.is_view and not base.startswith(UNSET) and (
        torch.Tag.inplace_view not in func.tags
    )  # fmt: skip


def plain(value):
    """A call without its tensors' values."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return [(name, plain(item)) for name, item in value.items()]
    return type(value), repr(value)


def copies(value):
    """The same with every tensor in a storage of its own, between margins; None if it is large."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    if any(not plain_tensor(t) or t.numel() > LARGEST for t in leaves):
        return None
    return tree_map(lambda leaf: between(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def plain_tensor(tensor):
    """Strided, not quantized, without lazy bits."""
    import torch

    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not (tensor.is_conj() or tensor.is_neg())
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    )


def between(tensor):
    """A copy between two margins of a pattern, of the same strides."""
    import torch

    tensor = tensor.detach()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    whole = torch.empty((span + 2 * MARGIN) * tensor.itemsize, dtype=torch.uint8).fill_(0x5A)
    made = torch.empty(0, dtype=tensor.dtype)
    made.set_(whole.untyped_storage(), MARGIN, tensor.shape, tensor.stride())
    if tensor.numel():  # of places that are seen several times, each once
        once = [slice(None) if stride else slice(1) for stride in tensor.stride()]
        made[tuple(once)].copy_(tensor[tuple(once)])
    return made


def margins(tensor):
    """The bytes of a tensor's storage that it does not show."""
    import torch

    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    hidden = torch.ones(whole.numel() // tensor.itemsize, dtype=torch.bool)
    hidden.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return whole.view(-1, tensor.itemsize)[hidden]


def neighbours(func, call, chance):
    """The call itself, and some with one number or switch changed."""
    args, kwargs = call
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    places = [(name, None) for name, value in given.items() if type(value) in (int, bool)]
    places += [
        (name, k)
        for name, value in given.items()
        if isinstance(value, list | tuple)
        for k, item in enumerate(value)
        if type(item) in (int, bool)
    ]
    yield args, kwargs
    for _ in range(VARIANTS_EACH if places else 0):
        name, place = chance.choice(places)
        value = given[name] if place is None else given[name][place]
        other = other_than(name, value, chance)
        if place is not None:
            other = [other if k == place else item for k, item in enumerate(given[name])]
        at = names.index(name)
        if at < len(args):
            yield (*args[:at], other, *args[at + 1 :]), kwargs
        else:
            yield args, {**kwargs, name: other}


def other_than(name, value, chance):
    """A neighbour of a switch, a reduction or a number."""
    if type(value) is bool:
        return not value
    if name == "reduction":
        return chance.choice([k for k in (0, 1, 2) if k != value])
    return chance.choice([value + 1, value - 1, -value, 0, 1, 2])


def fresh(call):
    """Its tensors copied again, which the op may write."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    copied = tree_map(lambda x: between(x) if isinstance(x, torch.Tensor) else x, call)
    return copied, [x for x in tree_leaves(copied) if isinstance(x, torch.Tensor)]


def try_call(func, call, guarded, progress):
    """What came of one call: "native", "refused", "same", or a fault in words."""
    import torch
    from recorder import Recorder

    from jgpu.broker.executor.programs import define
    from jgpu.errors import ProgramError

    progress[8] = guarded.value = 1  # natively it may well end the process
    try:
        with torch.no_grad():
            (args, kwargs), _ = fresh(call)
            func(*args, **kwargs)  # what it returns is given back, and looked at, here
            (args, kwargs), tensors = fresh(call)
            torch.manual_seed(7)
            with Recorder() as recorder:
                func(*args, **kwargs)
        if not recorder.state.ops:
            return "native"
        recording = recorder.recording()
    except RAISED:
        return "native"
    finally:
        progress[8] = guarded.value = 0
    if any(bool((margins(t) != 0x5A).any()) for t in tensors if t.numel()):
        return "native writes outside of what it is given"
    try:
        definition = define(recording.data, "cpu")
    except ProgramError:
        return "refused"
    for run in range(1, 4):
        fault = run_once(definition, recording, run, guarded)
        if fault.startswith("IndexError") and "which is not in [" in fault:
            return "refused"  # natively some kernels skip such an index, and others read there
        if fault:
            return f"run {run}: {fault}"
    return "same"


def run_once(definition, recording, run, guarded):
    """Run the program; what differs from the native outcome, or nothing."""
    import torch
    from sketch import CPU, all_live

    from jgpu.broker.executor.programs import Buffer, Failure, RunContext

    given = [Buffer(k, t.clone()) for k, t in enumerate(recording.inputs)]
    generator, told = torch.Generator(), {}
    generator.set_state(recording.rng)
    context = RunContext(CPU, {0: generator}, work=run)
    if run == 3:
        context.wanted = tuple(range(min(definition.fresh, 8)))
        context.tell = lambda slot, tensor: told.setdefault(slot, bits(tensor).clone())
    guarded.value = 1
    try:
        outcome = definition.run(given, recording.params, all_live(definition), b"", context)
    finally:
        guarded.value = 0
    if outcome.failures:
        return f"{outcome.failures[0].error}: {outcome.failures[0].text}"
    if outcome.learnt:  # the claims are the native truth
        return f"an output lies otherwise than natively: {outcome.learnt}"
    for k, (buffer, after) in enumerate(zip(given, recording.after, strict=False)):
        if not torch.equal(buffer.bytes(), after):
            return f"input {k} is other than natively"
    for slot, output in enumerate(outcome.outputs):
        after = recording.after[definition.inputs + slot]
        if isinstance(output, Failure):
            return f"output {slot}: {output.text}"
        if output.dtype != after.dtype or output.shape != after.shape:
            return f"output {slot} is of another shape or type than natively"
        if not torch.equal(bits(output), bits(after)):
            return f"output {slot} is other than natively"
        if slot in told and not torch.equal(told[slot], bits(after)):
            return f"output {slot} was told otherwise than it is"
    return ""


def bits(tensor):
    """Its elements' bytes in order."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).flatten().view(
        torch.uint8
    )  # fmt: skip


def batch(tries, first, last, progress, guarded):
    """In a child: some of the tries; each says its number before it begins."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the child's, to its end
    found = []
    for number in range(first, last):
        progress[:8] = number.to_bytes(8, "little")
        func, call = tries[number]
        found.append([str(func), try_call(func, call, guarded, progress), repr(plain(call))])
    return found


def sweep(tries):
    """Outcomes by kind, the ops that were compared, and the faults."""
    guarded = ctypes.c_int.in_dll(ctypes.CDLL(None), "guarded_on")
    progress, left = mmap.mmap(-1, mmap.PAGESIZE), [(0, len(tries))]
    told = []
    while left:
        first, last = left.pop()
        found, status = in_a_child(batch, tries, first, last, progress, guarded)
        if found is None:
            at = int.from_bytes(progress[:8], "little")
            func, call = tries[at]
            assert os.WIFSIGNALED(status), f"try {at}, {func}: the sweep itself broke"
            ended = "native" if progress[8] else signal.Signals(os.WTERMSIG(status)).name
            found, progress[8] = [[str(func), ended, repr(plain(call))]], 0
            # what was done before it is done again, to be told
            left += [each for each in ((at + 1, last), (first, at)) if each[0] < each[1]]
        told += found
    counts = Counter(outcome if outcome in KNOWN else "fault" for _, outcome, _ in told)
    ops = {name for name, outcome, _ in told if outcome == "same"}
    return counts, ops, [each for each in told if each[1] not in KNOWN]


def main():
    """Sweep and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="entries whose name has this")
    parser.add_argument("--every", type=int, default=1, help="every N-th entry of the database")
    parser.add_argument("--first", type=int, default=0, help="counted from the K-th")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "guarded.so" not in os.environ.get("LD_PRELOAD", ""):
        prepared()
    shutil.rmtree(Path(os.environ["LD_PRELOAD"]).parent)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    part = options.only, options.every, options.first, chance
    calls = contracted_calls(*part)
    for func, found in native_calls(*part).items():
        calls.setdefault(func, []).extend(found)
    tries = [
        (func, other)
        for func, found in calls.items()
        for call in found
        for other in neighbours(func, call, chance)
    ]
    chance.shuffle(tries)
    counts, ops, faults = sweep(tries)
    told = {"seed": options.seed, "tries": len(tries), "ops": len(ops), "runs each": 3}
    sys.stdout.write(json.dumps(told | {"counts": counts, "faults": faults}) + "\n")


if __name__ == "__main__":
    main()
