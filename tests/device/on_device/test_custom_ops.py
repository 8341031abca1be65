"""`torch.library.custom_op` in all its forms, with host tensors and with device tensors."""

from collections.abc import Sequence

import pytest
import torch
from library_cases import Cases, attempt, base, contexts, twice
from torch import Tensor, library

CASES = Cases()


def forms(dev, ns, device_types):
    f = library.custom_op(f"{ns}::f", twice, mutates_args=(), device_types=device_types)
    found = {"bare": contexts(f, dev, base(dev))}
    f.register_fake(lambda x: torch.empty_like(x))
    f.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    found["differentiable"] = contexts(f, dev, base(dev))
    f.register_vmap(lambda info, dims, x: (x * 5, dims[0]))
    f.register_autocast(dev, torch.float16)
    found["all"] = contexts(f, dev, base(dev))
    found["repr"] = repr(f)
    return found


@CASES.add
def custom_op_for_all_devices(dev, ns):
    return forms(dev, ns, None)


@CASES.add
def custom_op_for_this_device(dev, ns):
    return forms(dev, ns, dev)


@CASES.add
def custom_op_for_both_devices(dev, ns):
    return forms(dev, ns, ("cpu", "cuda"))


@CASES.add
def custom_op_for_the_other_device(dev, ns):
    other = "cpu" if dev == "cuda" else "cuda"
    f = library.custom_op(f"{ns}::f", twice, mutates_args=(), device_types=other)
    error = attempt(f, base(dev))
    return isinstance(error, NotImplementedError), str(error).partition(". ")[0]


@CASES.add
def kernels_added(dev, ns):
    x = base(dev)
    found = []
    f = library.custom_op(f"{ns}::f", twice, mutates_args=())
    found.append(f(x))
    f.register_kernel(dev)(lambda x: x * 3)
    found.append(f(x))
    f.register_kernel(dev, lambda x: x * 4)
    found.append(f(x))
    f.register_kernel(["cuda", "cpu"] if dev == "cpu" else ["cpu", "cuda"], lambda x: x * 5)
    found.append(f(x))
    with f.set_kernel_enabled(dev, enabled=False):
        found.append(f(x))
    found.append(f(x))
    library.register_kernel(f, dev, lambda x: x * 6)
    found.append(f(x))
    library.register_kernel(f"{ns}::f", dev, lambda x: x * 7)
    found.append(f(x))
    library.register_kernel(getattr(torch.ops, ns).f.default, dev)(lambda x: x * 8)
    found.append(f(x))
    found.append(contexts(f, dev, x))
    return found


@CASES.add
def kernel_for_all_and_one_first(dev, ns):
    x = base(dev)
    f = library.custom_op(
        f"{ns}::f",
        lambda x: x * 2,
        mutates_args=(),
        device_types=dev,
        schema="(Tensor x) -> Tensor",
    )
    found = [f(x)]
    f.register_kernel(None)(lambda x: x * 3)
    found.append(f(x))
    return found


@CASES.add
def defined_again(dev, ns):
    found = []
    for k in (2, 3, 4):

        @library.custom_op(f"{ns}::f", mutates_args=(), device_types=dev if k != 3 else None)
        def f(x: Tensor, k: float = k) -> Tensor:
            return x * k

        f.register_autograd(lambda ctx, g, k=k: (g * 10 * k, None))
        leaf = base(dev).requires_grad_()
        y = f(leaf)
        y.sum().backward()
        found += [y, leaf.grad, getattr(torch.ops, ns).f(base(dev))]

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x + y, x - y]

    return [*found, f(base(dev), base(dev)), attempt(f, base(dev))]


