"""Throws mis-sized calls of internal ops at their contracts; what passes runs between guard pages.

    python contract_fuzz.py --databases --tries 1000000 --table [--json FILE]

The calls begin as native ones (`contract_seeds`): recorded from training steps, made by hand and,
with `--databases`, from PyTorch's database of operators. Each try changes one or two things: a
shape, strides, a type, a number. The executor's own checks then refuse it, or the kernel runs:
every tensor that goes in ends exactly where a forbidden page begins (or begins where one ends), and
what the kernel makes for itself lies between such pages as well (`guarded.c`, loaded first). A
touch outside ends the process, which is one of many; the next goes on behind that try. Of kernels
that only CUDA has the contract alone is tried: what it lets through is held to how far the kernel
goes (`contract_reach`).

Prints one line of JSON, or with `--table` what came of the tries, op by op.
"""

import argparse
import ctypes
import json
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).parent
#: that tries may map beside what torch has mapped, which is 3 GiB in builds with CUDA
MEMORY = 2 << 30
#: seconds that one kernel may take
PATIENCE = 5
BATCH = 2000
PAGE = mmap.PAGESIZE
#: pages of one tensor's place
PAGES = 64
PLACES = 24
#: what comes of a try, in the order of the table: it names no call at all, the contract (or a
#: guard over values) refuses it, torch does, its tensors are too large for their places, it takes
#: too long, the kernel ran, the contract of a kernel that is not here let it through
OUTCOMES = ("malformed", "contract", "torch", "large", "slow", "ran", "passed")
RAISED = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, MemoryError)


