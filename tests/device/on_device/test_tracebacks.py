"""What a traceback shows: the notebook's lines and torch's, never this package's."""

import dis
import importlib
import sys
import traceback
from pathlib import Path
from types import FunctionType

import processes
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Bernoulli, Normal
from torch.utils.checkpoint import checkpoint

from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import is_unseen, seam, unseen

OURS = f"{Path(sys.modules['jgpu'].__file__).parent}/"


def _raise(*args):
    raise ValueError("mine")


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("mine")


def hooked(device):
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    y.register_hook(_raise)
    y.sum().backward()


def wrong_function(device):
    _Fails.apply(torch.ones(3, device=device, requires_grad=True)).sum().backward()


def twice_backward(device):
    loss = (torch.ones(3, device=device, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def in_place_on_a_leaf(device):
    torch.ones(3, device=device, requires_grad=True).add_(1)


def recomputed(device):
    x = torch.ones(3, 2, device=device, requires_grad=True)
    checkpoint(lambda x: x @ x, x, use_reentrant=False)


#: mistakes that natively raise from torch's C++, on the CPU as on the device
MISTAKES = {
    "matmul": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "broadcast": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "view": lambda d: torch.ones(6, device=d).view(4),
    "reshape": lambda d: torch.ones(6, device=d).reshape(5, -1),
    "cat": lambda d: torch.cat([torch.ones(1, 2, device=d), torch.ones(1, 3, device=d)]),
    "select": lambda d: torch.ones(3, device=d)[5],
    "index": lambda d: torch.ones(3, device=d)[torch.tensor([0, 1], device=d), 0],
    "linear": lambda d: nn.Linear(4, 2).to(d)(torch.ones(2, 3, device=d)),
    "convolution": lambda d: nn.Conv2d(3, 4, 3).to(d)(torch.ones(1, 1, 8, 8, device=d)),
    "mse": lambda d: F.mse_loss(torch.ones(3, 4, device=d), torch.ones(5, 4, device=d)),
    "cross entropy": lambda d: F.cross_entropy(
        torch.ones(3, 4, device=d), torch.zeros(2, dtype=torch.long, device=d)
    ),
    "embedding of floats": lambda d: nn.Embedding(4, 2).to(d)(torch.ones(3, device=d)),
    "lstm": lambda d: nn.LSTM(4, 3).to(d)(torch.ones(5, 2, 3, device=d)),
    "batch norm": lambda d: nn.BatchNorm1d(4).to(d)(torch.ones(2, 3, device=d)),
    "squeeze": lambda d: torch.ones(2, device=d).squeeze(3),
    "item of many": lambda d: torch.ones(2, device=d).item(),
    "truth of many": lambda d: bool(torch.ones(2, device=d) > 0),
    "float of many": lambda d: float(torch.ones(2, device=d)),
    "numpy with a gradient": lambda d: torch.ones(2, device=d, requires_grad=True).numpy(),
    "backward of many": lambda d: torch.ones(2, device=d, requires_grad=True).backward(),
    "backward twice": twice_backward,
    "in place on a leaf": in_place_on_a_leaf,
    "no gradient": lambda d: torch.ones((), device=d).backward(),
    "negative size": lambda d: torch.zeros(-1, device=d),
    "wrong keyword": lambda d: torch.zeros(1, device=d, shape=3),
    "a hook": hooked,
    "an own function": wrong_function,
    "recomputation": recomputed,
    "sparse": lambda d: torch.sparse_coo_tensor(
        [[5]], [1.0], (3,), device=d, check_invariants=True
    ),
    "integers": lambda d: torch.ones(3, device=d, dtype=torch.long).mean(),
    "drawn wrongly": lambda d: torch.zeros(2, device=d).normal_(0, -1),
    "like nothing": lambda d: torch.ones_like(torch.zeros(2, device=d), shape=3),
    "to nowhere": lambda d: torch.zeros(2, device=d).to("nowhere"),
    "uneven numbers": lambda d: torch.tensor([[1, 2], [3]], device=d),
    "a distribution": lambda d: Normal(torch.zeros(2, device=d), -torch.ones(2, device=d)),
    "a score": lambda d: Bernoulli(torch.ones(2, device=d)).log_prob(torch.ones(2, device=d) + 1),
    "generator": lambda d: torch.Generator(d).set_state("x"),
    "out": lambda d: torch.add(
        torch.ones(3, device=d), 1, out=torch.ones(3, dtype=torch.long, device=d)
    ),
    "inverse": lambda d: torch.linalg.inv(torch.ones(2, 3, device=d)),
    "dim twice": lambda d: torch.ones(2, 2, device=d).permute(0, 0),
}


def caught(call, device):
    with pytest.raises(Exception) as info:  # noqa: PT011 - each mistake has its own
        call(device)
    return info.value


def lines_of(error):
    """(file, function) of each entry, the tests' own `caught` left out."""
    return [(e.filename, e.name) for e in traceback.extract_tb(error.__traceback__)][1:]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows_no_more_than_natively(name):
    native = caught(MISTAKES[name], "cpu")
    ours = caught(MISTAKES[name], "cuda")
    shown = lines_of(ours)
    assert not [entry for entry in shown if entry[0].startswith(OURS)]
    left = iter(lines_of(native))
    assert all(entry in left for entry in shown), "a line that is not there natively"
    assert ours.__context__ is None
    assert ours.__cause__ is None
    assert "During handling" not in "".join(traceback.format_exception(ours))


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(3, device="cuda").numpy(),
        lambda: torch.ones(3, device="cuda:3"),
        lambda: torch.ones(3).to("cuda:1"),
        lambda: torch.ones(3).cuda(1),
        lambda: nn.Linear(2, 2).cuda(1),
        lambda: torch.cuda.set_device(4),
        lambda: torch.cuda.get_device_name(7),
        lambda: torch.ones(5, device="cuda")[torch.tensor([7], device="cuda")].cpu(),
        lambda: torch.ones(3, device="cuda").__dlpack__(),
        lambda: torch.Generator("cuda:1"),
        lambda: torch.cuda.Stream(device=2),
        lambda: torch.cuda.graph(None),
        lambda: torch.quantize_per_tensor(torch.ones(2, device="cuda"), 0.1, 0, torch.qint8),
        lambda: torch.linalg.cholesky(-torch.eye(2, device="cuda")),
    ],
)
def test_what_only_a_device_refuses_shows_the_notebooks_line_alone(call):
    with pytest.raises(Exception) as info:  # noqa: PT011 - each refusal has its own
        call()
    files = {entry.filename for entry in traceback.extract_tb(info.value.__traceback__)}
    assert not [file for file in files if file.startswith(OURS)]
    assert info.value.__context__ is None


