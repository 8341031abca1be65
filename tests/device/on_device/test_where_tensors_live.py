"""Tensors of every kind report that they live on the device, also inside wrappers."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

FUNC = torch.func

# a warning of torch about its own use of TorchScript
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def places(tensor):
    return (tensor.is_cuda, tensor.is_cpu, tensor.device, tensor.get_device())


ON_DEVICE = (True, False, torch.device("cuda", 0), 0)
ON_HOST = (False, True, torch.device("cpu"), -1)

TRANSFORMS = {
    "vmap": FUNC.vmap,
    "grad": FUNC.grad,
    "gradients of each sample": lambda f: FUNC.vmap(FUNC.grad(f)),
    "jvp": lambda f: lambda x: FUNC.jvp(f, (x,), (torch.ones_like(x),)),
    "vjp": lambda f: lambda x: FUNC.vjp(f, x),
    "jacrev": FUNC.jacrev,
    "jacfwd": FUNC.jacfwd,
    "hessian": FUNC.hessian,
    "functionalize": FUNC.functionalize,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_a_tensor_inside_a_transform_lives_on_the_device(transform, kind):
    seen = []

    def look(x):
        seen.append((places(x), x.type(), isinstance(x, torch.cuda.FloatTensor)))
        seen.append((places(x * 2), (x * 2).type(), isinstance(x * 2, torch.cuda.FloatTensor)))
        return (x * x).sum()

    given = torch.randn(3, 4, device="cuda")
    transform(look)(torch.nn.Parameter(given) if kind is torch.nn.Parameter else given)
    assert set(seen) == {(ON_DEVICE, "torch.cuda.FloatTensor", True)}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_a_host_tensor_inside_a_transform_lives_on_the_host(transform):
    seen = []

    def look(x):
        seen.append((places(x), x.type(), isinstance(x, torch.cuda.FloatTensor)))
        return (x * x).sum()

    transform(look)(torch.randn(3, 4))
    assert set(seen) == {(ON_HOST, "torch.FloatTensor", False)}


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
        lambda x: torch.masked.masked_tensor(x, x > 0),
        lambda x: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(x),
        torch.nn.Parameter,
        torch.nn.Buffer,
    ],
    ids=["sparse", "compressed", "jagged", "masked", "fake", "parameter", "buffer"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_of_another_kind_lives_on_the_device(make):
    assert places(make(torch.randn(3, 4, device="cuda"))) == ON_DEVICE


def test_a_tensor_without_data_lives_nowhere():
    made = torch.empty(2, device="cuda").to("meta")
    assert (made.is_cuda, made.is_cpu) == (False, False)


def test_a_class_answers_for_its_own_tensors():
    class Elsewhere(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func == torch.Tensor.is_cuda.__get__:
                return "there"
            return super().__torch_function__(func, types, args, kwargs)

    assert torch.ones(1).as_subclass(Elsewhere).is_cuda == "there"


def test_a_tensor_inside_a_transform_is_pinned_if_what_it_wraps_is():
    seen = []

    def look(x):
        seen.append(x.is_pinned())
        return x.sum()

    for given in (torch.ones(2), torch.ones(2).pin_memory(), torch.ones(2, device="cuda")):
        FUNC.grad(look)(given)
    assert seen == [False, True, False]
