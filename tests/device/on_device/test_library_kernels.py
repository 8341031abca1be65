"""What kernels in Python do, return and override, with host tensors and with device tensors."""

import sys

import numpy as np
import pytest
import torch
from library_cases import Cases, attempt, base, contexts, key_of, library_with, op_of, twice
from torch import Tensor, library, nn

CASES = Cases()


@CASES.add
def what_kernels_return(dev, ns):
    x = base(dev)
    found = []
    returns = {
        "itself": lambda x: x,
        "view": lambda x: x[1:],
        "transposed": lambda x: x.t(),
        "same": lambda x: x.view(9),
        "detached": lambda x: x.detach(),
        "numpy": lambda x: torch.from_numpy(np.sin(x.detach().cpu().numpy())).to(x.device),
        "list": lambda x: [x + 1],
        "tuple": lambda x: (x + 1,),
        "pair": lambda x: (x + 1, x + 2),
        "none": lambda x: None,
        "number": lambda x: 3,
        "text": lambda x: "a",
        "shape": lambda x: torch.ones(7, device=x.device),
        "dtype": lambda x: x.long(),
        "expanded": lambda x: (x[:1] + 1).expand(3, 3),
        "parameter": lambda x: nn.Parameter(x.detach() + 1),
        "wants": lambda x: (x.detach() + 1).requires_grad_(),
        "meta": lambda x: torch.empty(3, device="meta"),
        "raises": lambda x: 1 / 0,
        "interrupts": lambda x: (_ for _ in ()).throw(KeyError("a")),
        "shapes": lambda x: x @ torch.ones(5, 5, device=x.device),
        "scalar": lambda x: x.sum(),
        "empty": lambda x: x.new_empty(0),
    }
    for name, kernel in returns.items():
        f = library.custom_op(
            f"{ns}::{name.replace(' ', '_')}",
            kernel,
            mutates_args=(),
            device_types=dev,
            schema="(Tensor x) -> Tensor",
        )
        f.register_fake(lambda x: torch.empty_like(x))
        found += [[name, attempt(f, x), attempt(f, x.clone().requires_grad_())]]
        f.register_autograd(lambda ctx, g: g * 2)
        leaf = x.clone().requires_grad_()
        y = attempt(f, leaf)
        found += [y, attempt(lambda y=y: y.sum().backward()), leaf.grad]
        lib = library_with(f"{ns}_library", "f(Tensor x) -> Tensor")
        lib.impl("f", kernel, key_of(dev))
        op = op_of(f"{ns}_library")
        found += [attempt(op, x.clone()), attempt(op, x.clone().requires_grad_())]
        lib._destroy()
    return found


@CASES.add
def a_kernel_that_returns_a_host_tensor(dev, ns):
    f = library.custom_op(
        f"{ns}::f",
        lambda x: x.cpu() + 1,
        mutates_args=(),
        device_types=dev,
        schema="(Tensor x) -> Tensor",
    )
    y = f(base(dev))
    return y.device.type == "cpu", y.tolist()


@CASES.add
def outputs_that_alias_each_other(dev, ns):
    @library.custom_op(f"{ns}::f", mutates_args=(), device_types=dev)
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y[1:]

    @library.custom_op(f"{ns}::g", mutates_args=(), device_types=dev)
    def g(xs: list[Tensor]) -> list[Tensor]:
        return [x.view(-1) for x in xs]

    @library.custom_op(f"{ns}::h", mutates_args={"x"}, device_types=dev)
    def h(x: Tensor) -> Tensor:
        return x.add_(1)

    return [attempt(f, base(dev)), attempt(g, [base(dev)]), attempt(h, base(dev))]


