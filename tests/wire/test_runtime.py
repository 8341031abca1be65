"""The runtime key of a process: what is hashed, and that torch is an argument."""

from types import SimpleNamespace

from jgpu.wire.messages import Runtime
from jgpu.wire.runtime import runtime_of, schema_hash


class Schema(SimpleNamespace):
    def __str__(self):
        return f"{self.name}.{self.overload_name}{self.rest}"


def torch_with(*schemas, known=("aten::add.Tensor", "aten::relu")):
    internals = SimpleNamespace(
        _jit_get_all_schemas=lambda: list(schemas),
        _dispatch_get_all_op_names=lambda: list(known),
    )
    return SimpleNamespace(__version__="2.13.0+cpu", _C=internals)


ADD = Schema(name="aten::add", overload_name="Tensor", rest="(Tensor a) -> Tensor")
RELU = Schema(name="aten::relu", overload_name="", rest="(Tensor a) -> Tensor")
OTHER_RELU = Schema(name="aten::relu", overload_name="", rest="(Tensor b) -> Tensor")
FOREIGN = Schema(name="torchvision::nms", overload_name="", rest="()")
SCRIPTED = Schema(name="aten::append", overload_name="t", rest="()")


def test_the_hash_depends_on_the_aten_ops_of_the_dispatcher_alone():
    plain = runtime_of(torch_with(ADD, RELU))
    assert plain == runtime_of(torch_with(RELU, FOREIGN, ADD, SCRIPTED))
    assert plain.schema != runtime_of(torch_with(ADD, OTHER_RELU)).schema
    assert plain.torch == "2.13.0+cpu"


def test_the_order_of_schemas_does_not_matter():
    assert schema_hash(["a", "b"]) == schema_hash(["b", "a"])
    assert schema_hash(["a", "b"]) != schema_hash(["a"])


def test_a_torch_without_these_internals_has_an_unknown_schema():
    bare = SimpleNamespace(__version__="9.0", _C=SimpleNamespace())
    found = runtime_of(bare)
    assert isinstance(found, Runtime)
    assert (found.torch, found.schema) == ("9.0", "")
