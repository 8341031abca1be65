"""Each common mistake says what the table says, and shows no more than natively."""

import copy
import linecache
import traceback
from dataclasses import replace
from pathlib import Path

import mistakes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mistakes import MISTAKES
from torch import nn

import jgpu
from jgpu.device import current

#: other releases say some of it in other words, and so do we
RELEASE = ".".join(torch.__version__.split(".")[:2])
_SAVED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: [torch.cuda.FloatTensor [3]], which is output 0 of ExpBackward0, is at version "
    "1; expected version 0 instead. Hint: enable anomaly detection to find the operation that "
    "failed to compute its gradient, with torch.autograd.set_detect_anomaly(True, "
    "check_nan=False)."
)
#: what the table has found in torch's sources, where an older torch says it otherwise
OLDER = {
    ("2.11", "Labels of classes are floats"): "expected scalar type Long but found Float",
    ("2.11", "Labels of classes are 32-bit integers"): "expected scalar type Long but found Int",
    ("2.11", "A result that backward needs is changed in place"): _SAVED,
    ("2.12", "A result that backward needs is changed in place"): _SAVED,
}
OURS = f"{Path(jgpu.__file__).parent}/"


def error_of(code):
    """The error of a cell; its lines are known as a notebook's are."""
    name = "<a cell>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    names = {"torch": torch, "nn": nn, "F": F, "np": np, "copy": copy, "__name__": "__main__"}
    current.session.log.forget_frame()
    try:
        exec(compile(code, name, "exec"), names)
    except Exception as error:
        return error
    finally:
        current.session.log.forget_frame()
    raise AssertionError("it went well")


def shown(error):
    """(file, function) of each entry that the notebook shows."""
    return [(each.filename, each.name) for each in traceback.extract_tb(error.__traceback__)][1:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_a_mistake_is_told_as_the_table_says(mistake):
    if mistake.on_cpu is not None:
        native = error_of(mistake.on_cpu)
        told = f"{type(native).__name__}: {native}"
        if RELEASE == mistakes.RELEASE:
            assert told == mistake.native
        mistake = replace(mistake, native=told)
    if (words := OLDER.get((RELEASE, mistake.title))) is not None:
        mistake = replace(mistake, says=f"RuntimeError: {words}")
    ours = error_of(mistake.code)
    said = f"{type(ours).__name__}: {ours}"
    assert mistake.fits(said), said
    entries = shown(ours)
    assert not [entry for entry in entries if entry[0].startswith(OURS)]
    assert ours.__context__ is None
    torch.cuda.synchronize()  # it is told once
    if mistake.on_cpu is None:
        return
    assert isinstance(ours, type(native))
    left = iter(shown(native))
    assert all(entry in left for entry in entries), "a line that is not there natively"


def test_there_are_sixty_and_none_twice():
    assert len(MISTAKES) >= 60
    assert len({mistake.title for mistake in MISTAKES}) == len(MISTAKES)
    assert len({mistake.code for mistake in MISTAKES}) == len(MISTAKES)
