"""Launch ops: geometry is inferred at once, values are computed later on the op's stream.

A launch returns shadows as results, with the geometry of torch's meta kernels; a task on the
current stream computes them (`tasks`). A random op takes its place in the generator's sequence at
the launch. Launches wait where CUDA waits: for values that decide a size or that the host reads.

A trial compares each meta kernel with the kernel once (`trials`); where they differ, the launch
waits and takes the kernel's result. A kernel that refuses sizes, types or numbers does so
at the launch. Once an op is on its stream, an error of its kernel is an assert on the device.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import local
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator, found_in, standing
from jgpu.broker.executor.devices.onhost.kernels import DRAWS, KERNELS, DeviceAssert, Philox
from jgpu.broker.executor.devices.onhost.shadows import Shadows, is_shadow
from jgpu.broker.executor.devices.onhost.streams import HostStream, HostStreams
from jgpu.broker.executor.devices.onhost.tasks import HostCall, Op, is_out
from jgpu.broker.executor.devices.onhost.trials import (
    Strides,
    attempt,
    is_small,
    key_of,
    laid_out,
    refused_whatever_values,
    shaped,
)
from jgpu.broker.executor.programs.checking.waiting import waits_for_its_stream
from jgpu.broker.executor.programs.lazybits import lazy_bits

__all__ = ["Launcher", "Launching"]

_META: Final = torch.device("meta")
_HOST: Final = torch.device("cpu")
_EFFICIENT: Final = torch.ops.aten._scaled_dot_product_efficient_attention.default
#: ops that only lay out bytes, without reading or writing any
_LAYS_OUT: Final = ("empty", "new_empty", "set_", "resize")
#: calls of which a trial is remembered
_MOST: Final = 4096


class Launcher:
    """Puts ops on streams; any thread, each with its own stream."""

    def __init__(self, streams: HostStreams, shadows: Shadows) -> None:
        self.streams = streams
        self.shadows = shadows
        self._of_thread = local()
        #: by op and geometries: what a trial of the kernel gave
        self._tried: OrderedDict[Any, Strides | None] = OrderedDict()

    @property
    def stream(self) -> HostStream:
        """The stream of this thread's ops."""
        found: HostStream = self._of_thread.stream
        return found

    def set_stream(self, stream: HostStream) -> None:
        """Set the stream of this thread's ops."""
        self._of_thread.stream = stream

    def launch(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what calling the op on the device would."""
        leaves = tree_leaves((args, kwargs))
        if not any(is_shadow(leaf) or leaf == _META for leaf in leaves):
            return op(*args, **kwargs)
        self.streams.check()
        generator = _generator(op, leaves)
        needed = DRAWS[op](*args, **kwargs) if generator else 0
        draws = generator.place if generator else None
        call = HostCall(op, self.shadows.all_seen(args), self.shadows.all_seen(kwargs), draws)
        strides: Strides | None = None
        is_new = False
        if not _is_waited_for(op, args, kwargs):
            strides, is_new = self._strides(call)
        if strides is None:
            result = self._wait_for(call, args, kwargs)
        else:
            result = laid_out(shaped(op, args, kwargs), strides)
            if self._settle(call, kwargs, leaves, result):
                self._queue(call, is_new)
            result = _with_seeds(op, args, kwargs, result, draws)
        if generator:  # not moved by a call that is refused
            generator.take(needed)
        return result

    # -- later -------------------------------------------------------------------------------

    def _settle(
        self, call: HostCall, kwargs: dict[str, Any], leaves: Sequence[Any], result: Any
    ) -> bool:
        """Give blocks to the shadows that an op made or changed; whether there is work to queue."""
        shadows = [leaf for leaf in leaves if is_shadow(leaf)]
        given = {leaf.untyped_storage()._cdata for leaf in shadows}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        fresh = [leaf.untyped_storage()._cdata not in given for leaf in made]
        for leaf in (*shadows, *made):
            self._follow(leaf)
        op = call.op
        if _lays_out(op) or not (any(fresh) or op._schema.is_mutable):
            return False
        seen = self.shadows.seen
        call.results = [seen(leaf) if new else None for leaf, new in zip(made, fresh, strict=True)]
        call.outs = {
            argument.name: self.shadows.all_seen(kwargs[argument.name])
            for argument in op._schema.arguments
            if is_out(argument) and argument.name in kwargs
        }
        return True

    def _queue(self, call: HostCall, is_new: bool) -> None:
        """Put an op on the stream. Wait for it if `is_new`: it was too large for a trial.

        Raises what the kernel raises if no value is the reason. Other failures break the device.
        """
        if not is_new:
            self.streams.put(self.stream, call.compute)
            return
        failures: list[Exception] = []

        def compute() -> None:
            try:
                call.compute()
            except DeviceAssert:
                raise
            except Exception as error:
                failures.append(error)

        self.streams.put(self.stream, compute)
        self.streams.drain(self.stream)
        if failures:
            refused = refused_whatever_values(call)
            if refused is not None:
                raise refused
            self.streams.break_down(failures[0])
            self.streams.check()
        self._remember(key_of(call), ())

    def _follow(self, leaf: torch.Tensor) -> None:
        """Have a block for a storage that is new, or that has grown."""
        grown = self.shadows.provide(leaf, self.stream)
        if grown is not None:
            old, new = grown
            self.streams.put(self.stream, lambda: new.bytes[: old.nbytes].copy_(old.bytes))
            self.shadows.release(old)

    def _strides(self, call: HostCall) -> tuple[Strides | None, bool]:
        """Return the strides of the kernel's results, and whether the call is new and not tried.

        None if the op must be waited for; () if strides are those of the meta kernel. Calls with
        large tensors are not tried.
        """
        if _lays_out(call.op):
            return (), False
        key = key_of(call)
        if key not in self._tried:
            if not is_small(call):
                return (), True
            self._remember(key, attempt(call))
        return self._tried[key], False

    def _remember(self, key: Any, strides: Strides | None) -> None:
        self._tried[key] = strides
        if len(self._tried) > _MOST:
            self._tried.popitem(last=False)

    # -- at once -----------------------------------------------------------------------------

    def _wait_for(self, call: HostCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute once the stream has run all earlier tasks, and return the result."""
        streams = self.streams
        streams.drain(self.stream)
        streams.have_one_core()
        on_host = call.inputs()
        try:
            result = call.call(*on_host)
        except DeviceAssert as error:
            streams.break_down(error)
            streams.check()
        by_host = {
            id(made): shadow
            for made, shadow in zip(tree_leaves(on_host), tree_leaves((args, kwargs)), strict=True)
            if isinstance(made, torch.Tensor) and is_shadow(shadow)
        }
        for made in tree_leaves(on_host):
            if id(made) in by_host:
                self._take_over(by_host[id(made)], made)
        if _goes_to_host(call.op, kwargs):
            return result
        return tree_map(lambda leaf: self._as_shadow(leaf, by_host), result)

    def _take_over(self, shadow: torch.Tensor, made: torch.Tensor) -> None:
        """Give a shadow the geometry that the kernel gave its tensor, and the bytes."""
        if tuple(made.shape) == tuple(shadow.shape):
            return
        shadow.resize_(made.shape)
        self._fill(shadow, made)

    def _as_shadow(self, leaf: Any, by_host: dict[int, torch.Tensor]) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in by_host:
            return by_host[id(leaf)]
        shadow = torch.empty_strided(
            tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device=_META
        )
        self._fill(shadow, leaf)
        return shadow

    def _fill(self, shadow: torch.Tensor, made: torch.Tensor) -> None:
        self._follow(shadow)
        seen, kept = self.shadows.seen(shadow), made.clone()
        self.streams.put(self.stream, lambda: seen.tensor().copy_(kept))


class Launching(TorchDispatchMode):
    """Around the ops of a job."""

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with lazy_bits():
            return self._launcher.launch(func, args, kwargs or {})


def _generator(op: Op, leaves: Sequence[Any]) -> PhiloxGenerator | None:
    """Return the generator of a random op."""
    if op not in DRAWS:
        if torch.Tag.nondeterministic_seeded in op.tags and op not in KERNELS:
            raise NotImplementedError(f"{op} draws, and has no version for the host.")
        return None
    generator = found_in(leaves) or standing()
    if generator is None:
        raise RuntimeError(f"{op} draws from nobody's generator.")
    return generator


def _with_seeds(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, draws: Philox | None
) -> Any:
    """Return an op's result; efficient attention reports its seed and offset on the host."""
    if op is not _EFFICIENT or draws is None:
        return result
    drops = kwargs.get("dropout_p") or (args[5] if len(args) > 5 else 0.0)
    place = (draws.seed, draws.offset) if drops else (0, 0)
    return (*result[:2], *(torch.tensor(_signed(each)) for each in place))


def _signed(number: int) -> int:
    """The same 64 bits as torch's integers hold them."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _is_waited_for(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dtypes = (str(leaf.dtype)[6:] for leaf in tree_leaves((args, kwargs)) if is_shadow(leaf))
    if waits_for_its_stream(op.name(), op.tags, dtypes):
        return True
    to_host = op._opname == "copy_" and not is_shadow(args[0])
    return to_host or _goes_to_host(op, kwargs) or _tells_the_host(op)


def _lays_out(op: Op) -> bool:
    return bool(op._opname.startswith(_LAYS_OUT))


def _tells_the_host(op: Op) -> bool:
    """Whether it returns numbers instead of tensors, as `is_nonzero` does; none has no result."""
    return any("Tensor" not in str(each.type) for each in op._schema.returns)


def _goes_to_host(op: Op, kwargs: dict[str, Any]) -> bool:
    return op._opname == "_to_copy" and kwargs.get("device") == _HOST
