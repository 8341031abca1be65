"""The steps: each does on the device what it does on the host, and compares to the last bit.

Chosen by what jgpu leans on that torch promises nobody: the backend in Python, the engine's
wrapper, contents that are swapped, stand-ins, patched functions. What torch's ops compute is the
executor's torch's own affair, so one of each kind is enough. Three runs where programs repeat: the
third is compiled.
"""

import copy
import io
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from jgpu.device.activate import activate
from jgpu.device.client.transport import Transport

__all__ = ["STEPS", "begin"]

_Step = Callable[[], None]
STEPS: Final[list[_Step]] = []
#: host, then device
_BOTH: Final = ("cpu", "cuda")


def begin(connect: Callable[[], Transport]) -> None:
    """Turn `cuda` into the device that `connect` leads to; asks for it once."""
    torch.set_num_threads(1)
    activate(connect)
    _sure(torch.cuda.is_available(), "torch.cuda.is_available() says no")
    _sure(torch.cuda.device_count() == 1, "there is not one device")
    made = torch.ones(2, device="cuda")
    _sure(made.is_cuda and str(made.device) == "cuda:0", f"a tensor is on {made.device}")


def _step(function: _Step) -> _Step:
    STEPS.append(function)
    return function


def _sure(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _same(make: Callable[[str], Any], runs: int = 1) -> None:
    """What `make` returns of the host and of the device is the same, bit for bit."""
    for run in range(1, runs + 1):
        found = []
        for device in _BOTH:
            torch.manual_seed(run)
            found.append([each.detach().cpu() for each in _tensors(make(device))])
        native, ours = found
        _sure(len(native) == len(ours), "the device returns more or less than the host")
        for at, (one, other) in enumerate(zip(native, ours, strict=True)):
            what = f"result {at} of run {run} differs from the host's"
            _sure(one.dtype == other.dtype and one.shape == other.shape, f"{what} in its form")
            _sure(torch.equal(one, other), what)


def _tensors(made: Any) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else list(made)


def _raises(kind: type[BaseException], call: Callable[[], Any], says: str = "") -> None:
    """`says` only where the words are not torch's, which may choose others."""
    try:
        call()
    except kind as error:
        _sure(says in str(error), f"an error says {str(error)!r} instead of {says!r}")
        return
    raise ValueError(f"no {kind.__name__} where there has to be one")


class _Net(nn.Module):
    """A layer of each family that torch treats in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.convolve = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.attend = nn.Linear(8, 24)
        self.out = nn.Linear(8, 11)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x, _ = self.recurrent(self.embed(words))
        q, k, v = self.attend(x).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = attended.transpose(1, 2).reshape(2, 6, 8)
        x = self.norm(self.convolve(x.transpose(1, 2))).relu()
        logits: torch.Tensor = self.out(x.transpose(1, 2))
        return logits


@_step
def ops_and_views() -> None:
    """Dispatch, views, ops in place, what has sizes that only the run tells."""

    def make(device: str) -> Any:
        x = torch.arange(12.0).to(device).view(3, 4)
        x.t()[1:3].mul_(2.0)
        x[:, ::2] += x.new_ones(3, 2)
        grown = torch.empty(0, device=device)
        torch.cat([x[0], x[1] @ x.t()], out=grown)
        return x, grown, x.sum(dim=0, keepdim=True), x[x > 4], torch.topk(x, 2)[1]

    _same(make, runs=3)
    x = torch.arange(3.0).cuda()
    _sure(x[2].item() == 2.0 and bool(x.any()), "a value of the device is wrong")


@_step
def random_numbers() -> None:
    """The seed, generators, their states."""

    def make(device: str) -> Any:
        state = (torch.cuda if device == "cuda" else torch.random).get_rng_state()
        generator = torch.Generator(device).manual_seed(3)
        made = [torch.rand(5, device=device), torch.randperm(9, device=device)]
        made.append(torch.randn(5, device=device, generator=generator))
        _sure(state.dtype == torch.uint8, "a generator's state is no bytes")
        return made

    _same(make, runs=3)
    x = torch.ones(64, device="cuda", requires_grad=True)
    kept = nn.functional.dropout(x, 0.5)
    kept.sum().backward()
    _sure(set(kept.tolist()) == {0.0, 2.0}, "dropout gives other values than 0 and 2")
    _sure(x.grad is not None and torch.equal(x.grad, kept), "dropout's gradient is not its mask")


@_step
def training() -> None:
    """Modules moved with their identity, backward, an optimizer made before; three steps."""

    def make(device: str) -> Any:
        net = _Net()
        net.out.weight = nn.Parameter(net.out.weight.detach().clone())
        before = [id(each) for each in net.parameters()]
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True)
        net.to(device)
        _sure(before == [id(each) for each in net.parameters()], "moving made new parameters")
        words = torch.arange(12).remainder(11).view(2, 6).to(device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(words).flatten(0, 1), words.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *net.state_dict().values()]

    _same(make, runs=2)


@_step
def errors_inside_backward() -> None:
    """A hook that raises, an op that is refused, an error of a Function: the process lives."""
    x = torch.ones(3, device="cuda", requires_grad=True)

    def refuse(gradient: torch.Tensor) -> None:
        raise KeyError("of a hook")

    def hooked() -> None:
        y = x * 2
        y.register_hook(refuse)
        y.sum().backward()

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return given.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient @ gradient.new_ones(4, 4)

    def applied() -> None:
        wrong: Any = Wrong.apply
        wrong(x).sum().backward()

    for _ in range(2):
        _raises(KeyError, hooked, "of a hook")
        _raises(RuntimeError, applied)
    x.grad = None
    (x * 3).sum().backward()
    _sure(x.grad is not None and x.grad.tolist() == [3.0] * 3, "backward is wrong after an error")


@_step
def errors_on_their_line() -> None:
    """What shapes tell raises at once, and values where they are waited for."""
    x = torch.ones(2, 3, device="cuda")
    _raises(RuntimeError, lambda: x @ x)
    _raises(IndexError, lambda: x[torch.tensor([5], device="cuda")].tolist())
    _raises(RuntimeError, lambda: x + torch.ones(2, 3))


@_step
def autocast() -> None:
    """Products in half, losses in full, gradients in the parameters' own type."""
    layer = nn.Linear(4, 4).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        made = layer(torch.ones(2, 4, device="cuda"))
        _sure(made.dtype is torch.bfloat16, f"a product under autocast is {made.dtype}")
        loss = nn.functional.mse_loss(made, torch.zeros_like(made))
    _sure(loss.dtype is torch.float32, f"a loss under autocast is {loss.dtype}")
    scaler: Any = torch.amp.GradScaler("cuda")
    scaler.scale(loss).backward()
    gradient = layer.weight.grad
    _sure(gradient is not None and gradient.dtype is torch.float32, "a gradient has another type")


@_step
def transforms_of_functions() -> None:
    """torch.func: gradients, and batches of them."""

    def make(device: str) -> Any:
        x = torch.arange(6.0).view(2, 3).to(device)
        of_each = torch.func.vmap(torch.func.grad(lambda row: (row.sin() * row).sum()))
        return of_each(x), torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))[1]

    _same(make)


