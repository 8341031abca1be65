"""What ops of a library give for host and for device tensors, in many contexts of a call.

`Cases` collects functions that define ops in a namespace of their own, call them, and return what
they found. Both devices must find the same values, gradients, warnings and errors.
"""

import copy
import re
import warnings

import torch
from torch import Tensor, nn

__all__ = ["Cases", "attempt", "base", "contexts", "key_of", "library_with", "op_of", "twice"]

#: warnings that torch gives once in a process
_ONCE = re.compile("Warning only once|`torch.jit.script` is deprecated")


class Cases(dict):
    """The cases of a file, by name."""

    def add(self, function):
        """Decorator of a function of a device's kind and a namespace."""
        self[function.__name__] = function
        return function

    def found_by(self, name, dev):
        """What a case finds on a kind of device, described."""
        ns = f"jgpu_{name}_{dev}"
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = self[name](dev, ns)
        texts = [str(each.message).partition("\n")[0] for each in warned]
        return _described([found, [text for text in texts if not _ONCE.match(text)]], dev, ns)


def _described(value, dev, ns):
    """What a case found, without the names of the device and the namespace."""
    if isinstance(value, Tensor):
        values = None if value.is_meta else value.detach().cpu().tolist()
        place = "there" if value.device.type == dev else value.device.type
        node = value.grad_fn and _plain(type(value.grad_fn).__name__, ns)
        return place, value.dtype, value.stride(), value.requires_grad, node, str(values)
    if isinstance(value, BaseException):
        # the device has classes of its own, which are native classes, too
        native = next(cls for cls in type(value).__mro__ if not cls.__module__.startswith("jgpu"))
        return native.__name__, _plain(str(value).partition("\n")[0], ns)
    if isinstance(value, str):
        return _plain(value, ns)
    if isinstance(value, list | tuple):
        return type(value).__name__, [_described(each, dev, ns) for each in value]
    if isinstance(value, dict):
        return {key: _described(each, dev, ns) for key, each in value.items()}
    return value


def _plain(text, ns):
    """A text without what differs between devices and between namespaces."""
    text = text.replace(ns, "NAMESPACE").replace("torch.cuda.", "torch.")
    return re.sub("PrivateUse1|CUDA|CPU|cuda:0|cuda|cpu", "DEVICE", text)


def attempt(function, *args, **kwargs):
    """What a call returns or raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


def key_of(dev):
    return "CUDA" if dev == "cuda" else "CPU"


def base(dev):
    return torch.arange(9.0, device=dev).view(3, 3) / 4 - 1


def twice(x: Tensor) -> Tensor:
    return x * 2 + x @ torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def library_with(ns, schema="f(Tensor x) -> Tensor", kind="DEF"):
    lib = torch.library.Library(ns, kind)
    lib.define(schema)
    return lib


def op_of(ns, name="f"):
    """The op of a namespace."""
    return getattr(getattr(torch.ops, ns), name)


def contexts(f, dev, x):
    """What calls of a function of one tensor give, wherever they are made."""
    found = {}

    def note(name, call):
        found[name] = attempt(call)

    def gradient():
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        y = y if isinstance(y, Tensor) else y[0]
        y.sum().backward()
        return y, leaf.grad

    def double():
        leaf = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)
        g.sum().backward()
        return g, leaf.grad

    def no_grad():
        leaf = x.clone().requires_grad_()
        with torch.no_grad():
            return f(leaf)

    def inference():
        with torch.inference_mode():
            y = f(x.clone())
            return [y, y.is_inference()]

    def inference_outside():
        leaf = x.clone().requires_grad_()
        with torch.inference_mode():
            return f(leaf)

    def autocast():
        with torch.autocast(dev, torch.bfloat16):
            return f(x)

    def autocast_gradient():
        with torch.autocast(dev, torch.bfloat16):
            return gradient()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x):
            return f(x * self.w)

    def module():
        net = Net().to(dev)
        other = copy.deepcopy(net)
        y = net(x) + other(x)
        y.sum().backward()
        return y, net.w.grad, other.w.grad

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names += (str(func),)
            return func(*args, **(kwargs or {}))

    def mode():
        with Mode() as seen:
            y = f(x)
        return y, [each for each in seen.names if "aten" not in each]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return f(x).clone()

        @staticmethod
        def backward(ctx, grad):
            return f(ctx.saved_tensors[0]) * grad

    def inside_function():
        leaf = x.clone().requires_grad_()
        y = Function.apply(leaf)
        y.sum().backward()
        return y, leaf.grad

    def checkpoint():
        leaf = x.clone().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(f, leaf, use_reentrant=False)
        y.sum().backward()
        return y, leaf.grad

    def jvp():
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(
                f(torch.autograd.forward_ad.make_dual(x, x))
            )[1]

    note("plain", lambda: f(x))
    note("transposed", lambda: f(x.t()))
    note("view", lambda: f(x[1:]))
    note("empty", lambda: f(x[:0]))
    note("double", lambda: f(x.double()))
    note("integers", lambda: f(x.long()))
    note("conjugate", lambda: f(torch.complex(x, x).conj()))
    note("parameter", lambda: f(nn.Parameter(x)))
    note("gradient", gradient)
    note("gradient twice", double)
    note("no_grad", no_grad)
    note("inference_mode", inference)
    note("inference_mode of a leaf", inference_outside)
    note("autocast", autocast)
    note("autocast, gradient", autocast_gradient)
    note("vmap", lambda: torch.func.vmap(f)(x))
    note("func.grad", lambda: torch.func.grad(lambda x: f(x).sum())(x))
    note("func.jacrev", lambda: torch.func.jacrev(f)(x))
    note("jvp", jvp)
    note("module", module)
    note("mode", mode)
    note("in a Function", inside_function)
    note("checkpoint", checkpoint)
    note("meta", lambda: f(x.to("meta")).shape)
    note("no tensor", lambda: f(3))
    note("nothing", lambda: f())
    return found
