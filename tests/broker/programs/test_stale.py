"""No byte of a neighbour's is shown: programs run in memory that is full of a pattern, twice.

On the CPU, and on the CUDA that is computed on the host; `null` has no memory. What runs, and how a
pattern comes into all memory, is in `stale.py`. Needs glibc.
"""

import ctypes
import pickle
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
from recorder import storage_bytes
from results import write_result
from sketch import Sketch, all_live, buffers, context, contiguous
from stale import PATTERNS, differences, environment

from jgpu.broker.executor.programs.running.clean import filled, grow, is_filled
from jgpu.errors import ProgramError
from jgpu.wire.program import DeviceArgument, Dtype, Flags, Geometry

PROGRAM = Path(__file__).with_name("stale.py")
RUNS = 3

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the pattern is glibc's"
)


DEVICES = ("cpu", "cuda-on-host")
#: calls of CUDA's own kernels, as they are named
CUDAS = {"flash", "flash-dropout", "cudnn", "cudnn-dropout", "efficient", "efficient-dropout",
         "efficient-bias", "tanh", "lstm", "gru", "batch-norm", "batch-norm-evaluated",
         "dropout-state"}  # fmt: skip


def compared(directory, device, *options, timeout_s=processes.DEADLINE_S):
    """All storages of the two runs, by what they are, and what of them differs."""
    found = []
    for pattern in PATTERNS:
        file = directory / str(pattern)
        given = file, pattern, "--device", device, *options
        command = [sys.executable, PROGRAM, *map(str, given)]
        processes.run(
            command,
            env=environment(pattern) | {"PYTHONPATH": str(PROGRAM.parents[2])},
            check=True,
            timeout=timeout_s,
            stderr=subprocess.DEVNULL,
        )
        found.append(pickle.loads(file.read_bytes()))
    return found[0], differences(*found)


@needs_glibc
@pytest.mark.parametrize("device", DEVICES)
def test_what_factories_make_and_what_grows_shows_nothing_stale(tmp_path, device):
    seen, stale = compared(tmp_path, device, "--every", 1 << 20)
    assert stale == []
    names = {name for name, _, _ in dict(seen)}
    assert {"empty strided (1000,)", "new_empty strided (40, 2)", "permuted"} <= names
    assert {"resize_ (40,)", "zeros, resize_ (3, 40)", "resize_as_", "add.out"} <= names
    assert {run for _, run, _ in dict(seen)} == set(range(RUNS))


@needs_glibc
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
def test_training_steps_and_internal_ops_show_nothing_stale(tmp_path, device):
    seen, stale = compared(tmp_path, device, timeout_s=280)
    assert stale == []
    assert len(seen) > 6000
    found = {name.partition(" ")[0] for (name, _, _), _ in seen}
    assert found & CUDAS == (set() if device == "cpu" else CUDAS)


def test_a_debug_mask_is_refused_for_its_kernel_leaves_parts_of_it_unset():
    heads = [Geometry("float16", (2, 3, 5, 16), (240, 80, 16, 1))] * 3
    sketch = Sketch(inputs=3)
    seen = [sketch.seen(number, each) for number, each in enumerate(heads)]
    sketch.op("_scaled_dot_product_flash_attention.default", *seen, 0.3, False, True,
              outs=[None] * 9)  # fmt: skip
    with pytest.raises(ProgramError, match="its debug mask is not served"):
        sketch.define("cuda-on-host")


@needs_glibc
@pytest.mark.long
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("device", DEVICES)
def test_no_operator_of_the_databases_shows_anything_stale(tmp_path, device):
    seen, stale = compared(tmp_path, device, "--databases", timeout_s=7000)
    ops = {op for (_, _, op), _ in seen if op.startswith("aten::")}
    figures = {
        "storages compared": len(seen),
        "ops that made them": len(ops),
        "runs of each program": RUNS,
        "storages with stale bytes": len(stale),
        "stale": [list(each) for each in stale[:100]],
    }
    write_result("stale-memory", figures, device=device)
    assert stale == []


def test_patterns_that_differ_are_seen():
    key = ("a program", 0, "aten::empty.memory_format")
    assert differences([(key, b"\x5a\x00")], [(key, b"\x5a\x00")]) == []
    assert differences([(key, b"\x5a\x00")], [(key, b"\xc3\x00")]) == [(*key, 1, 2)]


def test_a_storage_grows_by_zeros_and_never_shrinks():
    base = torch.full((4,), 7, dtype=torch.uint8)
    grow(base, 9)
    assert storage_bytes(base).tolist() == [7] * 4 + [0] * 5
    grow(base, 2)
    assert len(storage_bytes(base)) == 9


def test_a_tensor_with_holes_is_laid_out_over_zeros():
    source = torch.full((20,), 3, dtype=torch.int16)
    seen = source.as_strided((3, 2), (5, 2), 1)
    assert not is_filled(seen)
    assert is_filled(source)
    made = filled(seen)
    assert made.stride() == seen.stride()
    assert torch.equal(made, seen)
    assert int((storage_bytes(made).view(torch.int16) == 3).sum()) == seen.numel()


def test_in_deterministic_mode_elements_are_as_torch_fills_them_and_holes_zero():
    sketch = Sketch(flags=Flags(deterministic=True))
    wide = Geometry("float32", (2,), (3,))
    kwargs = {"dtype": Dtype("float32"), "device": DeviceArgument()}
    sketch.op("empty_strided.default", (2,), (3,), outs=[wide], **kwargs)
    definition = sketch.define()
    for _ in range(RUNS):
        (made,) = definition.run([], (), all_live(definition), b"", context()).outputs
        assert made.isnan().all()
        assert storage_bytes(made).view(torch.float32)[1:3].tolist() == [0, 0]


def test_what_a_kernel_takes_beyond_its_result_is_given_back():
    """`unique` makes room for all elements, and fills what it finds."""
    sketch = Sketch(inputs=1)
    seen = sketch.seen(0, contiguous(1000, dtype="int64"))
    sketch.op(
        "_unique2.default",
        seen,
        True,
        False,
        False,
        outs=[contiguous(1, dtype="int64")] * 1 + [None] * 2,
    )
    definition = sketch.define()
    for _ in range(RUNS):
        ones = torch.ones(1000, dtype=torch.int64)
        outcome = definition.run(buffers(ones), (), all_live(definition), b"", context())
        assert outcome.outputs[0].tolist() == [1]
        assert outcome.outputs[0].untyped_storage().nbytes() == 8
