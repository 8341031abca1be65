"""`torch.library.Library` with kernels for each key, with host tensors and with device tensors."""

import pytest
import torch
from library_cases import Cases, attempt, base, contexts, key_of, library_with, op_of, twice
from torch import library

CASES = Cases()


def libs(dev, ns, key, **options):
    lib = library_with(ns)
    lib.impl("f", twice, key, **options)
    return contexts(op_of(ns), dev, base(dev))


@CASES.add
def library_with_a_device_kernel(dev, ns):
    return libs(dev, ns, key_of(dev))


@CASES.add
def library_of_explicit_composites(dev, ns):
    return libs(dev, ns, "CompositeExplicitAutograd")


@CASES.add
def library_of_implicit_composites(dev, ns):
    return libs(dev, ns, "CompositeImplicitAutograd")


@CASES.add
def library_of_the_default_key(dev, ns):
    return libs(dev, ns, "")


@CASES.add
def library_of_one_key(dev, ns):
    lib = library_with(ns)
    other = library.Library(ns, "IMPL", key_of(dev))
    other.impl("f", twice)
    bad = attempt(other.impl, "f", twice, "Meta")
    return contexts(op_of(ns), dev, base(dev)), type(bad).__name__, lib.kind


@CASES.add
def library_with_autograd_kernels(dev, ns):
    found = []
    for k, key in enumerate(("Autograd", "Autograd" + key_of(dev))):
        lib = library_with(ns, f"f{k}(Tensor x) -> Tensor", "FRAGMENT")
        op = op_of(ns, f"f{k}")

        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, op=op):
                with torch._C._AutoDispatchBelowAutograd():
                    return op(x)

            @staticmethod
            def backward(ctx, g):
                return g * 7

        lib.impl(f"f{k}", twice, key_of(dev))
        lib.impl(f"f{k}", F.apply, key)
        found.append(contexts(op, dev, base(dev)))
        lib._destroy()
    return found


@CASES.add
def library_with_autocast_kernels(dev, ns):
    lib = library_with(ns)
    op = op_of(ns)
    lib.impl("f", twice, key_of(dev))
    key = "Autocast" + key_of(dev)
    keys = torch._C.DispatchKeySet(
        getattr(torch._C.DispatchKey, "AutocastPrivateUse1" if dev == "cuda" else key)
    )

    def cast(x):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(x.bfloat16())

    lib.impl("f", cast, key)
    return contexts(op, dev, base(dev))


@CASES.add
def library_with_registered_formulas(dev, ns):
    lib = library_with(ns)
    name = f"{ns}::f"
    lib.impl("f", twice, key_of(dev))
    library.register_fake(name, lambda x: torch.empty_like(x), lib=lib)
    library.register_autograd(
        name,
        lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        lib=lib,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    library.register_vmap(name, lambda info, dims, x: (x * 5, dims[0]), lib=lib)
    library.register_autocast(name, dev, torch.bfloat16, lib=lib)
    return contexts(op_of(ns), dev, base(dev))


@CASES.add
def library_with_all_keys(dev, ns):
    lib = library_with(ns)
    op = op_of(ns)
    found = []
    for k, key in enumerate(
        (
            "CompositeImplicitAutograd",
            "CompositeExplicitAutograd",
            key_of(dev),
            "Meta",
            "ADInplaceOrView",
            "Autograd",
            "Autograd" + key_of(dev),
        )
    ):
        made = attempt(lib.impl, "f", lambda x, k=k: x.detach() * k, key)
        leaf = base(dev).requires_grad_()
        found += [made, attempt(op, base(dev)), attempt(op, leaf), attempt(op, base("meta"))]
        with torch.inference_mode():
            found += [attempt(op, base(dev))]
    return found


@CASES.add
def fallthrough(dev, ns):
    lib = library_with(ns)
    op = op_of(ns)
    lib.impl("f", twice, "CompositeExplicitAutograd")
    lib.impl("f", library.fallthrough_kernel, "Autograd")
    found = [attempt(op, base(dev)), attempt(op, base(dev).requires_grad_())]
    lib.impl("f", library.fallthrough_kernel, key_of(dev))
    return [*found, type(attempt(op, base(dev))).__name__]


@CASES.add
def override_is_allowed_or_not(dev, ns):
    lib = library_with(ns)
    op = op_of(ns)
    found = []
    for k, allow in ((2, True), (3, True), (4, False)):
        made = attempt(lib.impl, "f", lambda x, k=k: x * k, key_of(dev), allow_override=allow)
        found += [made, op(base(dev))]
    other = library.Library(ns, "IMPL")
    found += [attempt(other.impl, "f", lambda x: x * 5, key_of(dev)), op(base(dev))]
    other._destroy()
    found += [op(base(dev))]
    return found


@CASES.add
def with_keyset(dev, ns):
    lib = library_with(ns)
    op = op_of(ns)
    lib.impl("f", lambda keys, x: x * 2, key_of(dev), with_keyset=True)
    return contexts(op, dev, base(dev))


@CASES.add
def library_destroyed_and_made_again(dev, ns):
    found = []
    for k in (2, 3):
        lib = library.Library(ns, "DEF")
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x, k=k: x * k, key_of(dev) if k == 2 else "CompositeExplicitAutograd")
        found += [op_of(ns)(base(dev)), attempt(library.Library, ns, "DEF")]
        lib._destroy()
        found += [attempt(lambda: op_of(ns)(base(dev)))]
    lib = library.Library(ns, "DEF")
    lib.define("f(Tensor x, Tensor y) -> Tensor")
    lib.impl("f", lambda x, y: x * y, key_of(dev))
    return [
        *found,
        op_of(ns)(base(dev), base(dev)),
        attempt(lib.define, "f(Tensor x) -> Tensor"),
    ]


