"""Geometry that a number decides: what is refused, what each run compares, and what is neither."""

import pytest
import torch
from recorder import Recorder
from test_programs_replay import replay

from jgpu.broker.executor.programs.checking.arguments import NumberValue, Ref
from jgpu.broker.executor.programs.checking.inference import infer
from jgpu.broker.executor.programs.checking.ops import resolve
from jgpu.broker.executor.programs.geometry import geometry_of, required_bytes

X = torch.arange(1.0, 241.0)
#: tensors that lie in ways on which torch's meta kernels are of two minds
LAYOUTS = {
    "a column": lambda: X.view(1, 240).mT,
    "transposed": lambda: X.view(12, 20).mT,
    "with gaps": lambda: X.view(12, 20)[::2, ::4],
    "expanded": lambda: X.view(1, 1, 240).expand(2, 1, 240),
    "a number": lambda: X[5],
    "empty": lambda: X[:0].view(0, 3).mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_power_does_not_depend_on_its_exponent(layout):
    geometry = geometry_of(LAYOUTS[layout]())
    for kind in ("int", "float"):
        bound = (Ref(0, 0, False), NumberValue(0, kind))
        found = infer(
            resolve("aten::pow.Tensor_Scalar", "cpu"),
            bound,
            [(geometry, required_bytes(geometry))],
        )
        assert found is None or found.returns[0].geometry.shape == geometry.shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_powers_are_as_natively_whatever_the_exponent_was_before(layout):
    for exponent in (2.0, 1.0, 0.5, 1.0, 0.0, 2.0):
        with Recorder(lift=True) as recorder:
            (LAYOUTS[layout]() ** exponent).sum()
        replay(recorder.recording(), runs=3)