@CASES.add
def arguments_of_every_type(dev, ns):
    x = base(dev)
    seen = []

    @library.custom_op(f"{ns}::f", mutates_args=(), device_types=dev)
    def f(
        x: Tensor,
        y: Tensor | None,
        many: list[Tensor],
        i: int,
        fl: float,
        b: bool,
        s: str,
        ints: Sequence[int],
        floats: list[float],
        bools: list[bool],
        n: torch.types.Number,
        dtype: torch.dtype,
        device: torch.device,
        oi: int | None = None,
        os: str | None = "a",
        ot: Tensor | None = None,
        *,
        k: int = 3,
        kf: float | None = None,
    ) -> Tensor:
        seen.append(
            [
                y,
                many,
                i,
                fl,
                b,
                s,
                ints,
                floats,
                bools,
                n,
                dtype,
                str(device.type == dev),
                oi,
                os,
                ot,
                k,
                kf,
            ]
        )
        return (x if y is None else x + y) * k + sum(each.sum() for each in many)

    found = [
        f(
            x,
            None,
            [x, x],
            1,
            2.0,
            True,
            "s",
            [1, 2],
            [1.0],
            [True],
            3,
            torch.float16,
            torch.device(dev),
        ),
        f(
            x,
            x,
            [],
            1,
            2,
            True,
            "s",
            (1, 2),
            (1.0,),
            (),
            3.5,
            torch.float16,
            dev,
            3,
            None,
            x,
            k=4,
            kf=2.0,
        ),
        attempt(
            f, x, None, [x, None], 1, 2.0, True, "s", [1, 2], [1.0], [True], 3, torch.float16, dev
        ),
        attempt(f, x, None, [x], "1", 2.0, True, "s", [1, 2], [1.0], [True], 3, torch.float16, dev),
        attempt(
            f, x, None, [x], 1, 2.0, True, "s", [1, 2], [1.0], [True], 3, torch.float16, dev, j=1
        ),
    ]
    return found, seen


@CASES.add
def outputs_of_every_kind(dev, ns):
    x = base(dev)
    calls = []

    def define(name, function):
        f = library.custom_op(f"{ns}::{name}", function, mutates_args=(), device_types=dev)
        calls.append(attempt(f, x))
        leaf = x.clone().requires_grad_()
        calls.append(attempt(f, leaf))
        calls.append(
            attempt(
                f.register_autograd,
                lambda ctx, *g: sum(each for each in g if isinstance(each, Tensor)) * 2,
            )
        )
        leaf = x.clone().requires_grad_()
        made = attempt(f, leaf)
        if isinstance(made, Tensor):
            made.sum().backward()
        elif isinstance(made, tuple):
            made[0].sum().backward()
        calls.append([made, leaf.grad])

    def none(x: Tensor) -> None:
        x.sum()

    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x - 1

    def number(x: Tensor) -> int:
        return int(x.sum().item())

    def fraction(x: Tensor) -> float:
        return x.sum().item()

    def truth(x: Tensor) -> bool:
        return bool(x.sum() > 0)

    def mixed(x: Tensor) -> tuple[Tensor, int, float]:
        return x + 1, 2, 3.0

    for function in (none, pair, number, fraction, truth, mixed):
        define(function.__name__, function)

    def many(x: Tensor) -> list[Tensor]:
        return [x + 1, x - 1]

    f = library.custom_op(f"{ns}::many", many, mutates_args=(), device_types=dev)
    calls.append(f(x))
    f.register_autograd(lambda ctx, g: sum(g))
    leaf = x.clone().requires_grad_()
    y = f(leaf)
    y[0].sum().backward()
    calls.append([y, leaf.grad])
    return calls


@CASES.add
def mutations_by_composites(dev, ns):
    return mutations(dev, ns, None)


@CASES.add
def mutations_by_kernels_for_the_device(dev, ns):
    return mutations(dev, ns, dev)


