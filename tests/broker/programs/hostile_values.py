"""Throws hostile values at every op that a program may name; each runs as a client's program would.

    python hostile_values.py --databases --cases 4 [--json FILE] [--only div] [--part 3/16]
    python hostile_values.py --delicate --cases 20 --write FILE

For each op and each type of tensor there are `--cases` cases: extremes of integers, NaN,
infinities, denormals, huge and negative counts and orders, empty and one-element tensors, strides
of zero. The calls begin as in `hostile_calls`. A case is defined and run twice, step by step and
compiled, in one of many processes, with little memory and a limit of processor seconds. A process
that dies or does not end names its case; the next goes on behind it.

With `--write` the cases are pickled for others to carry out, and none is here. `--delicate` takes
the ops alone of which it is known that some values or sizes would do harm.

Prints one line of JSON: cases by outcome, faults, the slowest cases, and calls that asked for more
memory than anybody foretold.
"""

import argparse
import json
import mmap
import os
import pickle
import random
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
#: bytes that a case may take beyond what the process has
ROOM = 1 << 30
#: bytes of results that are foretold from shapes, beyond which a case is left out: they are counted
LARGE = 128 << 20
#: processor seconds of one case, and wall seconds for a process that sleeps
PATIENCE_S, ASLEEP_S = 5, 120
#: of an op's loop that such a patience has time for
STEPS = 1 << 26
BATCH = 500
#: faults of one op after which its other cases are left out
ENOUGH = 3
DTYPES = (
    "own", "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
    "bool", "complex64",
)  # fmt: skip
INTEGERS = (
    -1, 0, 1, 2, -2, 7, -7, 1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1 << 20,
    1 << 40, -(1 << 40), 1000, (1 << 32) - 1,
)  # fmt: skip
#: that no tensor of int64 holds
UNSIGNED = (1 << 63, (1 << 64) - 1)
FLOATS = (
    float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e-320, 5e-324, 1.0, 1e12, -1e12,
    1e300, -1e300, 0.3, 1e6, 1.0000001, 3.4e38,
)  # fmt: skip


class Cases:
    """The n-th case; everything follows from the seed and n."""

    def __init__(self, calls, seed, each):
        self.calls = {name: found for name, found in calls.items() if found}
        self.names = list(self.calls)
        self.seed, self.each = seed, each

    def __len__(self):
        return len(self.names) * len(DTYPES) * self.each

    def name(self, number):
        """The op of a case."""
        return self.names[number // (len(DTYPES) * self.each)]

    def dtype(self, number):
        """What its tensors are turned into."""
        return DTYPES[number // self.each % len(DTYPES)]

    def chosen(self, number):
        """A call, the geometries of its slots, and the chance that fills them."""
        from contract_changes import changed
        from msgspec import structs

        name, dtype = self.name(number), self.dtype(number)
        chance = random.Random(f"{self.seed} {name} {dtype} {number % self.each}")
        op, seen = chance.choice(self.calls[name])
        geometries = list(seen)
        if geometries and dtype != "own":
            leading = next((g.dtype for g in geometries if "float" in g.dtype), geometries[0].dtype)
            geometries = [
                structs.replace(g, dtype=dtype) if g.dtype == leading else g for g in geometries
            ]
        what = chance.random()
        if what < 0.12:
            geometries = [shaped(g, 0) for g in geometries]
        elif what < 0.22:
            geometries = [shaped(g, 1) for g in geometries]
        elif what < 0.3:
            geometries = [structs.replace(g, stride=(0,) * len(g.shape)) for g in geometries]
        elif what < 0.4 and geometries:
            k = chance.randrange(len(geometries))
            geometries[k] = changed(geometries[k], chance)
        for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 3))):
            op = with_hostile_number(op, chance)
        return op, geometries, chance

    def whole(self, number):
        """A case: an op, the geometries of its slots, and what these are filled with."""
        op, geometries, chance = self.chosen(number)
        return op, geometries, [values(g.dtype, chance) for g in geometries]

    def told(self, number):
        """A case in words."""
        op, geometries, fills = self.whole(number)
        fills = [str(few) for few in fills]
        return [op.name, repr((op.args, op.kwargs)), repr(geometries), fills]

    def go(self, number):
        """Carry out a case; says what came of it."""
        import torch

        from jgpu.broker.executor.programs import Buffer, RunContext, contracts, define
        from jgpu.broker.executor.programs.checking.arguments import bind
        from jgpu.broker.executor.programs.checking.inference import infer
        from jgpu.broker.executor.programs.checking.ops import resolve
        from jgpu.broker.executor.programs.geometry import dtype_of, required_bytes
        from jgpu.errors import JgpuError
        from jgpu.wire.program import NO_SLOT, Out, Program, View, encode_program

        op, geometries, fills = self.whole(number)
        try:
            sizes = [required_bytes(g) for g in geometries]
            info = resolve(op.name, "cpu")
            bound = bind(op, info, torch.device("cpu"))
            contracts.check(info, bound, geometries)
            found = infer(info, bound, list(zip(geometries, sizes, strict=True)))
            returns = found.returns if found is not None else self.returned(info)
            made = sum(r.nbytes for r in returns if r is not None) if found else 0
            made += sum(r.nbytes for _, r in found.changed) if found else 0
            if made + sum(sizes) > LARGE:
                return "large"
            views = tuple(View(k) for k in range(len(geometries)))
            whole = Program(
                len(geometries), (), tuple(geometries), views,
                (type(op)(op.name, op.args, op.kwargs, (Out(NO_SLOT),) * len(returns)),),
            )  # fmt: skip
            definition = define(encode_program(whole), "cpu")
        except JgpuError:
            return "refused"
        except Exception as error:  # not a program at all
            return f"malformed: {type(error).__name__}: {error}"[:200]
        outcome = "ran"
        for _ in range(2):
            buffers = []
            for k, (geometry, nbytes, few) in enumerate(zip(geometries, sizes, fills, strict=True)):
                base = torch.zeros(nbytes, dtype=torch.uint8)
                fill(base, dtype_of(geometry.dtype), few)
                buffers.append(Buffer(k, base))
            context = RunContext(torch.device("cpu"), {0: torch.Generator().manual_seed(1)})
            run = definition.run(buffers, (), b"", b"", context)
            if run.suspended is not None:
                return "memory"
            if run.failures:
                outcome = "raised"
                if "alloc" in run.failures[0].text.lower():
                    outcome = "memory"
        return outcome

    def returned(self, info):
        """So many returns, by the schema, where nothing foretells them."""
        return [None for kind in info.returns if kind != "other"]


