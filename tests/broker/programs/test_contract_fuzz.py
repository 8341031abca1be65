"""Contracts under fire: mis-sized calls are refused, or the kernel touches nothing outside.

What is thrown, and how a touch outside is seen, is in `contract_fuzz.py`. Needs a C compiler for
the guarding allocator.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
from contract_fuzz import arguments, described, table, written
from contract_reach import ON_CUDA, furthest, within
from contract_seeds import CONTRACTED, FROM_DATABASES, base_of, on_cuda

from jgpu.broker.executor.programs import contracts
from jgpu.broker.executor.programs.checking.arguments import bind

PROGRAM = Path(__file__).with_name("contract_fuzz.py")
CPU = torch.device("cpu")

needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="the allocator that guards tensors is compiled by gcc"
)


def started(*arguments):
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process, timeout_s=processes.DEADLINE_S):
    said, complained = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, complained[-4000:]
    return json.loads(said)


@needs_gcc
def test_a_slice_of_the_tries():
    found = told(started("--tries", 8000, "--seed", 11))
    assert found["faults"] == []
    assert sum(found["counts"].values()) == 8000
    assert found["counts"]["ran"] > 2500
    assert found["counts"]["contract"] > 1000
    assert found["counts"]["passed"] > 50
    ways = found["ways"]
    assert ways["not tried"] == []
    here = ways["guarded run"], ways["contract only"], ways["with --databases"]
    assert set().union(*here) >= CONTRACTED
    assert set(ways["contract only"]) == set(ON_CUDA)
    assert all(ways["contract only"].values())


@needs_gcc
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "tries",
    [pytest.param(20_000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.long)],
)
def test_many_tries_over_the_databases_calls(tries):
    """Twice as many; the program itself throws as many as one likes."""
    halves = [started("--databases", "--tries", tries, "--seed", seed) for seed in (21, 22)]
    for half in halves:
        found = told(half, 2300)
        assert found["faults"] == []
        assert sum(found["counts"].values()) == tries
        assert found["ways"]["with --databases"] == found["ways"]["not tried"] == []
        assert set(found["ways"]["guarded run"]) >= CONTRACTED - set(ON_CUDA)


@needs_gcc
@pytest.mark.slow
def test_a_touch_outside_is_seen():
    """The same fuzzer over contracts that were taken away finds what they keep out."""
    found = told(started("--tries", 1500, "--only", "embedding", "--without-contracts"))
    assert {fault[1] for fault in found["faults"]} >= {"SIGSEGV"}


@needs_gcc
def test_a_contract_that_lets_too_much_through_is_seen_without_its_kernel():
    found = told(started("--tries", 300, "--only", "_thnn", "--without-contracts"))
    assert {fault[1] for fault in found["faults"]} == {"outside"}


def test_every_contracted_op_has_its_way():
    assert ON_CUDA.keys() <= CONTRACTED
    assert FROM_DATABASES <= CONTRACTED
    assert not FROM_DATABASES & ON_CUDA.keys()
    assert all(reason for reason, _ in ON_CUDA.values())


def test_contracts_take_what_torch_emits_for_kernels_of_cuda():
    emitted = list(on_cuda())
    assert {base_of(op.name) for op, _ in emitted} == set(ON_CUDA)
    for op, geometries in emitted:
        info = described(op.name, "cuda")
        bound = bind(op, info, CPU)
        contracts.check(info, bound, list(geometries))
        assert within(base_of(op.name), arguments(info, bound, geometries)), op


@pytest.mark.parametrize(
    ("count", "hidden", "parts", "reached"),
    [(0, 0, 4, 0), (1, 3, 4, 10), (3, 3, 4, 12), (6, 3, 4, 24), (4, 3, 5, 28), (2, 2, 3, 6)],
)
def test_how_far_a_cell_goes(count, hidden, parts, reached):
    """Compared with the index arithmetic element by element."""
    touched = [
        (k // hidden) * parts * hidden + k % hidden + part * hidden
        for k in range(count)
        for part in range(parts)
    ]
    assert furthest(count, hidden, parts) == reached == max(touched, default=-1) + 1


def test_the_table_names_every_op_and_what_was_left_out():
    found = {
        "by op": {"aten::a.default": {"ran": 2, "contract": 1}, "aten::b.default": {"torch": 3}},
        "faults": [[7, "SIGSEGV", "aten::b.default", "()", "[]"]],
        "ways": {
            "guarded run": ["a"],
            "contract only": {"b": "why"},
            "with --databases": ["c"],
            "not tried": ["d"],
        },
    }
    lines = table(found).splitlines()
    assert lines[0].split() == [
        *("tries", "malformed", "contract", "torch", "large", "slow", "ran", "passed", "faults")
    ]
    rows = [line.split() for line in lines[1:4]]
    assert [name for name, *_ in rows] == ["aten::a.default", "aten::b.default", "all"]
    assert [[int(number) for number in row] for _, *row in rows] == [
        [3, 0, 1, 0, 0, 0, 2, 0, 0],
        [4, 0, 0, 3, 0, 0, 0, 0, 1],
        [7, 0, 1, 3, 0, 0, 2, 0, 1],
    ]
    assert lines[4:8] == [
        "run between guard pages: 1 ops",
        "contract only: b: why",
        "not tried: c",
        "not tried: d",
    ]
    assert lines[8].startswith("fault: [7, 'SIGSEGV'")
    assert json.loads(written(found)) == found
