"""The kernel that replaces wrong indices in one launch, compiled for the host."""

import ctypes
import logging
import shutil

import processes
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.devices.gpu.mending import SOURCE, IndexMender, compiled_mender
from jgpu.broker.executor.programs.checking.guards import IndexGuard, clamped
from jgpu.broker.executor.programs.running.notes import ValueNotes

CPU = torch.device("cpu")
#: CUDA's words, for one thread a block
SHIM = """
struct Place { int x; };
static Place gridDim, blockDim, blockIdx, threadIdx;
#define __global__
#define __launch_bounds__(n)
#define __syncthreads_or(found) (found)
extern "C" void launch(int grid, int block) {
  gridDim.x = grid, blockIdx.x = block, blockDim.x = 1;
}
"""
KINDS = {torch.int64: "mend_int64", torch.int32: "mend_int32"}

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")


class HostKernel:
    """A kernel as torch hands them out, run block by block."""

    def __init__(self, library, name):
        self.library, self.function = library, getattr(library, name)
        self.launches = []

    def __call__(self, grid, block, args):
        assert max(block) <= 1024
        self.launches.append(grid[0])
        given = [
            ctypes.c_void_p(arg.data_ptr())
            if isinstance(arg, torch.Tensor)
            else ctypes.c_int(arg)
            if isinstance(arg, int)
            else ctypes.c_double(arg)
            for arg in args
        ]
        assert len(given) == 16
        for place in range(grid[0]):
            self.library.launch(grid[0], place)
            self.function(*given)


def host_compiler(folder, change=lambda source: source):
    """Compiles for the host; what it made is in `made`, by name."""
    made = {}

    def compile_kernel(source, name):
        if not made:
            (folder / "mend.cpp").write_text(SHIM + change(source))
            command = ["g++", "-O1", "-shared", "-fPIC", "-o", "mend.so", "mend.cpp"]
            processes.run(command, cwd=folder, check=True, timeout=60)
        library = made.setdefault("library", ctypes.CDLL(str(folder / "mend.so")))
        return made.setdefault(name, HostKernel(library, name))

    return compile_kernel, made


@pytest.fixture(scope="module")
def mender(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("needs a compiler")
    compile_kernel, _ = host_compiler(tmp_path_factory.mktemp("mending"))
    found = compiled_mender(CPU, compile_kernel)
    assert found is not None, "it gives what torch's ops do"
    return found


class Counted(TorchDispatchMode):
    """Counts what torch would launch; numbers that ops are given are made on the host."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and any(isinstance(arg, torch.Tensor) for arg in args):
            self.ops.append(func)
        return func(*args, **(kwargs or {}))


def looked_at(notes, index, guard):
    with Counted() as counted:
        made = clamped("aten::take", index, guard, notes, 3)
    return made, len(counted.ops)


@given(
    dtype=st.sampled_from([torch.int64, torch.int32]),
    shape=st.lists(st.integers(1, 4), max_size=5),
    order=st.randoms(use_true_random=False),
    low=st.integers(-5, 2),
    width=st.integers(1, 9),
    ignored=st.none() | st.integers(-120, 5),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_it_gives_what_torchs_ops_do_for_whatever_lies_however(
    mender, dtype, shape, order, low, width, ignored, data
):
    count = int(torch.Size(shape).numel())
    values = data.draw(
        st.lists(st.integers(-8, 12) | st.just(-100), min_size=count, max_size=count)
    )
    index = torch.tensor(values, dtype=dtype).view(shape)
    axes = list(range(len(shape)))
    order.shuffle(axes)
    index = index.permute(axes)
    if shape and order.random() < 0.5:
        index = index[..., ::2]
    guard = IndexGuard("index", low, low + width, ignored=ignored)
    note = torch.tensor(data.draw(st.booleans()))
    made = mender(index, guard, note)
    wrong = guard.wrong(index)
    if len(shape) > 4:
        assert made is None
    else:
        assert torch.equal(made, guard.mended(index, wrong))
        assert bool(note) == bool(wrong.any())
        assert made.is_contiguous()


def test_what_it_cannot_do_is_left_to_torch(mender):
    note = torch.zeros((), dtype=torch.bool)
    index = torch.zeros(4, dtype=torch.int64)
    assert mender(index.to(torch.int16), IndexGuard("index", 0, 3), note) is None
    assert mender(index, IndexGuard("index", 0, 3, ignored=(1 << 53) + 1), note) is None
    assert mender(index.int(), IndexGuard("index", -(1 << 40), 3), note) is None
    assert mender(index[:0], IndexGuard("index", 0, 3), note) is None


@pytest.mark.parametrize(("count", "blocks"), [(1 << 16, 1), ((1 << 16) + 1, 65), (1 << 20, 512)])
def test_few_indices_are_one_launch_and_more_clear_the_note_before(tmp_path, count, blocks):
    if not shutil.which("g++"):
        pytest.skip("needs a compiler")
    compile_kernel, made = host_compiler(tmp_path)
    mender = IndexMender({torch.int64: compile_kernel(SOURCE, "mend_int64")})
    notes = ValueNotes(CPU, mender)
    notes.place(0, IndexGuard("index", 0, 1))  # the block of notes is there
    _, ops = looked_at(notes, torch.zeros(count, dtype=torch.int64), IndexGuard("index", 0, 3))
    assert made["mend_int64"].launches == [blocks]
    assert ops == (0 if blocks == 1 else 1)


def test_without_a_kernel_a_look_is_five_launches_or_seven():
    notes = ValueNotes(CPU)
    notes.place(0, IndexGuard("index", 0, 1))
    index = torch.tensor([0, 3, 1])
    assert looked_at(notes, index, IndexGuard("index", 0, 3))[1] == 5
    made, ops = looked_at(notes, index, IndexGuard("index", 0, 3, ignored=3))
    assert (made.tolist(), ops) == ([0, 3, 1], 7)
    notes.proven = frozenset({(3, "index", -1)})
    made, ops = looked_at(notes, index, IndexGuard("index", 0, 3))
    assert made is index
    assert ops == 0
    assert len(notes.taken) == 3


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("value >= past", "value > past"),
        ("value < least", "value <= least"),
        ("(ignores && ", "(!ignores && "),
        ("(left % size1) * step1", "(left % size2) * step1"),
        ("clears || found", "found"),
        ("*note = found != 0", "*note = 1"),
        ("k += threads", "k += threads + 1"),
        ("wrong |= outside", "wrong = outside"),
    ],
)
def test_a_kernel_that_gives_anything_else_is_not_used(tmp_path, right, wrong, caplog):
    assert right in SOURCE
    compile_kernel, _ = host_compiler(tmp_path, lambda source: source.replace(right, wrong))
    assert compiled_mender(CPU, compile_kernel) is None
    assert "is wrong for" in caplog.text


def test_where_nothing_compiles_it_torchs_ops_do_it(caplog):
    def nothing(source, name):
        raise OSError("Could not find any NVRTC library")

    caplog.set_level(logging.INFO)
    assert compiled_mender(CPU, nothing) is None
    assert "torch's ops do: Could not find any NVRTC library" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs CUDA's compiler")
def test_cudas_compiler_takes_it(tmp_path):
    (tmp_path / "mend.cu").write_text(SOURCE)
    command = ["nvcc", "-cubin", "-arch=sm_75", "-Werror", "all-warnings", "-o", "mend", "mend.cu"]
    processes.run(command, cwd=tmp_path, check=True, timeout=120)
    assert all(name.encode() in (tmp_path / "mend").read_bytes() for name in KINDS.values())