def shaped(geometry, size):
    """The same with every size so large, or the first one 0."""
    from msgspec import structs

    if not geometry.shape:
        return geometry
    shape = (0, *geometry.shape[1:]) if size == 0 else (1,) * len(geometry.shape)
    stride, along = [], 1
    for item in reversed(shape):
        stride.append(along)
        along *= max(item, 1)
    return structs.replace(geometry, shape=shape, stride=tuple(reversed(stride)))


def with_hostile_number(op, chance):
    """One plain number of a call is another."""
    from contract_changes import numbers
    from msgspec import structs

    found = numbers(op)
    if not found:
        return op
    where, k = chance.choice(found)
    args = getattr(op, where)
    new = hostile(args[k], chance)
    if where == "args":
        return structs.replace(op, args=(*args[:k], new, *args[k + 1 :]))
    return structs.replace(op, kwargs={**args, k: new})


def hostile(value, chance):
    """An extreme of the same kind."""
    if isinstance(value, tuple):
        at = chance.randrange(len(value))
        return (*value[:at], hostile(value[at], chance), *value[at + 1 :])
    if type(value) is bool:
        return not value
    return chance.choice(FLOATS) if type(value) is float else chance.choice(INTEGERS + UNSIGNED)


def values(dtype, chance):
    """What a tensor of this type is filled with, again and again."""
    if dtype == "bool":
        return chance.choice(([0], [1], [0, 1]))
    plain = chance.random()
    count = chance.choice((1, 1, 2, 4))
    if "float" in dtype or "complex" in dtype:
        if plain < 0.2:
            return [0.5, 1.0, 2.0, 0.25]
        return [chance.choice(FLOATS) for _ in range(count)]
    if plain < 0.25:
        return [0, 1, 2, 1]
    return [chance.choice(INTEGERS) for _ in range(count)]


