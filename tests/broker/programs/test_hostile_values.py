"""Hostile values at ops: nothing dies, nothing goes on for ever.

What is thrown, and how a death or a hang is seen, is in `hostile_values.py`.
"""

import json
import sys
from pathlib import Path

import processes
import pytest
from results import write_result

PROGRAM = Path(__file__).with_name("hostile_values.py")


def searched(*arguments, deadline_s=500):
    """What the program says of a part of the ops."""
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    ran = processes.run(command, capture_output=True, text=True, timeout=deadline_s)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])  # oneMKL complains on the same stream before


def holds(found):
    """No deaths, no hangs, and every case was carried out."""
    assert found["faults"] == []
    assert sum(found["outcomes"].values()) == found["cases"] > 0
    assert found["outcomes"]["ran"] > found["cases"] / 5


def test_a_few_ops():
    holds(searched("--cases", 1, "--part", "3/100"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tenth_of_the_ops():
    holds(searched("--cases", 1, "--part", "7/10"))


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_op_and_type():
    """The samples of PyTorch's database too; figures go into `bench/results`."""
    found = searched("--databases", "--cases", 4, deadline_s=7000)
    del found["torch"]
    write_result("hostile-values", found)
    holds(found)
    assert found["ops"] > 2000
