"""Throws mis-sized calls of internal ops at their contracts; what passes runs between guard pages.

    python contract_fuzz.py --tries 100000 [--seed 1] [--only NAME] [--databases]

The calls begin as native ones, recorded from training steps and, with `--databases`, from PyTorch's
databases of operators and modules. Each try changes one or two things: a shape, strides, a type, a
number. The executor's own checks then refuse it, or the kernel runs: every tensor that goes in ends
exactly where a forbidden page begins (or begins where one ends), and what the kernel makes for
itself lies between such pages as well (`guarded.c`, loaded first). A touch outside ends the
process, which is one of many; the next goes on behind that try. Prints one line of JSON.
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
import warnings
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).parent
MEMORY = 3 << 30
#: seconds that one kernel may take
PATIENCE = 5
BATCH = 2000
PAGE = mmap.PAGESIZE
#: pages of one tensor's place
PAGES = 64
PLACES = 24
PER_OP = 10


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


def seeds(databases):
    """Native calls: (op, geometries of its slots), by name."""
    import torch
    from recorder import Recorder
    from test_programs_contracts import steps

    from jgpu.wire.program import slots_of
    from jgpu.wire.vocabulary import CONTRACTED, is_internal

    found = defaultdict(dict)

    def note(recorder):
        recorder.recording()
        program = recorder.program
        for op in program.ops:
            base = op.name.removeprefix("aten::").partition(".")[0].removesuffix("_")
            if base in CONTRACTED and any(slots_of(op)):
                seen = tuple(
                    program.geometries[program.views[s.view].geometry] for s in slots_of(op)
                )
                key = seen, repr(op.args), repr(sorted(op.kwargs.items()))
                if len(found[op.name]) < PER_OP:
                    found[op.name].setdefault(key, (op, seen))

    def record(call):
        with Recorder() as recorder:
            call()
        note(recorder)

    torch.manual_seed(1)
    for step in steps():
        step()
        record(step)
    if databases:
        for call in (*by_hand(), *from_databases()):
            try:
                record(call)
            except Exception:  # what natively fails, or cannot be recorded: no seed
                continue
    assert is_internal("_softmax")
    return {name: list(calls.values()) for name, calls in sorted(found.items())}


def from_databases():
    """Forward and backward of samples of every operator."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_leaves

    def run(op, sample):
        result = op(sample.input, *sample.args, **sample.kwargs)
        outs = [
            leaf for leaf in tree_leaves(result)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]  # fmt: skip
        if outs:
            torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])

    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        try:
            samples = list(
                op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
            )
        except Exception:  # the database's own affair
            continue
        for sample in samples[:12]:
            yield lambda op=op, sample=sample: run(op, sample)