@CASES.add
def kernels_that_call_ops(dev, ns):
    inner = library.custom_op(f"{ns}::inner", twice, mutates_args=(), device_types=dev)
    inner.register_autograd(lambda ctx, g: g * 11)

    @library.custom_op(f"{ns}::outer", mutates_args=(), device_types=dev)
    def outer(x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            z = inner(y)
        return inner(x) + inner(inner(x)) + float(z.requires_grad)

    @library.custom_op(f"{ns}::gradients", mutates_args=(), device_types=dev)
    def gradients(x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(inner(y).sum(), y)
        return g

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, g):
            return g * 13

    @library.custom_op(f"{ns}::function", mutates_args=(), device_types=dev)
    def function(x: Tensor) -> Tensor:
        y = F.apply(x)
        return y + (1.0 if y.requires_grad else 0.0)

    lib = library_with(ns, "f(Tensor x) -> Tensor", "FRAGMENT")
    lib.impl("f", lambda x: F.apply(x) * 2, key_of(dev))
    return [
        contexts(outer, dev, base(dev)),
        attempt(gradients, base(dev)),
        attempt(gradients, base(dev).requires_grad_()),
        contexts(function, dev, base(dev)),
        contexts(op_of(ns), dev, base(dev)),
    ]


@CASES.add
def kernels_that_look_around(dev, ns):
    found = []

    @library.custom_op(f"{ns}::f", mutates_args=(), device_types=dev)
    def f(x: Tensor) -> Tensor:
        y = x * 2
        found.append(
            [
                torch.is_grad_enabled(),
                x.requires_grad,
                y.requires_grad,
                torch.is_autocast_enabled(dev),
                torch.is_inference_mode_enabled(),
                (x @ x).dtype,
                x.is_leaf,
                torch._C._dispatch_tls_is_dispatch_key_excluded(
                    torch._C.DispatchKey.ADInplaceOrView
                ),
            ]
        )
        return y

    contexts(f, dev, base(dev))
    lib = library_with(ns, "g(Tensor x) -> Tensor", "FRAGMENT")

    def kernel(x):
        y = x * 2
        found.append(
            [
                torch.is_grad_enabled(),
                x.requires_grad,
                y.requires_grad,
                torch.is_autocast_enabled(dev),
                (x @ x).dtype,
                x.is_leaf,
            ]
        )
        return y

    lib.impl("g", kernel, key_of(dev))
    contexts(getattr(torch.ops, ns).g, dev, base(dev))
    return [str(each) for each in found]


@CASES.add
def kernels_that_recurse(dev, ns):
    lib = library_with(ns)
    op = op_of(ns)
    lib.impl("f", lambda x: op(x[1:]) + 1 if len(x) else x.sum(), key_of(dev))

    @library.custom_op(f"{ns}::endless", mutates_args=(), device_types=dev)
    def endless(x: Tensor) -> Tensor:
        return endless(x + 1)

    limit = sys.getrecursionlimit()
    return [
        op(base(dev)),
        type(attempt(endless, base(dev))).__name__,
        op(base(dev)),
        limit == sys.getrecursionlimit(),
    ]


@CASES.add
def modes_and_rules(dev, ns):
    f = library.custom_op(f"{ns}::f", twice, mutates_args=(), device_types=dev)

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Sub(Tensor):
        @staticmethod
        def __new__(cls, x):
            return Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)

        def __init__(self, x):
            self.x = x

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return (
                func(
                    *(each.x if isinstance(each, Sub) else each for each in args), **(kwargs or {})
                )
                * 100
            )

    found = []
    with Mode():
        found.append(f(base(dev)))
    found.append(f(Sub(base(dev))))
    f.register_torch_dispatch(Mode, lambda mode, func, types, args, kwargs: func(*args) + 1)
    f.register_torch_dispatch(Sub, lambda cls, func, types, args, kwargs: func(args[0].x) + 2)
    with Mode():
        found.append(f(base(dev)))
    found.append(f(Sub(base(dev))))
    library.register_torch_dispatch(
        f"{ns}::f", Mode, lambda mode, func, types, args, kwargs: func(*args) + 3
    )
    with Mode():
        found.append(f(base(dev)))
    return found


@CASES.add
def mixed_devices(dev, ns):
    @library.custom_op(f"{ns}::f", mutates_args=(), device_types=dev)
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y.to(x.device)

    return [f(base(dev), base("cpu")), f(base(dev), torch.tensor(2.0))]


@CASES.add
def triton_ops(dev, ns):
    f = library.triton_op(f"{ns}::f", twice, mutates_args=())
    bad = attempt(library.wrap_triton, twice)
    leaf = base(dev).requires_grad_()
    f.register_autograd(lambda ctx, g: g * 3)
    y = f(leaf)
    y.sum().backward()
    return f(base(dev)), y, leaf.grad, type(bad).__name__


@CASES.add
def opcheck(dev, ns):
    f = library.custom_op(f"{ns}::f", twice, mutates_args=(), device_types=dev)
    found = [library.opcheck(f, (base(dev),), raise_exception=False)]
    f.register_fake(lambda x: torch.empty_like(x))
    f.register_autograd(
        lambda ctx, g: g * 3,
        setup_context=lambda ctx, inputs, output: None,
    )
    found += [
        library.opcheck(f, (base(dev),), raise_exception=False),
        library.opcheck(f, (base(dev).requires_grad_(),), raise_exception=False),
    ]

    @library.custom_op(f"{ns}::g", mutates_args=(), device_types=dev)
    def g(x: Tensor) -> Tensor:
        x.add_(1)
        return x.clone()

    h = library.custom_op(
        f"{ns}::h",
        lambda x: x.add_(1),
        mutates_args={"x"},
        schema="(Tensor(a!) x) -> ()",
        device_types=dev,
    )
    found += [library.opcheck(h, (base(dev),), raise_exception=False)]
    w = library.custom_op(
        f"{ns}::w",
        lambda x: x[:1] + 1,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
        device_types=dev,
    )
    w.register_fake(lambda x: torch.empty_like(x))
    found += [library.opcheck(w, (base(dev),), raise_exception=False)]
    return [
        {k: v if isinstance(v, str) else type(v).__name__ for k, v in each.items()}
        for each in found
    ]


