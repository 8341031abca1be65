"""Where a program computes: with a seat, on the GPU itself, or eagerly by the host's kernels.

The last is the judge of the device that is computed on the host. There torch chooses, above what a
kernel sees, what it chooses for the CPU; the functions below choose what it chooses for CUDA.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

#: the generator of the host's kernels, where they compute
_generator: Any = None
#: how the default generator's state is had and set
_state: tuple[Callable[[], Any], Callable[[Any], Any]]
_state = torch.cuda.get_rng_state, torch.cuda.set_rng_state


@contextlib.contextmanager
def computing(how: str) -> Iterator[torch.device]:
    """The device of a program that runs "shared", "native" or "eager", or on the "cpu"."""
    global _generator, _state
    if how == "cpu":
        _state = torch.get_rng_state, torch.set_rng_state
    if how != "eager":
        yield torch.device("cpu" if how == "cpu" else "cuda")
        return
    from jgpu.broker.executor.devices.onhost.eager import Eagerly
    from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator

    _generator = PhiloxGenerator()
    _state = _generator.get_state, _generator.set_state
    _choose_as_cuda()
    with Eagerly(_generator):
        yield torch.device("cpu")


def host() -> contextlib.AbstractContextManager[Any]:
    """Around what is the host's own in any case: weights and batches before they are sent."""
    if _generator is None:
        return contextlib.nullcontext()
    return _disable_current_modes()


def seed(number: int) -> None:
    """Begin all random numbers anew, the host's and the device's."""
    torch.manual_seed(number)
    if _generator is not None:
        _generator.manual_seed(number)


def generator(device: torch.device, number: int) -> Any:
    """A generator of the device's."""
    if _generator is None:
        return torch.Generator(device).manual_seed(number)
    return type(_generator)().manual_seed(number)


def state() -> torch.Tensor:
    """The state of the device's default generator."""
    found: torch.Tensor = _state[0]()
    return found


def set_state(kept: torch.Tensor) -> None:
    """Have it as it was."""
    _state[1](kept)


def digest(*tensors: torch.Tensor) -> str:
    """Of all bytes, with types and shapes."""
    found = hashlib.sha256()
    for tensor in tensors:
        host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        found.update(f"{host.dtype} {tuple(host.shape)}".encode())
        found.update(host.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def serve(main: Callable[..., Any]) -> None:
    """Run `main(device, *arguments)` as the command line says, and print what it returns."""
    how, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    with computing(how) as device:
        found = main(device, *arguments)
    print(json.dumps(found))


# -- what torch chooses for CUDA -----------------------------------------------------------------


def _choose_as_cuda() -> None:
    cuda: Any = torch.cuda
    cuda.synchronize = lambda device=None: None
    functional: Any = F
    functional.dropout = _dropout
    functional.scaled_dot_product_attention = _attention
    whole: Any = torch
    whole.batch_norm = _batch_norm
    for mode, name in enumerate(("rnn_relu", "rnn_tanh", "lstm", "gru")):
        setattr(torch._VF, name, _recurrent(mode))


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0:
        return x
    assert not inplace
    return torch.native_dropout(x, p, True)[0]


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    assert not enable_gqa
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        nothing = torch.full((), -torch.inf, dtype=query.dtype)
        attn_mask = torch.where(attn_mask, torch.zeros((), dtype=query.dtype), nothing)
    if attn_mask is not None:
        batch, heads, rows = query.shape[:3]
        attn_mask = attn_mask.expand(batch, heads, rows, key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale
    )[0]


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float, enabled: bool,
) -> Any:  # fmt: skip
    if x.dim() > 2 and training:
        return torch.cudnn_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]
    return torch.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]


def _recurrent(mode: int) -> Callable[..., Any]:
    def layers(
        x: Any, hx: Any, weights: Any, biases: bool, count: int, dropout: float, train: bool,
        both: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        hidden, cell = hx if isinstance(hx, (tuple, list)) else (hx, None)
        size = weights[1].shape[1]
        if batch_first:
            x = x.transpose(0, 1)
        noise = None
        if train and dropout:
            place = torch.empty((), dtype=torch.int64).random_()
            noise = torch.ops.aten._cudnn_init_dropout_state(dropout, train, int(place),
                                                            dtype=torch.uint8)  # fmt: skip
        out, hidden, cell, _, _ = torch._cudnn_rnn(
            x.contiguous(), weights, 4 if biases else 2, None, hidden, cell, mode, size, 0, count,
            False, dropout, train, both, [], noise,
        )  # fmt: skip
        if batch_first:
            out = out.transpose(0, 1)
        return (out, hidden, cell) if mode == 2 else (out, hidden)

    return layers
