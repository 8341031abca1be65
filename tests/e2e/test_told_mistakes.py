"""Every common mistake in a real notebook: the table's words, and no more lines than natively."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "device"))

from mistakes import MISTAKES

import jgpu

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

OURS = str(Path(jgpu.__file__).parent)
IMPORTS = """
import copy, warnings
import numpy as np, torch, torch.nn.functional as F
from torch import nn
warnings.simplefilter("ignore")
"""
#: how IPython begins each entry of a traceback
_ENTRY = re.compile(r"^(?:File |Cell In)", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def plain(said):
    """What the notebook shows, without colours."""
    return _COLOURS.sub("", said.shown)


def test_each_is_told_as_the_table_says_and_the_kernel_lives(host):
    notebook = host.notebook()
    notebook.ok(IMPORTS)
    wrong = []
    for mistake in MISTAKES:
        ours = notebook.run(mistake.code.strip())
        if not mistake.fits(f"{ours.error}: {ours.sentence}"):
            wrong.append((mistake.title, f"{ours.error}: {ours.sentence}"))
        entries, text = len(_ENTRY.findall(plain(ours))), plain(ours)
        if OURS in text or "During handling" in text:
            wrong.append((mistake.title, text))
        if mistake.on_cpu is not None:
            native = len(_ENTRY.findall(plain(notebook.run(mistake.on_cpu.strip()))))
            if entries > native:
                wrong.append((mistake.title, f"{entries} entries, natively {native}", text))
    assert wrong == []
    assert notebook.ok("print((torch.ones(2, device='cuda') + 1).sum().item())") == "4.0"