def mutations(dev, ns, types):
    def one(x: Tensor) -> None:
        x.add_(1)

    def two(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.add_(1)
        y.mul_(2)
        return x + y + z

    def unknown(x: Tensor, ys: list[Tensor]) -> None:
        x.add_(1)
        ys[0].zero_()

    def optional(x: Tensor | None) -> None:
        if x is not None:
            x.add_(1)

    def define(function, names):
        name = f"{ns}::{function.__name__}"
        return library.custom_op(name, function, mutates_args=names, device_types=types)

    def state():
        return [[each.tolist(), each._version] for each in (x, y, z, view)]

    f, g = define(one, {"x"}), define(two, ("x", "y"))
    h, o = define(unknown, "unknown"), define(optional, ["x"])
    x, y, z = base(dev), base(dev), base(dev)
    view = x[1]
    found = [[f(each), state()] for each in (x, view, x.t(), x[::2, ::2])]
    found += [g(x, y, z), state(), h(x, [y, z]), state(), o(x), state()]
    found += [type(attempt(o, None)).__name__, attempt(f.register_autograd, lambda ctx, g: g)]
    leaf, w = base(dev).requires_grad_(), base(dev).requires_grad_()
    found += [attempt(f, leaf), attempt(f, leaf * 1), attempt(f, leaf.detach()), leaf.tolist()]
    s = w.exp()
    t = (s * s).sum()
    f(s.detach())
    found += [attempt(t.backward)]
    with torch.no_grad():
        found += [f(leaf), leaf, leaf._version]
    with torch.inference_mode():
        q = base(dev)
        found += [f(q), q]
    c = torch.complex(base(dev), base(dev)).conj()
    found += [attempt(f, c), torch.view_as_real(c.resolve_conj())]
    with torch.autocast(dev, torch.bfloat16):
        found += [f(x), x]
    return found


@CASES.add
def tags_of_in_place_and_out(dev, ns):
    if not hasattr(torch.Tag, "inplace"):
        return []

    def add_(x: Tensor, k: float) -> Tensor:
        return x.add_(k)

    def into(x: Tensor, *, out: Tensor) -> Tensor:
        out.copy_(x * 2)
        return out

    x, o = base(dev), base(dev)
    f = attempt(
        library.custom_op,
        f"{ns}::add_",
        add_,
        mutates_args={"x"},
        device_types=dev,
        tags=torch.Tag.inplace,
    )
    g = attempt(
        library.custom_op,
        f"{ns}::into",
        into,
        mutates_args={"out"},
        device_types=dev,
        tags=torch.Tag.out,
    )
    if isinstance(f, Exception) or isinstance(g, Exception):
        return f, g
    b = library.custom_op(
        f"{ns}::bad_",
        lambda x, k: x + k,
        mutates_args={"x"},
        device_types=dev,
        tags=torch.Tag.inplace,
        schema="(Tensor(a!) x, float k) -> Tensor(a!)",
    )
    return [
        f(x, 2.0),
        f(x, 2.0) is x,
        x,
        g(x, out=o),
        g(x, out=o) is o,
        o,
        attempt(b, x, 1.0),
        attempt(g, x.requires_grad_(), out=o),
        x._version,
        o._version,
    ]


@CASES.add
def schemas_given(dev, ns):
    x = base(dev)
    f = library.custom_op(
        f"{ns}::f",
        lambda x, k=2: x * k,
        mutates_args=(),
        schema="(Tensor x, int k=2) -> Tensor",
        device_types=dev,
    )
    bad = attempt(
        library.custom_op,
        f"{ns}::g",
        lambda x: x,
        mutates_args=(),
        schema="(Tensor(a!) x) -> Tensor",
        device_types=dev,
    )
    no = attempt(library.custom_op, f"{ns}::h", lambda x: x, mutates_args=())
    kw = attempt(
        library.custom_op,
        f"{ns}::i",
        lambda x, *, y: x,
        mutates_args=(),
        schema="(Tensor x, *, Tensor y) -> Tensor",
    )
    missing = attempt(
        library.custom_op,
        f"{ns}::j",
        lambda x: x,
        mutates_args=("z",),
        schema="(Tensor x) -> Tensor",
    )
    return [
        f(x),
        f(x, 3),
        f(x, k=4),
        bad,
        no,
        kw,
        missing,
        library.infer_schema(twice, mutates_args=()),
        str(getattr(torch.ops, ns).f.default._schema),
    ]


@CASES.add
def factories(dev, ns):
    @library.custom_op(f"{ns}::f", mutates_args=(), device_types=dev)
    def f(n: int, device: torch.device) -> Tensor:
        return torch.ones(n, device=device)

    @library.custom_op(f"{ns}::g", mutates_args=())
    def g(n: int) -> Tensor:
        return torch.ones(n, device=dev)

    other = "cuda" if dev == "cpu" else "cpu"
    return [
        f(3, dev),
        f(3, torch.device(dev)),
        g(2),
        type(attempt(f, 3, "meta")).__name__,
        attempt(
            library.custom_op,
            f"{ns}::h",
            lambda n: n,
            mutates_args=(),
            schema="(int n) -> int",
            device_types=dev,
        ),
        type(attempt(f, 3, other)).__name__,
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_custom_op_works_as_for_host_tensors(name):
    assert CASES.found_by(name, "cuda") == CASES.found_by(name, "cpu")