def by_hand():
    """Calls that neither training steps nor the databases make on the CPU."""
    import torch

    a = torch.ops.aten
    x, y = torch.linspace(0.1, 0.9, 12).view(3, 4), torch.ones(3, 4)
    image, volume = torch.ones(2, 3, 6, 8), torch.ones(2, 3, 4, 5, 6)
    indices, one = torch.tensor([0, 2, 1, 1]), torch.ones(1)
    channels = [torch.ones(3) for _ in range(4)]
    for name in sorted(n.partition(".")[0] for n in torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::_foreach_"):
            op = getattr(a, name[6:])
            for args in ((), (2.0,), ([1.0, 2.0],), ([y.clone(), one.clone()],)):
                yield lambda op=op, args=args: op([x.clone(), one.clone()], *args)
    yield lambda: a._foreach_norm([x, one], 2)
    yield lambda: a._foreach_clamp_max([x, one], 0.5)
    yield lambda: a._amp_foreach_non_finite_check_and_unscale_([x.clone(), y], torch.zeros(1), one)
    yield lambda: a._amp_update_scale_(
        one.clone(), torch.zeros(1, dtype=torch.int32), torch.zeros(1), 2.0, 0.5, 10
    )
    yield lambda: a._addmm_activation(torch.ones(5), x, torch.ones(4, 5))
    yield lambda: a._aminmax(x)
    yield lambda: a._cast_Double(x)
    yield lambda: a._cast_Int(x)
    yield lambda: a._conj(x.to(torch.complex64))
    yield lambda: a._conj_copy(x.to(torch.complex64))
    yield lambda: a._neg_view_copy(x)
    yield lambda: a._convolution(
        image, torch.ones(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False,
        False, True, True,
    )  # fmt: skip
    yield lambda: a._dim_arange(x, 1)
    yield lambda: a._standard_gamma(x)
    yield lambda: a._standard_gamma_grad(x, y)
    yield lambda: a._sample_dirichlet(x)
    yield lambda: a._dirichlet_grad(x, y, y * 3)
    yield lambda: a._embedding_bag_forward_only(x, indices[:3], torch.tensor([0, 2]))
    for mode in (0, 1, 2):
        largest = torch.zeros((2, 4) if mode == 2 else 2, dtype=torch.int64)
        yield lambda mode=mode, largest=largest: a._embedding_bag_dense_backward(
            torch.ones(2, 4), indices, torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2]),
            largest, 3, False, mode, None,
        )  # fmt: skip
    yield lambda: a._euclidean_dist(x, y)
    yield lambda: a._fused_rms_norm(x, [4], torch.ones(4), 1e-5)
    yield lambda: a._index_put_impl_(x.clone(), [indices[:2]], torch.ones(2, 4))
    yield lambda: a._int_mm(torch.ones(32, 8).to(torch.int8), torch.ones(8, 16).to(torch.int8))
    yield lambda: a._is_all_true(x > 0)
    yield lambda: a._is_any_true(x > 0)
    yield lambda: a._linalg_eigvals(torch.eye(4))
    yield lambda: a._logcumsumexp(x, 1)
    yield lambda: a._lu_with_info(torch.eye(4))
    yield lambda: a._native_batch_norm_legit_no_training(image, *channels, 0.1, 1e-5)
    yield lambda: a._batch_norm_no_update(image, *channels, 0.1, 1e-5)
    yield lambda: a._pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([3, 2]), False)
    yield lambda: a._pack_padded_sequence_backward(
        torch.ones(5, 4), [3, 2, 4], torch.tensor([2, 2, 1]), False
    )
    yield lambda: a._pad_circular(image, [1, 1, 1, 1])
    yield lambda: a._reshape_copy(x, [4, 3])
    yield lambda: a._stack([x, y], 0)
    yield lambda: a._unsafe_index(x, [indices[:3]])
    yield lambda: a._unsafe_index_put(x, [indices[:2]], torch.ones(2, 4))
    yield lambda: a._weight_norm(x, torch.ones(3, 1), 0)
    for dim, shape in ((0, (3, 1)), (1, (1, 4))):
        yield lambda dim=dim, shape=shape: a._weight_norm_interface(x, torch.ones(shape), dim)
        yield lambda dim=dim, shape=shape: a._weight_norm_interface_backward(
            y, x, torch.ones(shape), torch.ones(shape), dim
        )
    for kind in ("bilinear", "bicubic", "lanczos"):
        forward = getattr(a, f"_upsample_{kind}2d_aa", None)
        backward = getattr(a, f"_upsample_{kind}2d_aa_backward", None)
        for out in ((3, 4), (12, 9)):
            if forward is not None:
                yield lambda op=forward, out=out: op(image, out, False)
            if backward is not None:
                grad = torch.ones(2, 3, *out)
                yield lambda op=backward, out=out, grad=grad: op(grad, out, [2, 3, 6, 8], False)
    yield lambda: a._upsample_nearest_exact3d(volume, [8, 10, 12])
    yield lambda: a._upsample_nearest_exact3d_backward(
        torch.ones(2, 3, 8, 10, 12), [8, 10, 12], [2, 3, 4, 5, 6]
    )
    yield lambda: a.adaptive_avg_pool3d_backward(
        torch.ones(2, 3, 2, 2, 2), volume, grad_input=torch.empty_like(volume)
    )
    yield lambda: a.cumprod_backward(y, x, 1, x.cumprod(1))
    yield lambda: a.cummaxmin_backward(y, x, x.cummax(1).indices, 1)
    yield lambda: a.gather_backward(y, x, 1, torch.zeros(3, 4, dtype=torch.int64), False)
    yield lambda: a.index_select_backward(torch.ones(2, 4), [3, 4], 0, indices[:2])
    yield lambda: a.infinitely_differentiable_gelu_backward(y, x)
    yield lambda: a.masked_select_backward(torch.ones(12), x, x > 0)
    yield lambda: a.matrix_exp_backward(torch.eye(3), torch.ones(3, 3))
    yield lambda: a.native_channel_shuffle(torch.ones(2, 6, 4, 4), 3)
    yield lambda: a.native_dropout(x, 0.5, True)
    yield lambda: a.trace_backward(torch.tensor(1.0), [3, 4])
    yield lambda: a.value_selecting_reduction_backward(
        torch.ones(3), 1, torch.zeros(3, dtype=torch.int64), [3, 4], False
    )
    yield lambda: a._scaled_dot_product_attention_math(*(torch.ones(2, 2, 3, 4) for _ in "qkv"))


