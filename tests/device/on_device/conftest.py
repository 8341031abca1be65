"""Tests of this folder run inside a process with a seat: see `tests/device/test_on_device.py`."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import pytest

collect_ignore_glob = [] if os.environ.get("JGPU_TICKET") else ["test_*.py"]


@pytest.fixture
def stand_ins(monkeypatch):
    """The shapes of the stand-ins for composites that were made."""
    from jgpu.device.composed import composites

    made, make = [], composites.face_of

    def face_of(tensor, *more, **named):
        made.append(tensor.shape)
        return make(tensor, *more, **named)

    monkeypatch.setattr(composites, "face_of", face_of)
    return made


@pytest.fixture(autouse=True)
def switches_of_a_fresh_process():
    """Undo what parts of torch change for the whole process, which files of tests share.

    torch's own test package forbids to set global flags; torch's compiler switches the checks of
    distributions off.
    """
    import torch

    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    if "torch.distributions" in sys.modules:
        torch.distributions.Distribution.set_default_validate_args(True)