@_step
def saving_and_loading() -> None:
    """state_dict by file, copies, tensors by pickle, contents by storage."""

    def make(device: str) -> Any:
        net = _Net().to(device)
        copied = copy.deepcopy(net)
        file = io.BytesIO()
        torch.save(net.state_dict(), file)
        file.seek(0)
        there = torch.load(file, map_location=device, weights_only=True)
        with torch.no_grad():
            net.out.bias.zero_()
        net.load_state_dict(there)
        return [*net.state_dict().values(), *copied.state_dict().values()]

    _same(make)
    file = io.BytesIO()
    torch.save(torch.arange(3).cuda(), file)
    file.seek(0)
    loaded = torch.load(file)
    _sure(loaded.is_cuda and loaded.tolist() == [0, 1, 2], "a saved tensor loads otherwise")
    _sure(loaded.untyped_storage().nbytes() == 24, "a storage has another size")


@_step
def the_face_of_cuda() -> None:
    """Names of torch.cuda that stand for the device, and those that refuse."""
    x = torch.ones(2, device="cuda")
    _sure(bool(torch.cuda.get_device_name()), "the device has no name")
    _sure(torch.cuda.memory_allocated() > 0, "no memory is counted")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
    torch.cuda.synchronize()
    cuda: Any = torch.cuda
    _raises(RuntimeError, lambda: cuda.use_mem_pool(None), "memory pools")
    with torch.device("cuda"):
        _sure(torch.zeros(1).is_cuda, "a default device is not heard")
    _sure(type(copy.copy(x)) is type(x) and "device='cuda:0'" in repr(x), f"printed as {x!r}")