@CASES.add
def legacy_custom_ops(dev, ns):
    from torch import _custom_ops

    x = base(dev)

    class Holder:
        pass

    def f(x: Tensor) -> Tensor:
        raise NotImplementedError

    made = attempt(_custom_ops.custom_op, f"{ns}::f", f)
    if isinstance(made, Exception):
        return made
    op = op_of(ns)
    found = [isinstance(attempt(op, x), NotImplementedError)]
    _custom_ops.impl(f"{ns}::f", device_types=dev)(lambda x: x * 2)
    found.append(op(x))
    _custom_ops.impl_save_for_backward(f"{ns}::f")(lambda inputs, output: inputs.x)
    _custom_ops.impl_backward(f"{ns}::f")(lambda ctx, saved, g: {"x": g * saved})
    leaf = x.clone().requires_grad_()
    y = op(leaf)
    y.sum().backward()
    return [*found, y, leaf.grad]


@CASES.add
def ops_of_torch_overridden(dev, ns):
    x, y = base(dev), base(dev) + 1
    calls = {
        "add.Tensor": lambda: x + y,
        "mul.Tensor": lambda: x * 2,
        "mm": lambda: x @ y,
        "addmm": lambda: nn.functional.linear(x, y, y[0]),
        "sum": lambda: x.sum(),
        "mean.dim": lambda: x.mean(0),
        "exp": lambda: x.exp(),
        "_log_softmax": lambda: x.log_softmax(-1),
        "relu": lambda: x.relu(),
        "nonzero": lambda: x.nonzero(),
        "view": lambda: x.view(9),
        "slice.Tensor": lambda: x[1:],
        "silu_backward": lambda: torch.autograd.grad(
            nn.functional.silu(z := x.clone().requires_grad_()).sum(), z
        ),
        "add_.Tensor": lambda: x.clone().add_(y),
        "empty.memory_format": lambda: torch.empty(2, 2, device=dev).shape,
        "index_select": lambda: x.index_select(0, torch.tensor([1], device=dev)),
    }
    found = []
    for name, call in calls.items():
        before = call()
        lib = library.Library("aten", "IMPL")
        count = []
        constant = torch.full((2, 2), 5.0, device=dev)

        def fn(*args, name=name, count=count, constant=constant, **kwargs):
            count.append(name)
            return constant

        lib.impl(name, fn, key_of(dev))
        found.append([name, attempt(call), len(count)])
        with torch.inference_mode():
            found.append([attempt(call), len(count)])
        lib._destroy()
        after = call()
        found.append([before, after, len(count)])
    return found


@CASES.add
def ops_of_torch_overridden_in_calls(dev, ns):
    x = base(dev)
    lib = library.Library("aten", "IMPL")
    lib.impl("sin", lambda x: x * 2, key_of(dev))
    try:
        found = contexts(torch.sin, dev, x)
    finally:
        lib._destroy()
    again = library.Library("aten", "IMPL", key_of(dev))
    again.impl("sin", lambda x: x * 4)
    found = [found, x.sin()]
    del again
    found.append(x.sin())
    third = library.Library("aten", "IMPL")
    library.impl("aten::cos", dev, lambda x: x * 6, lib=third)
    found.append(x.cos())
    third._destroy()
    found.append(x.cos())
    return found


@CASES.add
def the_original_kernel_kept(dev, ns):
    if not hasattr(library, "get_kernel"):
        return []
    x = base(dev)
    kernel = library.get_kernel("aten::tan", key_of(dev))
    lib = library.Library("aten", "IMPL")
    lib.impl("tan", lambda keys, x: kernel.call_boxed(keys, x) * 2, key_of(dev), with_keyset=True)
    found = [attempt(torch.tan, x), attempt(torch.tan, x.clone().requires_grad_())]
    lib._destroy()
    return [*found, torch.tan(x)]


@CASES.add
def autograd_of_torch_overridden(dev, ns):
    lib = library.Library("aten", "IMPL")

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch._C._AutoDispatchBelowAutograd():
                return torch.sinh(x)

        @staticmethod
        def backward(ctx, g):
            return g * 7

    lib.impl("sinh", F.apply, "Autograd" + key_of(dev))
    leaf = base(dev).requires_grad_()
    y = leaf.sinh()
    y.sum().backward()
    lib._destroy()
    other = base(dev).requires_grad_()
    other.sinh().sum().backward()
    return y, leaf.grad, other.grad


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_in_python_works_as_for_host_tensors(name):
    assert CASES.found_by(name, "cuda") == CASES.found_by(name, "cpu")


def test_kernels_of_an_extension_are_refused_until_a_notebook_registers_one():
    """An extension's kernels for CUDA are registered past `torch.library`."""
    lib = library_with("jgpu_extension")
    extension = torch._C._dispatch_library("IMPL", "jgpu_extension", "", __file__, 0)
    extension.impl("f", "CUDA", lambda x: x * 2, False)
    op, x = op_of("jgpu_extension"), base("cuda")
    for given in (x, x.clone().requires_grad_()):
        with pytest.raises(NotImplementedError, match="does not support jgpu_extension::f"):
            op(given)
    with library._scoped_library("jgpu_extension", "IMPL") as own:
        own.impl("f", lambda x: x * 3, "CUDA")
        assert torch.equal(op(x), x * 3)
    with pytest.raises(NotImplementedError, match="does not support jgpu_extension::f"):
        op(x)
    extension.reset()
    lib._destroy()