class Fuzzer:
    """Makes, checks and runs the n-th try; everything follows from the seed and n."""

    def __init__(self, calls, seed):
        self.calls = calls
        self.names = list(calls)
        self.seed = seed
        self.arena = Arena()
        self.guarded = ctypes.c_int.in_dll(ctypes.CDLL(None), "guarded_on")

    def chosen(self, number):
        """A call and how to change it."""
        chance = random.Random(self.seed * 1_000_003 + number)
        name = self.names[number % len(self.names)]
        op, seen = chance.choice(self.calls[name])
        geometries = list(seen)
        for _ in range(chance.choice((1, 1, 1, 2, 2, 3))):
            if chance.random() < 0.72 or not _numbers(op):
                k = chance.randrange(len(geometries))
                geometries[k] = changed(geometries[k], chance)
            else:
                op = with_other_number(op, chance)
        return op, geometries, chance

    def go(self, number):
        """Carry out a try; "refused" or "run"."""
        import torch

        from jgpu.broker.executor.programs.arguments import Many, Ref, bind, refs_of, values_of
        from jgpu.broker.executor.programs.checking import check_guards, check_op
        from jgpu.broker.executor.programs.geometry import dtype_of, intern, required_bytes
        from jgpu.broker.executor.programs.guards import check_range
        from jgpu.broker.executor.programs.inference import call_on
        from jgpu.broker.executor.programs.ops import resolve
        from jgpu.errors import ProgramError

        op, geometries, chance = self.chosen(number)
        cpu = torch.device("cpu")
        try:
            info = resolve(op.name, "cpu")
            bound = bind(op, info, cpu)
            refs = list(refs_of(bound))
            sizes = [required_bytes(geometry) for geometry in geometries]
            tensors = list(zip(geometries, sizes, strict=True))
            for geometry in geometries:
                intern(geometry)
            check_op(op, info, bound, tensors)
            guards = check_guards(info, bound, geometries, "cpu")
        except ProgramError:
            return "refused"
        assert len(refs) == len(geometries)
        made = []
        for place, (geometry, nbytes) in enumerate(tensors):
            base = self.arena.bytes(place, nbytes, at_end=chance.random() < 0.75)
            if base is None:
                return "large"
            fill(base, dtype_of(geometry.dtype), chance)
            made.append(intern(geometry).over(base))
        left = iter(made)

        def named(node):
            if isinstance(node, Ref):
                return next(left)
            return [named(leaf) for leaf in node.nodes] if isinstance(node, Many) else None

        arguments = {a.name: named(n) for a, n in zip(info.arguments, bound, strict=True)}
        generator = torch.Generator().manual_seed(1)
        assert not list(values_of(bound))
        try:
            for guard in guards:
                index = arguments[guard.argument]
                check_range(op.name, index[guard.place] if guard.place >= 0 else index, guard)
            self.guarded.value = 1
            with torch.no_grad():
                call_on(info, bound, made, None, generator)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, MemoryError):
            return "raised"
        finally:
            self.guarded.value = 0
        return "run"


