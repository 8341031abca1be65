"""Values that would end the process, or never let an op end: the executor and others live."""

from struct import pack, unpack

import pytest
from client import add, program

from jgpu.wire.program import Geometry, Op, Out, Slot

LEAST = {"int64": (-(1 << 63), "q"), "int32": (-(1 << 31), "i")}


@pytest.mark.parametrize("dtype", LEAST)
@pytest.mark.parametrize("overload", ["Tensor_mode", "Scalar_mode"])
def test_the_least_integer_divided_by_minus_one(connect, overload, dtype):
    least, code = LEAST[dtype]
    user, neighbour = connect(), connect(user="user2")
    geometry = Geometry(dtype, (2,), (1,))
    by_tensor = overload == "Tensor_mode"
    divisor = Slot(1, 0) if by_tensor else -1
    op = Op(f"aten::div.{overload}", (Slot(0, 0), divisor), {"rounding_mode": "trunc"},
            (Out(1 + by_tensor, 0),))  # fmt: skip
    inputs = [user.upload(pack(f"2{code}", least, 6))]
    if by_tensor:
        inputs.append(user.upload(pack(f"2{code}", -1, -1)))
    for _ in range(3):
        made = user.run(program(len(inputs), [op], [geometry]), inputs)
        data = user.download(made, 2 * len(pack(code, 0)))
        assert unpack(f"2{code}", data) == (least, -6)
    ones = neighbour.floats(1, 2, 3, 4)
    assert neighbour.read_floats(neighbour.run(add(), [ones, ones]), 4) == (2, 4, 6, 8)