def fill(base, dtype, few):
    """Fill bytes with values, each cast as the type has it."""
    import torch

    count = base.numel() // dtype.itemsize
    if not count:
        return
    if dtype.is_floating_point or dtype.is_complex:
        row = torch.tensor(few, dtype=torch.float64).to(dtype)
    elif dtype is torch.bool:
        row = torch.tensor(few, dtype=dtype)
    else:
        bits, least = 8 * dtype.itemsize, -(1 << 63)
        # the extremes of 64 bits are those of fewer
        row = torch.tensor([v >> (64 - bits) if abs(v) >= -least - 1 else v for v in few])
        row = row.to(dtype)
    whole = row.repeat(-(-count // len(few)))[:count].contiguous()
    base[: count * dtype.itemsize].copy_(whole.view(torch.uint8))


def batch(cases, numbers, progress):
    """In a child: carry out cases; each says its number before it begins."""
    with open("/proc/self/statm") as statm:
        had = int(statm.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (had + ROOM, had + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from jgpu.broker.executor.programs.precautions import orders

    # What takes minutes is refused, by a count of steps; here, what takes seconds.
    orders.MOST_STEPS, orders.MOST_POWERS = STEPS, STEPS
    outcomes, slowest, memory = Counter(), [], []
    for number in numbers:
        progress[:8] = number.to_bytes(8, "little")
        signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
        signal.alarm(ASLEEP_S)
        began = time.process_time()
        outcome = cases.go(number)
        slowest.append((round(time.process_time() - began, 4), number))
        outcomes[outcome] += 1
        if outcome == "memory":
            memory.append(number)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    return dict(outcomes), sorted(slowest)[-5:], memory


def search(cases, numbers, say):
    """All cases: outcomes, faults, the slowest, and those that asked for too much memory."""
    from contract_fuzz import in_a_child

    progress = mmap.mmap(-1, mmap.PAGESIZE)
    outcomes, faults, slowest, memory, bad = Counter(), [], [], [], Counter()
    left = [numbers[k : k + BATCH] for k in range(0, len(numbers), BATCH)][::-1]
    while left:
        now = [number for number in left.pop() if bad[cases.name(number)] < ENOUGH]
        if not now:
            continue
        found, status = in_a_child(batch, cases, now, progress)
        if status == 0:
            outcomes.update(found[0])
            slowest = sorted([*slowest, *map(tuple, found[1])])[-40:]
            memory += found[2]
            continue
        at = int.from_bytes(progress[:8], "little")
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        how = signal.Signals(number).name if number else f"status {status}"
        how = "hung" if how in ("SIGPROF", "SIGALRM") else how
        faults.append([at, how, *cases.told(at)])
        say(f"{how}: {faults[-1][:4]} {faults[-1][5]}")
        bad[cases.name(at)] += 1
        place = now.index(at)
        # what was done before it is done again, to be counted
        left += [part for part in (now[place + 1 :], now[:place]) if part]
    return outcomes, faults, slowest, memory


def delicate():
    """Base names of ops with a precaution, with a limit, or with a size that data decide."""
    from jgpu.broker.executor.programs.contracts import LIMITS
    from jgpu.broker.executor.programs.precautions import PRECAUTIONS
    from jgpu.broker.executor.programs.precautions.sizes import SIZES

    return LIMITS.keys() | PRECAUTIONS.keys() | SIZES.keys()


def known_calls(*given, **named):
    """`hostile_calls.calls`, in a process of its own: the databases change torch's switches."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        from hostile_calls import calls

        with os.fdopen(writer, "wb") as told:
            pickle.dump(calls(*given, **named), told)
            told.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        data = told.read()
    assert os.waitpid(child, 0)[1] == 0, "the calls could not be made"
    return pickle.loads(data)


def main():
    """Search and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2, help="of each op and type")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="ops whose names hold this")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th op, from the k-th on")
    parser.add_argument("--case", type=int, help="carry out this case here, and nothing else")
    parser.add_argument("--databases", action="store_true")
    parser.add_argument("--delicate", action="store_true", help="ops with a precaution or a limit")
    parser.add_argument("--write", type=Path, help="write the cases here, in random order")
    parser.add_argument("--json", type=Path, help="write what was found here")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))

    began = time.monotonic()
    part = tuple(map(int, options.part.split("/")))
    import jgpu.broker.executor.programs  # here, not in every child

    assert jgpu
    bases = delicate() if options.delicate else None
    known = known_calls(options.databases, only=options.only, part=part, bases=bases)
    cases = Cases(known, options.seed, options.cases)
    if options.case is not None:
        sys.stdout.write(f"{cases.told(options.case)}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{cases.go(options.case)}\n")
        return
    if options.write is not None:
        numbers = random.Random(options.seed).sample(range(len(cases)), len(cases))
        options.write.write_bytes(pickle.dumps([cases.whole(number) for number in numbers]))
        sys.stdout.write(f"{len(numbers)}\n")
        return
    made_s = time.monotonic() - began
    outcomes, faults, slowest, memory = search(
        cases, list(range(len(cases))), lambda text: sys.stderr.write(text + "\n")
    )
    found = {
        "torch": torch.__version__,
        "seed": options.seed,
        "ops": len(known),
        "ops without a call": [name for name, own in known.items() if not own],
        "types": len(DTYPES),
        "cases": len(cases),
        "seconds": [round(made_s), round(time.monotonic() - began)],
        "outcomes": outcomes,
        "deaths": sum(fault[1] != "hung" for fault in faults),
        "hangs": sum(fault[1] == "hung" for fault in faults),
        "faults": faults,
        "slowest": [[s, cases.dtype(n), *cases.told(n)] for s, n in reversed(slowest)],
        "memory": [[n, *cases.told(n)] for n in memory],
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
