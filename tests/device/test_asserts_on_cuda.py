"""Wrong values at every op that asserts on CUDA: an error on its line, and nobody's device ends."""

import json
import subprocess
import sys

import processes
import pytest
from asserting import INDICES, PRELUDE, VALUES
from seat import broker_on

from jgpu.broker.executor.programs.checking import trusted

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

#: checks its tensors at each line of its input
NEIGHBOUR = """
import sys, torch
kept = [torch.arange(5000, device="cuda"), torch.ones(300, 70, device="cuda").cumsum(0)]
right = [each.cpu() for each in kept]
for line in sys.stdin:
    print(all(torch.equal(each.cpu(), one) for each, one in zip(kept, right)), flush=True)
"""

KEEPING = """
import json, traceback
kept, found = r(300).sin(), []
right = kept.sum().item()
def described(error):
    frames = traceback.extract_tb(error.__traceback__)
    return [each.__name__ for each in type(error).__mro__], str(error), frames[0].lineno
"""


def program(lines):
    """Tries each line, and writes what it raised; a sound sum is right after each."""
    text = [*PRELUDE.strip().splitlines(), *KEEPING.strip().splitlines()]
    places = []
    for line in lines:
        text += ["try:", f"    made = {line}"]
        places.append(len(text))
        text += [
            "    found.append([[], str(made.double().sum().item()), 0])",
            "except Exception as error:",
            "    found.append(described(error))",
            "assert kept.sum().item() == right",
        ]
    return "\n".join([*text, "print(json.dumps(found))"]), places


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By line what it raised, and where it stood in the program."""
    lines = [line for table in (INDICES, VALUES) for each in table.values() for line in each]
    directory = tmp_path_factory.mktemp("asserts")
    source, places = program(lines)
    path = directory / "program.py"
    path.write_text(source)
    with broker_on("cuda-on-host", directory, "--lanes", "2", "--threads", "1") as broker:
        neighbour = processes.start(
            [sys.executable, "-c", NEIGHBOUR], env=broker.environment(JGPU_TICKET="neighbour"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with neighbour:
            told = []
            for _ in range(2):  # met before, the second time
                neighbour.stdin.write("\n")
                neighbour.stdin.flush()
                assert neighbour.line() == "True\n"
                told.append(json.loads(broker.seat(path, timeout_s=900).check().out))
            said, _ = neighbour.communicate("\n")
            assert said == "True\n"
    return {line: (place, *runs) for line, place, *runs in zip(lines, places, *told, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (error, line)
        for error, table in (("IndexError", INDICES), ("RuntimeError", VALUES))
        for lines in table.values()
        for line in lines
    ],
)
def test_a_wrong_value_is_an_error_on_its_line(found, error, line):
    place, *runs = found[line]
    for kinds, text, raised_at in runs:
        assert error in kinds, text
        assert raised_at == place or f"line {place}" in text


def test_every_op_that_is_guarded_on_cuda_is_tried():
    assert {*trusted._RULES, *trusted._TRUSTING} <= {*INDICES, *VALUES}