def test_what_the_notebook_was_handling_stays_the_context():
    def handle(device):
        try:
            {}["key"]
        except KeyError:
            return torch.ones(2, device=device) + torch.ones(3, device=device)

    error = caught(handle, "cuda")
    assert isinstance(error.__context__, KeyError)
    assert "During handling" in "".join(traceback.format_exception(error))


def test_a_hook_of_the_notebook_is_shown():
    error = caught(hooked, "cuda")
    assert lines_of(error)[-1] == (__file__, "_raise")


SHOWS = (
    "import torch, traceback\n"
    "try: torch.ones(2, device='cuda') + torch.ones(3, device='cuda')\n"
    "except RuntimeError: traceback.print_exc()\n"
)


@pytest.mark.parametrize(("setting", "shown"), [("", False), ("0", False), ("1", True)])
def test_a_setting_shows_everything(setting, shown, monkeypatch):
    monkeypatch.setenv("JGPU_FULL_TRACEBACKS", setting)
    done = processes.run(
        [sys.executable, "-c", SHOWS], capture_output=True, text=True, timeout=60, check=True
    )
    assert "RuntimeError: The size of tensor a (2)" in done.stderr
    assert (OURS in done.stderr) is shown


#: called by torch's C++ alone, or never raise for a notebook
_EXEMPT = {
    ("entry.py", "torch_dispatch"),  # takes its own frame out
    ("registration.py", "find"),
    ("patches.py", "find"),
    ("face.py", "<lambda>"),
    ("alias.py", "make"),
    ("rng.py", "make"),
    ("streams.py", "make"),
}


@pytest.mark.filterwarnings("ignore")
def test_whatever_torch_was_given_takes_its_frames_out():
    for name in ("torch.distributed.optim", "torch.nn.parallel.comm", "torch.export"):
        importlib.import_module(name)
    found = {}
    for owner in list(_owners()):
        for name, value in list(vars(owner).items()):
            for function in _functions(value):
                code = function.__code__
                if code.co_filename.startswith(OURS) and not is_unseen(function):
                    where = (Path(code.co_filename).name, code.co_name)
                    if where not in _EXEMPT and _may_raise(code):
                        found.setdefault(where, []).append(f"{owner.__name__}.{name}")
    assert found == {}


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_takes_its_own_frame_out_says_so_in_its_code():
    silent = set()
    for owner in list(_owners()):
        for value in list(vars(owner).values()):
            for function in _functions(value):
                code = function.__code__
                is_seam = code.co_filename.startswith(OURS) and is_unseen(function)
                if is_seam and not {"hide", "_getframe"} <= set(code.co_names):
                    silent.add((code.co_filename, code.co_qualname))
    assert silent == set()


def test_a_function_that_takes_its_own_frame_out_is_wrapped_no_more():
    @seam
    def ours():
        return 1

    assert unseen(ours) is ours
    assert is_unseen(ours)


def _owners():
    yield DeviceTensor
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and module is not None:
            yield module
            yield from (v for v in list(vars(module).values()) if isinstance(v, type))


def _functions(value):
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if isinstance(f, FunctionType)]
    return [value] if isinstance(value, FunctionType) and value is not is_unseen else []


def _may_raise(code):
    return any(i.opname.startswith(("CALL", "RAISE")) for i in dis.get_instructions(code))