@CASES.add
def library_forgotten(dev, ns):
    library_with(ns)
    del_ = library.Library(ns, "DEF")
    del_.define("f(Tensor x) -> Tensor")
    other = library.Library(ns, "IMPL")
    other.impl("f", lambda x: x * 2, key_of(dev))
    del_.impl("f", lambda x: x * 3, "CompositeExplicitAutograd")
    found = [op_of(ns)(base(dev))]
    del other
    return [*found, op_of(ns)(base(dev))]


@CASES.add
def kernel_before_its_schema(dev, ns):
    other = library.Library(ns, "IMPL")
    other.impl("f", twice, key_of(dev))
    lib = library_with(ns)
    return contexts(op_of(ns), dev, base(dev)), lib.kind


@CASES.add
def overloads(dev, ns):
    lib = library.Library(ns, "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    lib.define("f.k(Tensor x, float k) -> Tensor")
    op = op_of(ns)
    lib.impl("f", lambda x: x * 2, key_of(dev))
    lib.impl("f.k", lambda x, k: x * k, key_of(dev))
    lib.impl(op.default, lambda x: x * 4, "CompositeExplicitAutograd")
    return [
        op(base(dev)),
        op(base(dev), 3.0),
        op.k(base(dev), 4.0),
        op.default(base(dev)),
        str(op.overloads()),
    ]


@CASES.add
def functions_of_the_module(dev, ns):
    found = []
    for k, types in enumerate(
        (dev, ["cpu", "cuda"], "default", key_of(dev), "CompositeImplicitAutograd")
    ):
        name = f"{ns}::f{k}"
        library.define(name, "(Tensor x) -> Tensor")
        op = op_of(ns, f"f{k}")
        found.append(isinstance(attempt(op, base(dev)), NotImplementedError))
        library.impl(name, types)(lambda x: x * 2)
        found.append(op(base(dev)))
        library.impl(name, types, lambda x: x * 3)
        found.append(op(base(dev)))
        leaf = base(dev).requires_grad_()
        found.append(attempt(op, leaf))
    bad = attempt(library.impl, f"{ns}::f0", "nonsense", twice)
    found.append(type(bad).__name__)
    lib = library.Library(ns, "FRAGMENT")
    library.define(f"{ns}::g", "(Tensor x) -> Tensor", lib=lib)
    library.impl(f"{ns}::g", dev, lambda x: x * 2, lib=lib)
    found.append(op_of(ns, "g")(base(dev)))
    library.define(lib, "h(Tensor x) -> Tensor")(lambda x: x * 3)
    found.append(op_of(ns, "h")(base(dev)))
    library.impl(lib, "h", key_of(dev))(lambda x: x * 2)
    found.append(op_of(ns, "h")(base(dev)))
    lib._destroy()
    found.append(attempt(lambda: op_of(ns, "g")(base(dev))))
    return found


@CASES.add
def kernels_looked_up(dev, ns):
    if not hasattr(library, "get_kernel"):
        return []
    library.custom_op(f"{ns}::f", twice, mutates_args=(), device_types=dev)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    found = []
    for key in (key_of(dev), getattr(torch._C.DispatchKey, key_of(dev))):
        kernel = library.get_kernel(f"{ns}::f", key)
        found.append(kernel.call_boxed(keys, base(dev)))
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [
        *found,
        has(f"{ns}::f", key_of(dev)),
        type(attempt(library.get_kernel, f"{ns}::f", "nonsense")).__name__,
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_library_works_as_for_host_tensors(name):
    assert CASES.found_by(name, "cuda") == CASES.found_by(name, "cpu")
