"""Values that would end the process, or never let an op end: the executor and others live."""

from struct import pack, unpack

import pytest
from client import Executor, add, program

from jgpu.wire import messages as m
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


ENDLESS = {
    "binomial": Op("aten::binomial.default", (Slot(0, 0), Slot(1, 0)), {}, (Out(2, 0),)),
    "laguerre": Op(
        "aten::special_laguerre_polynomial_l.n_scalar", (Slot(1, 0), 1e12), {}, (Out(2, 0),)
    ),
    "legendre": Op("aten::special_legendre_polynomial_p.default", (Slot(1, 0), Slot(0, 0)), {},
                   (Out(2, 0),)),
    "chebyshev": Op("aten::special_chebyshev_polynomial_u.x_scalar", (1 + 2**-52, Slot(0, 0)), {},
                    (Out(2, 0),)),
    "zeta": Op("aten::special_zeta.other_scalar", (Slot(1, 0), -1e12 - 0.5), {}, (Out(2, 0),)),
    "decimals": Op("aten::round.decimals", (Slot(1, 0),), {"decimals": 1 << 62}, (Out(2, 0),)),
    "matrix_power": Op("aten::linalg_matrix_power.default", (Slot(1, 1), -(1 << 63)), {},
                       (Out(2, 1),)),
    "pooling": Op("aten::adaptive_max_pool2d.default", (Slot(1, 2), (1 << 31, 0)), {},
                  (Out(-1, 0), Out(-1, 0))),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_op_ends_and_the_neighbour_goes_on(connect, name):
    """Each of these took a lane for ever, or the pump."""
    user, neighbour = connect(), connect(user="user2")
    vector, square, image = (
        Geometry("float32", shape, stride)
        for shape, stride in (((4,), (1,)), ((2, 2), (2, 1)), ((1, 2, 2), (4, 2, 1)))
    )
    nan = float("nan")
    first, second = (
        user.floats(*([nan] * 4 if name == "binomial" else [1e12] * 4)),
        user.floats(0.25, 0.5, 0.25, 0.5),
    )
    for _ in range(2):
        made = user.run(program(2, [ENDLESS[name]], [vector, square, image]), [first, second])
        user.sync()
    ones = neighbour.floats(1, 2, 3, 4)
    assert neighbour.read_floats(neighbour.run(add(), [ones, ones]), 4) == (2, 4, 6, 8)
    if name == "binomial":
        assert all(value != value for value in user.read_floats(made, 4))
    assert user.read_floats(second, 4) == (0.25, 0.5, 0.25, 0.5)


WHOLE = Geometry("int64", (1,), (1,))
UNFORETOLD = {
    "bincount": (Op("aten::bincount.default", (Slot(0, 0),), {}, (Out(1, -1),)), (1 << 29) - 1),
    "one_hot": (Op("aten::one_hot.default", (Slot(0, 0),), {}, (Out(1, -1),)), (1 << 29) - 1),
    "repeat_interleave": (
        Op("aten::repeat_interleave.Tensor", (Slot(0, 0),), {}, (Out(1, -1),)), 1 << 29,
    ),
    "histogram": (
        Op("aten::histogramdd.int_bins", (Slot(0, 1), 1 << 30), {}, (Out(1, -1), Out(2, -1))), 0,
    ),
    "resize_": (Op("aten::resize_.default", (Slot(0, 0), (1 << 29,)), {}, (Out(-1, -1),)), 0),
    "out": (
        Op("aten::arange.start_out", (0, 1 << 29), {"out": Slot(0, 0)}, (Out(-1, -1),)), 0,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def narrow():
    with Executor("cpu", lanes=1, threads=1, capacity=1 << 30) as executor:
        yield executor


@pytest.mark.parametrize("name", UNFORETOLD)
def test_a_size_that_data_decide_is_held_to_the_limit_before_it_is_taken(narrow, name):
    """4 GiB of 1, on a machine that has them."""
    op, value = UNFORETOLD[name]
    user = narrow.connect()
    given = user.upload(pack("q", value))
    made = program(1, [op], [WHOLE, Geometry("float32", (1, 1), (1, 1))])
    user.run(made, [given])
    failed = user.receive(m.Failed)
    assert failed.error == "OutOfMemoryError"
    assert "GiB" in failed.text or "MiB" in failed.text
    assert "total capacity of 1.00 GiB" in failed.text
    user.sync()
    memory = user.memory()
    assert memory.used <= 8
    assert memory.peak <= 1 << 20
    # what fits is computed
    small = user.upload(pack("q", 3))
    counted = user.run(program(1, [UNFORETOLD["bincount"][0]], [WHOLE]), [small])
    assert unpack("4q", user.download(counted, 32)) == (0, 0, 0, 1)
    user.close()
    narrow.ended(user.session)


def test_rest_of_a_neighbour_makes_room_for_a_size_that_data_decide():
    with Executor("cpu", lanes=1, threads=1, capacity=64 << 20) as executor:
        neighbour, user = executor.connect(user="user2"), executor.connect()
        kept = neighbour.upload_arena(bytes(48 << 20))
        neighbour.sync()
        given = user.upload(pack("q", (4 << 20) - 1))
        counted = user.run(program(1, [UNFORETOLD["bincount"][0]], [WHOLE]), [given])
        last = user.download(counted, 8, offset=((4 << 20) - 1) * 8)
        assert unpack("q", last) == (1,)
        assert neighbour.download(kept, 8) == bytes(8)
