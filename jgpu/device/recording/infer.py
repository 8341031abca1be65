"""Infer what an op returns, once per op, geometries and constants.

Four sources, in this order: formulas (`wire.formulas`) for common cases; torch's meta kernels,
which raise torch's errors on the user's line; the executor (`Probe`), for ops whose meta kernels
are known to differ from the device's; and the run itself (a WAIT), where only data decides.

A `Plan` is the answer: the geometries to make, the arguments written, and the op's template in the
program form. Plans are corrected when the executor reports what an op really returned.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jgpu.device import current
from jgpu.device.geometry import InternedGeometry, from_wire, geometry_of, has_idle_steps
from jgpu.device.likenative import indexing, mixed, powers, warned, words
from jgpu.device.likenative.checks import codes, degenerate, doubts, dtypes, inplace, ranges
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor, device
from jgpu.wire import formulas
from jgpu.wire import program as wire

__all__ = ["OpPlan", "TensorRef", "fact", "list_returns", "plan_for"]

_DATA = object()
_HALF = (torch.float16, torch.bfloat16)
#: the op that the executor refuses in its own words, and whose kernel checks what it is given
_CHECKED_BY_KERNEL = "aten::segment_reduce"


class TensorRef:
    """Place of the k-th tensor argument in a template."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class OpPlan:
    """The effect of one op on given geometries; `outs` is None where only a run decides it.

    `outs`: per flattened returned tensor its geometry; None for an undefined tensor; an int for
    "the k-th tensor argument itself". `grown`: written arguments whose geometry changes: pairs of
    tensor index and new geometry.
    """

    __slots__ = (
        "args", "doubted", "foretold", "geometries", "grown", "ident", "info", "kwargs", "looks",
        "many", "native", "nbytes", "outs", "overlaps", "plain", "ranges", "returns_list",
        "several", "single", "waits", "warns", "writes_first",
    )  # fmt: skip

    def __init__(
        self,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        geometries: tuple[InternedGeometry, ...],
    ) -> None:
        self.info = info
        self.args = args
        self.kwargs = kwargs
        self.geometries = geometries
        #: bytes of all that it is given
        self.nbytes = sum([each.nbytes for each in geometries])
        self.outs: list[InternedGeometry | int | None] | None = None
        #: geometry, when the op returns exactly one new tensor: the common case
        self.single: InternedGeometry | None = None
        #: geometries, when it returns one list of new tensors, or nothing
        self.many: list[InternedGeometry] | None = None
        #: geometries, None for an undefined tensor, when it returns several new tensors, whatever
        #: it writes
        self.several: tuple[InternedGeometry | None, ...] | None = None
        self.returns_list: list[int] | None = None
        #: returns that are no tensors: place among the returns, and value; not among `outs`
        self.plain: tuple[tuple[int, Any], ...] = ()
        self.grown: tuple[tuple[int, InternedGeometry], ...] = ()
        #: the op writes its first argument, returns it, and leaves its geometry: the in-place case
        self.writes_first = False
        #: what native kernels warn of at each such call
        self.warns: tuple[tuple[type[Warning], str], ...] = ()
        #: the value of a number may be an error
        self.looks = False
        #: the native kernel reads an error code from the device and raises: so does the caller
        self.waits = False
        #: a formula predicts what the op returns
        self.foretold = False
        #: the device's kernel may refuse the call
        self.doubted = False
        #: numbers that it may refuse
        self.ranges: ranges.Ranges | None = None
        #: ways in which what it writes and what it reads may share memory, that were tried
        self.overlaps: set[tuple[int, ...]] = set()
        self.ident = next_ident()
        #: what the accelerator has looked up of all this, until something of it changes
        self.native: Any = None

    @property
    def is_watched(self) -> bool:
        """Whether each call warns, raises or waits, in addition to being recorded."""
        return bool(self.warns) or self.looks or self.waits or self.doubted

    def confirm(self, params: Sequence[Any]) -> None:
        """Wait for a call that may have failed, and raise what native PyTorch raises."""
        left = self.ranges is not None and self.ranges.are_left(params)
        if self.waits or self.doubted or left:
            codes.confirm(self.info)
            if self.doubted:  # without reason
                self.doubted = False
                self.settle(self.outs or [])

    def forget_ways(self) -> None:
        """It is recorded by the longest way alone, which looks at everything."""
        self.single = self.many = self.several = self.native = None
        self.writes_first = False

    def wait(self) -> None:
        """Leave it to the run what the op returns, or how it fails."""
        self.forget_ways()
        self.outs = self.returns_list = None
        self.grown = ()

    def tell(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise or warn as the native kernel does, at the line that called it."""
        if self.looks:
            powers.check_power(self.info, args, kwargs)
        made = [out.numel for out in self.outs or () if isinstance(out, InternedGeometry)]
        reduced = self.geometries[0].numel // made[0] if made and made[0] else 0
        if warned.still_holds(self.info.name, kwargs, reduced):
            said = self.warns
            if warned.is_told_once(self.info.name):
                self.warns = ()
            warned.tell(said)

    def written(self, *, unsaid: bool = False) -> list[int]:
        """Which of the tensor arguments the op writes; those of which its schema is silent, too."""
        found: list[int] = []

        def look(value: Any) -> None:
            if type(value) is TensorRef:
                found.append(value.index)
            elif type(value) is tuple:
                for item in value:
                    look(item)

        for at in self.info.writes + (self.info.unsaid if unsaid else ()):
            if at < len(self.args):
                look(self.args[at])
            else:
                look(self.kwargs.get(self.info.arguments[at].name))
        return found

    def settle(self, outs: list[InternedGeometry | int | None]) -> None:
        """Record (or correct) the geometries of the returned tensors."""
        self.outs = outs
        self.native = None
        self.ident = next_ident()
        only = outs[0] if len(outs) == 1 and self.returns_list is None else None
        self.single = only if isinstance(only, InternedGeometry) and not self.grown else None
        self.writes_first = self.info.in_place and not self.grown
        fresh = [out for out in outs if isinstance(out, InternedGeometry)]
        one_list = not outs or self.returns_list == [len(outs)]
        plain = one_list and len(fresh) == len(outs) and not self.grown
        self.many = fresh if plain else None
        alone = not (self.grown or self.plain)
        new = all(out is None or isinstance(out, InternedGeometry) for out in outs)
        self.several = None
        if alone and new and len(outs) > 1 and self.returns_list == [-1] * len(outs):
            self.several = tuple(outs)  # type: ignore[arg-type]
        if self.is_watched:  # `dispatch` alone does all that
            self.forget_ways()


_last = 0


def next_ident() -> int:
    """Plans are numbered; a corrected plan gets a new number, hence a new program."""
    global _last
    _last += 1
    return _last


#: None: only the run decides
Probe = Callable[[OpPlan, Sequence[Any]], list[InternedGeometry | None] | None]


def plan_for(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
    params: Sequence[Any],
    probe: Probe,
) -> OpPlan:
    """Infer a new plan. `args` and `kwargs` are the user's; `geometries` those of its tensors."""
    plan = _plan(info, args, kwargs, geometries, params, probe)
    if plan.outs is not None:
        plan.ranges = ranges.ranges_of(plan, args, kwargs, params)
        plan.doubted = doubts.about_call(info, args, kwargs, geometries, params) or (
            not plan.foretold and dtypes.may_be_refused(info, args, kwargs, geometries, plan.outs)
        )
        if plan.is_watched:  # `dispatch` alone does all that
            plan.forget_ways()
    return plan


def _plan(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
    params: Sequence[Any],
    probe: Probe,
) -> OpPlan:
    lifter = _Template(info)
    plan = OpPlan(info, lifter.args(args), lifter.kwargs(kwargs), geometries)
    plan.looks = powers.looks_at_power(info, args, kwargs)
    plan.waits = codes.are_read(info, args, kwargs)
    if info.kind == 3 and not _is_by_numbers(info, geometries):  # WAIT
        words.check_types(info, args, kwargs, geometries)
        return plan
    if info.name in formulas.FORMULAS and _is_foretold(plan, args, kwargs):
        plan.foretold = True
        return plan
    if info.name == "aten::convolution":
        mixed.check(info, args, kwargs)  # it compares types, too
    indexing.check_empty(info, args)
    checked = inplace.check(info, args, kwargs)
    if indexing.fills_nothing(info, args):
        return plan  # of which nothing is settled, so it is run alone and waited for
    try:
        with warned.collected() as said:
            returned, tensors = _infer(info, args, kwargs)
        plan.warns = tuple(said)
    except (NotImplementedError, AttributeError):  # there is none, or it trips over itself
        if info.writes and not info.func._schema.returns:  # fused optimizers: same places, no more
            plan.settle([])
            return plan
        if info.writes and not info.in_place:
            return plan
        returned = _DATA
    except (*words.REFUSING, ArithmeticError, AssertionError, KeyError) as error:
        works = words.raise_as_native(info, args, kwargs)
        if works and info.out_names and info.functional is not None:
            return plan  # a meta kernel in Python is stricter with `out`
        if isinstance(error, AssertionError):  # a check of a meta kernel in Python
            raise RuntimeError(str(error)) from None  # noqa: TRY004 - torch's class
        if isinstance(error, KeyError):  # a type that a table of a meta kernel in Python lacks
            text = f"{info.name} does not take tensors of these types: {error}"
            raise RuntimeError(text) from None  # noqa: TRY004
        raise
    if not checked:
        words.check_types(info, args, kwargs, geometries)
    plan.warns += words.warnings_of(info, args, kwargs, geometries)
    if returned is not _DATA:
        _read_returned(plan, returned, tensors)
        _read_grown(plan, tensors)
        resized = [(geometries[at], after) for at, after in plan.grown]
        inplace.check_geometry(info, args, kwargs, resized)
    elif info.in_place:
        plan.settle([0])
    if degenerate.must_wait(info, args, kwargs, geometries, plan.outs or ()):
        plan.wait()
        return plan
    if info.in_place or info.out_names or plan.grown:
        return plan
    if plan.outs is not None and any(map(has_idle_steps, geometries)):
        plan.settle(words.idle_as_native(info, args, kwargs, plan.outs))
    if returned is _DATA or _must_ask(info, geometries):
        try:
            answer = probe(plan, params)
        except RuntimeError:  # in the executor's words
            if info.func._schema.name == _CHECKED_BY_KERNEL:
                words.raise_as_native(info, args, kwargs)
            raise
        if answer is None:
            return plan
        before = plan.outs or [None] * len(answer)
        if plan.outs is None:
            plan.returns_list = list_returns(info, len(answer))
        # the device reports nothing for an argument that is returned
        plan.settle([a if isinstance(a, int) else b for a, b in zip(before, answer, strict=True)])
    return plan


def _is_foretold(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a formula predicts the result: then nothing is refused, and nothing warned of."""

    def shown(value: Any) -> Any:
        if isinstance(value, DeviceTensor):
            return value._g.wire
        return [shown(item) for item in value] if isinstance(value, list | tuple) else value

    named = {name: shown(value) for name, value in kwargs.items()}
    made = formulas.returned(plan.info.name, shown(args), named)
    if made is None:
        return False
    plan.returns_list = None if len(made) == 1 else [-1] * len(made)
    plan.settle([None if each is None else from_wire(each) for each in made])
    return True


def _is_by_numbers(info: OpInfo, geometries: tuple[InternedGeometry, ...]) -> bool:
    """Whether it is an index without masks, whose sizes decide the result's."""
    indices = {geometry.dtype for geometry in geometries[1:]}
    return info.name == "aten::index.Tensor" and indices <= {torch.int64, torch.int32}


def _must_ask(info: OpInfo, geometries: tuple[InternedGeometry, ...]) -> bool:
    """Whether the meta kernel's word is not enough for tensors like these."""
    if info.probed_permuted and not all(geometry.contiguous for geometry in geometries):
        return True
    if powers.is_power(info) and any(each.dtype is torch.bool for each in geometries):
        return True  # of truths, which are numbers to the meta kernel
    return info.probed or (info.probed_half and any(g.dtype in _HALF for g in geometries))


def fact(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an op that returns no tensor and depends on geometries only."""
    return _run_meta(info, _meta_call(info, args, kwargs)[0])


def _infer(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[torch.Tensor]]:
    """Return the meta kernel's result, and the meta tensors among its arguments.

    Some meta kernels do not take numbers of the host: those get meta tensors instead.
    """
    call, tensors = _meta_call(info, args, kwargs)
    try:
        return _run_meta(info, call), tensors
    except (*words.REFUSING, ArithmeticError):
        if not any(_is_number(value) for value in (*args, *kwargs.values())):
            raise
    call, tensors = _meta_call(info, args, kwargs, numbers=True)
    return _run_meta(info, call), tensors


def _is_number(value: Any) -> bool:
    """Whether it is a tensor of the host without dimensions."""
    host = isinstance(value, torch.Tensor) and not isinstance(value, DeviceTensor)
    return host and value.dim() == 0


def _run_meta(info: OpInfo, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    if not info.name.startswith("aten::empty"):  # those are no Python: an upload needs no more
        current.warm()
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return info.func(*call[0], **call[1])


def _meta_call(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], *, numbers: bool = False
) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], list[torch.Tensor]]:
    """The same call on meta tensors, fresh ones where the op writes; and these in order.

    Tensors of the host without dimensions stay as they are unless `numbers` is set.
    """
    tensors: list[torch.Tensor] = []
    names = [argument.name for argument in info.arguments]

    def convert(value: Any, written: bool) -> Any:
        if isinstance(value, DeviceTensor):
            geometry = value._g
            made = geometry.fresh_meta() if written else geometry.meta()
            tensors.append(made)
            return made
        if isinstance(value, torch.Tensor) and (numbers or value.dim()):
            return value.to("meta")  # a host tensor: only its geometry matters
        if isinstance(value, list | tuple):
            return [convert(item, written) for item in value]
        if isinstance(value, torch.device):
            return torch.device("meta") if value.type == device().type else value
        return value

    new_args = tuple(convert(value, i in info.writes) for i, value in enumerate(args))
    new_kwargs = {
        name: None if name == "generator" else convert(value, names.index(name) in info.writes)
        for name, value in kwargs.items()
    }
    return (new_args, new_kwargs), tensors


def _read_returned(plan: OpPlan, returned: Any, tensors: list[torch.Tensor]) -> None:
    flat: list[Any] = []
    groups: list[int] | None = None
    values = returned if isinstance(returned, tuple) else (returned,)
    if not plan.info.func._schema.returns:  # it only writes, as `_foreach_add_` does
        values = ()
    numbers = {i: value for i, value in enumerate(values) if isinstance(value, int | float)}
    plan.plain = tuple(numbers.items())
    values = tuple(value for i, value in enumerate(values) if i not in numbers)
    if isinstance(returned, list) or any(isinstance(value, list) for value in values):
        values = (returned,) if isinstance(returned, list) else values
        groups = [len(value) if isinstance(value, list) else -1 for value in values]
    elif len(values) != 1 or isinstance(returned, tuple):
        groups = [-1] * len(values)
    for value in values:
        flat.extend(value if isinstance(value, list) else (value,))
    identity = {id(tensor): i for i, tensor in enumerate(tensors)}
    outs: list[InternedGeometry | int | None] = []
    for value in flat:
        if not isinstance(value, torch.Tensor):
            outs.append(None)
        elif id(value) in identity:
            outs.append(identity[id(value)])
        else:
            outs.append(geometry_of(value))
    plan.returns_list = groups
    plan.settle(outs)


def _read_grown(plan: OpPlan, tensors: list[torch.Tensor]) -> None:
    if not plan.info.writes:
        return
    grown = [
        (i, geometry_of(tensor))
        for i, (tensor, before) in enumerate(zip(tensors, plan.geometries, strict=True))
        if tuple(tensor.shape) != before.shape or tensor.stride() != before.stride
    ]
    if grown:
        plan.grown = tuple(grown)
        plan.forget_ways()


def list_returns(info: OpInfo, count: int) -> list[int] | None:
    """How `count` tensors are shared out among an op's returns, of which one may be a list."""
    kinds = [str(ret.type) for ret in info.func._schema.returns]
    if kinds == ["Tensor"]:
        return None
    if "List[Tensor]" not in kinds:
        return [-1] * count
    return [count - len(kinds) + 1 if kind == "List[Tensor]" else -1 for kind in kinds]


class _Template:
    """Turns a call into arguments of the program form, with places for tensors and parameters."""

    def __init__(self, info: OpInfo) -> None:
        self._info = info
        self._tensors = 0
        self._params = 0

    def args(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        lift = self._info.lift
        return tuple(
            self._one(value, lift[i] if i < len(lift) else 0) for i, value in enumerate(args)
        )

    def kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        lift = self._info.keyword_lift
        return {name: self._one(value, lift.get(name, 0)) for name, value in kwargs.items()}

    def _one(self, value: Any, lift: int) -> Any:
        if isinstance(value, list | tuple):
            inner = 1 if lift == 2 else 0
            return tuple(self._one(item, inner) for item in value)
        if isinstance(value, DeviceTensor):
            self._tensors += 1
            return TensorRef(self._tensors - 1)
        if lift and type(value) in (float, int, complex):
            self._params += 1
            return wire.Param(self._params - 1, type(value).__name__)
        if isinstance(value, torch.Tensor):  # of the host, and no dimensions
            self._params += 1
            kind = type(value.item()).__name__
            return wire.HostScalar(self._params - 1, kind, str(value.dtype)[6:])
        return constant(value)


def constant(value: Any) -> Any:
    """A Python value as an argument of the program form."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return wire.Complex(value.real, value.imag)
    if isinstance(value, torch.dtype):
        return wire.Dtype(str(value)[6:])
    if isinstance(value, torch.device):
        return wire.DeviceArgument()
    if isinstance(value, torch.layout):
        return wire.Layout(str(value)[6:])
    if isinstance(value, torch.memory_format):
        return wire.MemoryFormat(str(value)[6:])
    if isinstance(value, torch._C.Generator):
        return wire.GeneratorArg(current.session.generators.index_of(value))
    raise TypeError(f"An argument of type {type(value).__name__} cannot go to the device.")
