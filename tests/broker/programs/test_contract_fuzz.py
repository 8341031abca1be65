"""Contracts under fire: mis-sized calls are refused, or the kernel touches nothing outside.

What is thrown, and how a touch outside is seen, is in `contract_fuzz.py`. Needs a C compiler for
the guarding allocator.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("contract_fuzz.py")

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="the allocator that guards tensors is compiled by gcc"
)


def started(*arguments):
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process):
    said, complained = process.communicate()
    assert process.returncode == 0, complained[-4000:]
    return json.loads(said)


def test_a_slice_of_the_tries():
    found = told(started("--tries", 8000, "--seed", 11))
    assert found["deaths"] == []
    assert found["ops"] >= 50
    assert found["counts"]["run"] > 1500
    assert found["counts"]["refused"] > 3000


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_many_tries_over_the_databases_calls():
    """A fifth of a million; the program itself throws as many as one likes."""
    halves = [started("--databases", "--tries", 100_000, "--seed", seed) for seed in (21, 22)]
    for found in map(told, halves):
        assert found["deaths"] == []
        assert found["ops"] >= 280
        assert sum(found["counts"].values()) == 100_000


def test_a_touch_outside_is_seen():
    """The same fuzzer over contracts that were taken away finds what they keep out."""
    found = told(started("--tries", 1500, "--only", "embedding", "--without-contracts"))
    assert found["deaths"]