def fill(base, dtype, chance):
    """Small whole numbers, so that indices are often right."""
    import torch

    if base.numel() == 0 or base.numel() % dtype.itemsize:
        base.zero_()
        return
    flat = torch.empty(base.numel() // dtype.itemsize, dtype=dtype)
    kind = chance.random()
    if dtype.is_floating_point or dtype.is_complex:
        flat.fill_(chance.choice((0.0, 0.5, 1.0, -2.0)))
    elif kind < 0.5:
        flat.zero_()
    else:
        values = [chance.choice((0, 1, 2, 1, 0, -1, 7)) for _ in range(min(flat.numel(), 16))]
        for k, value in enumerate(values):
            flat[k :: len(values)] = abs(value) if dtype in (torch.uint8, torch.bool) else value
    base.copy_(flat.view(torch.uint8))


def changed(geometry, chance):
    """Another shape, strides or type."""
    from jgpu.broker.executor.programs.geometry import geometry_of

    shape = list(geometry.shape)
    what = chance.randrange(10)
    if what < 5 and shape:
        k = chance.randrange(len(shape))
        shape[k] = max(0, chance.choice((
            shape[k] - 1, shape[k] + 1, shape[k] * 2, shape[k] // 2, 0, 1, shape[k] + 7,
        )))  # fmt: skip
    elif what == 5 and shape:
        del shape[chance.randrange(len(shape))]
    elif what == 6:
        shape.insert(chance.randrange(len(shape) + 1), chance.choice((1, 2, 3)))
    elif what == 7:
        dtype = chance.choice((
            "float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool",
            "complex64",
        ))  # fmt: skip
        return replaced(geometry, dtype=dtype)
    elif what == 8 and len(shape) > 1:
        order = chance.sample(range(len(shape)), len(shape))
        return replaced(
            geometry,
            shape=tuple(shape[k] for k in order),
            stride=tuple(geometry.stride[k] for k in order),
        )
    elif shape:
        factor = chance.choice((0, 2, 3))
        k = chance.randrange(len(shape))
        strides = list(geometry.stride)
        strides[k] *= factor
        return replaced(geometry, stride=tuple(strides))
    import torch

    plain = geometry_of(torch.empty(shape, device="meta"))
    return replaced(plain, dtype=geometry.dtype)


def replaced(geometry, **fields):
    """A geometry with other fields."""
    from msgspec import structs

    return structs.replace(geometry, **fields)


def _numbers(op):
    both = (("args", op.args), ("kwargs", op.kwargs))
    return [(where, k) for where, args in both for k in _keys(args) if _is_number(args[k])]


def _keys(args):
    return args if isinstance(args, dict) else range(len(args))


def _is_number(value):
    if isinstance(value, tuple):
        return bool(value) and all(type(item) in (int, bool) for item in value)
    return type(value) in (int, bool, float)


def with_other_number(op, chance):
    """One number, or one of a list, is another."""
    where, k = chance.choice(_numbers(op))
    args = getattr(op, where)
    value = args[k]
    if isinstance(value, tuple):
        items = list(value)
        if chance.random() < 0.2:
            items = items[:-1] if chance.random() < 0.5 else [*items, items[-1]]
        else:
            at = chance.randrange(len(items))
            items[at] = other(items[at], chance)
        new = tuple(items)
    else:
        new = other(value, chance)
    from msgspec import structs

    if where == "args":
        return structs.replace(op, args=(*args[:k], new, *args[k + 1 :]))
    return structs.replace(op, kwargs={**args, k: new})


def other(value, chance):
    """A number near this one, or an awkward one."""
    if type(value) is bool:
        return not value
    if type(value) is float:
        return chance.choice((0.0, -1.0, value * 2, 1e9, float("inf"), 0.5))
    return chance.choice((value - 1, value + 1, 0, 1, -1, 2, value * 2, 40))


def batch(fuzzer, first, last, progress):
    """In a child: carry out tries; each says its number before it begins."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counts = Counter()
    for number in range(first, last):
        progress[:8] = number.to_bytes(8, "little")
        signal.alarm(PATIENCE)
        counts[fuzzer.go(number)] += 1
    signal.alarm(0)
    return counts


def main():
    """Fuzz and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--databases", action="store_true")
    parser.add_argument("--without-contracts", action="store_true", help="to see that it sees")
    options = parser.parse_args()
    if "guarded.so" not in os.environ.get("LD_PRELOAD", ""):
        prepared()
    shutil.rmtree(Path(os.environ["LD_PRELOAD"]).parent)  # it is loaded, and nobody else needs it
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    calls = {n: c for n, c in seeds(options.databases).items() if options.only in n}
    if options.without_contracts:
        from jgpu.broker.executor.programs import checking, contracts

        for name in contracts.CONTRACTS:
            contracts.CONTRACTS[name] = lambda call: None
        checking.guards_of = lambda *_: ()
    fuzzer = Fuzzer(calls, options.seed)
    progress = mmap.mmap(-1, PAGE)
    counts, deaths = Counter(), []
    number, end = options.first, options.first + options.tries
    while number < end:
        last = min(number + BATCH, end)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            said = json.dumps(batch(fuzzer, number, last, progress)).encode()
            os.write(writer, said)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as told:
            said = told.read()
        status = os.waitpid(child, 0)[1]
        if status == 0:
            counts.update(json.loads(said))
            number = last
            continue
        at = int.from_bytes(progress[:8], "little")
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        op, geometries, _ = fuzzer.chosen(at)
        how = signal.Signals(signal_number).name if signal_number else f"status {status}"
        if how == "SIGALRM":
            counts["slow"] += 1
        else:
            deaths.append([at, how, op.name, repr(op.args), repr(geometries)])
        counts["before a death"] += at - number
        number = at + 1
    sys.stdout.write(json.dumps({"ops": len(calls), "counts": counts, "deaths": deaths}) + "\n")


if __name__ == "__main__":
    main()