def prepared():
    """Load ourselves again with the guarding allocator."""
    library = Path(tempfile.mkdtemp()) / "guarded.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "guarded.c", "-ldl"]
    subprocess.run(command, check=True)
    os.environ |= {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    os.execv(sys.executable, [sys.executable, *sys.argv])


class Arena:
    """Places for tensors, each between two forbidden pages."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.places = []
        for _ in range(PLACES):
            room = mmap.mmap(-1, (PAGES + 2) * PAGE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(room))
            for end in (address, address + (PAGES + 1) * PAGE):
                assert self.libc.mprotect(ctypes.c_void_p(end), PAGE, 0) == 0
            self.places.append(room)

    def bytes(self, place, nbytes, *, at_end):
        """So many bytes at an end of a place, or None if they do not fit."""
        import torch

        if nbytes > PAGES * PAGE:
            return None
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        start = (PAGES + 1) * PAGE - nbytes if at_end else PAGE
        return torch.frombuffer(self.places[place], dtype=torch.uint8, count=nbytes, offset=start)


class Fuzzer:
    """Makes, checks and runs the n-th try; everything follows from the seed and n."""

    def __init__(self, calls, seed):
        self.calls = calls
        self.names = list(calls)
        self.seed = seed
        self.arena = Arena()
        self.guarded = ctypes.c_int.in_dll(ctypes.CDLL(None), "guarded_on")

    def name(self, number):
        """The op of a try."""
        return self.names[number % len(self.names)]

    def chosen(self, number):
        """A call and how to change it."""
        from contract_changes import changed, numbers, with_other_number

        chance = random.Random(self.seed * 1_000_003 + number)
        op, seen = chance.choice(self.calls[self.name(number)])
        geometries = list(seen)
        for _ in range(chance.choice((1, 1, 1, 2, 2, 3))):
            if geometries and (chance.random() < 0.72 or not numbers(op)):
                k = chance.randrange(len(geometries))
                geometries[k] = changed(geometries[k], chance)
            else:
                op = with_other_number(op, chance)
        return op, geometries, chance

    def go(self, number):
        """Carry out a try: one of `OUTCOMES`, or "outside" where a contract lets too much by."""
        import torch
        from contract_reach import ON_CUDA, within
        from contract_seeds import base_of

        from jgpu.broker.executor.programs import contracts
        from jgpu.broker.executor.programs.checking.arguments import bind, values_of
        from jgpu.broker.executor.programs.checking.check import check_guards, check_op, look_at
        from jgpu.broker.executor.programs.geometry import intern, required_bytes
        from jgpu.errors import ProgramError

        op, geometries, chance = self.chosen(number)
        kind = "cuda" if base_of(op.name) in ON_CUDA else "cpu"
        try:
            info = described(op.name, kind)
            bound = bind(op, info, torch.device("cpu"))
            tensors = [(geometry, required_bytes(geometry)) for geometry in geometries]
            for geometry in geometries:
                intern(geometry)
        except ProgramError:
            return "malformed"
        assert not list(values_of(bound))
        try:
            contracts.check(info, bound, geometries)
            guards = check_guards(info, bound, look_at(info, bound, geometries), "cpu")
        except ProgramError:
            return "contract"
        try:
            check_op(op, info, bound, tensors)
        except ProgramError:
            return "torch"
        if kind == "cuda":
            fits = within(base_of(op.name), arguments(info, bound, geometries))
            return "passed" if fits else "outside"
        return self.run(info, bound, tensors, guards, chance)

    def run(self, info, bound, tensors, guards, chance):
        """Run the kernel between forbidden pages."""
        import torch
        from contract_changes import fill

        from jgpu.broker.executor.programs.checking.guards import check_range
        from jgpu.broker.executor.programs.checking.inference import call_on, flatten
        from jgpu.broker.executor.programs.geometry import dtype_of, intern

        made = []
        for place, (geometry, nbytes) in enumerate(tensors):
            base = self.arena.bytes(place, nbytes, at_end=chance.random() < 0.75)
            if base is None:
                return "large"
            fill(base, dtype_of(geometry.dtype), chance)
            made.append(intern(geometry).over(base))
        given = arguments(info, bound, made)
        try:
            for guard in guards:
                index = given[guard.argument]
                check_range(info.name, index[guard.place] if guard.place >= 0 else index, guard)
        except IndexError:
            return "contract"
        except RAISED:  # a type that nobody compares
            return "torch"
        views = any(r.alias_info for r in info.overload._schema.returns)
        generator = torch.Generator().manual_seed(1)
        try:
            self.guarded.value = 1
            with torch.no_grad():
                result = call_on(info, bound, made, None, generator)
                for tensor in flatten(info, result) if views else ():
                    tensor.clone()  # reads all that a view looks at
        except RAISED:
            return "torch"
        finally:
            self.guarded.value = 0
        return "ran"


def described(name, kind):
    """What is known of an op, though this torch may lack its kernel."""
    from jgpu.broker.executor.programs.checking import ops

    if kind == "cpu":
        return ops.resolve(name, kind)
    import torch

    base, _, overload = name.removeprefix("aten::").partition(".")
    return ops._describe(name, base, getattr(getattr(torch.ops.aten, base), overload))


def arguments(info, bound, tensors):
    """A call's arguments by name, with these for its tensors."""
    from jgpu.broker.executor.programs.checking.arguments import Const, Many, Ref

    left = iter(tensors)

    def named(node):
        if isinstance(node, Ref):
            return next(left)
        if isinstance(node, Many):
            return [named(leaf) for leaf in node.nodes]
        return node.value if isinstance(node, Const) else None

    found = {a.name: named(n) for a, n in zip(info.arguments, bound, strict=True)}
    assert next(left, None) is None
    return found


def mapped():
    """Bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE


def batch(fuzzer, first, last, progress):
    """In a child: carry out tries; each says its number before it begins."""
    most = mapped() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counts, outside = defaultdict(Counter), []
    for number in range(first, last):
        progress[:8] = number.to_bytes(8, "little")
        signal.alarm(PATIENCE)
        outcome = fuzzer.go(number)
        if outcome == "outside":
            outside.append(number)
        else:
            counts[fuzzer.name(number)][outcome] += 1
    signal.alarm(0)
    return counts, outside


def in_a_child(work, *arguments):
    """What `work` returns, carried out in a process of its own, and the process's status."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(writer, "w") as told:
            json.dump(work(*arguments), told)
            told.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    status = os.waitpid(child, 0)[1]
    return (json.loads(said) if status == 0 else None), status


def fuzz(fuzzer, first, tries):
    """All tries: outcomes by op, and the faults, each [number, what, op, arguments, geometries]."""
    progress = mmap.mmap(-1, PAGE)
    counts, faults = defaultdict(Counter), []

    def fault(number, what):
        op, geometries, _ = fuzzer.chosen(number)
        faults.append([number, what, op.name, repr((op.args, op.kwargs)), repr(geometries)])

    end, began = first + tries, time.monotonic()
    left = [(k, min(k + BATCH, end)) for k in range(first, end, BATCH)][::-1]
    while left:
        begin, last = left.pop()
        if begin == last:
            continue
        found, status = in_a_child(batch, fuzzer, begin, last, progress)
        if status == 0:
            for name, outcomes in found[0].items():
                counts[name].update(outcomes)
            for number in found[1]:
                fault(number, "outside")
        else:
            at = int.from_bytes(progress[:8], "little")
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            how = signal.Signals(number).name if number else f"status {status}"
            if how == "SIGALRM":
                counts[fuzzer.name(at)]["slow"] += 1
            else:
                fault(at, how)
            # what was done before it is done again, to be counted
            left += [(at + 1, last), (begin, at)]
        if last % (25 * BATCH) == 0:
            sys.stderr.write(f"{last - first} tries, {time.monotonic() - began:.0f} s\n")
    return counts, faults


def ways(names):
    """How each contracted op was tried, and why so; what was not tried at all."""
    from contract_reach import ON_CUDA
    from contract_seeds import CONTRACTED, FROM_DATABASES, base_of

    tried = {base_of(name) for name in names}
    missing = CONTRACTED - tried
    return {
        "guarded run": sorted(tried - ON_CUDA.keys()),
        "contract only": {name: ON_CUDA[name][0] for name in sorted(tried & ON_CUDA.keys())},
        "with --databases": sorted(missing & FROM_DATABASES),
        "not tried": sorted(missing - FROM_DATABASES),
    }


def table(found):
    """What came of the tries, op by op, for people."""
    heads = ("tries", *OUTCOMES, "faults")
    bad = Counter(fault[2] for fault in found["faults"])
    rows = {
        name: [sum(counts.values()) + bad[name], *(counts.get(o, 0) for o in OUTCOMES), bad[name]]
        for name, counts in sorted(found["by op"].items())
    }
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    width = max(map(len, rows))
    lines = [" " * width + "".join(f"{head:>10}" for head in heads)]
    lines += [f"{name:{width}}" + "".join(f"{n:>10,}" for n in row) for name, row in rows.items()]
    how = found["ways"]
    lines.append(f"run between guard pages: {len(how['guarded run'])} ops")
    lines += [f"contract only: {name}: {why}" for name, why in how["contract only"].items()]
    lines += [f"not tried: {name}" for name in (*how["with --databases"], *how["not tried"])]
    lines += [f"fault: {fault}" for fault in found["faults"]]
    return "\n".join(lines)


def written(found):
    """What was found as JSON, a line for each key and each op."""
    plain = {key: value for key, value in found.items() if key != "by op"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in plain.items()]
    rows = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in found["by op"].items()]
    lines.append(' "by op": {\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    """Fuzz and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--databases", action="store_true")
    parser.add_argument("--without-contracts", action="store_true", help="to see that it sees")
    parser.add_argument("--table", action="store_true", help="print a table, not JSON")
    parser.add_argument("--json", type=Path, help="write what was found here")
    options = parser.parse_args()
    if "guarded.so" not in os.environ.get("LD_PRELOAD", ""):
        prepared()
    shutil.rmtree(Path(os.environ["LD_PRELOAD"]).parent)  # it is loaded, and nobody else needs it
    warnings.simplefilter("ignore")
    began = time.monotonic()
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    from contract_seeds import seeds

    calls = seeds(options.databases)
    how = ways(calls)
    calls = {name: found for name, found in calls.items() if options.only in name}
    if options.without_contracts:
        from jgpu.broker.executor.programs import contracts
        from jgpu.broker.executor.programs.checking import check

        for name in contracts.CONTRACTS:
            contracts.CONTRACTS[name] = lambda call: None
        check.guards_of = lambda *_: ()
    by_op, faults = fuzz(Fuzzer(calls, options.seed), options.first, options.tries)
    found = {
        "torch": torch.__version__,
        "seed": options.seed,
        "tries": options.tries,
        "seconds": round(time.monotonic() - began),
        "ops": len(calls),
        "counts": sum(by_op.values(), Counter()),
        "faults": faults,
        "ways": how,
        "by op": dict(sorted(by_op.items())),
    }
    if options.json:
        options.json.write_text(written(found))
    sys.stdout.write((table(found) if options.table else json.dumps(found)) + "\n")


if __name__ == "__main__":
    main()
