"""Asking the real kernels what an op returns (message `Probe`), on scratch tensors.

Meta kernels are wrong about strides, sometimes about shapes, and say nothing of ops whose kernels
choose a layout. A probe runs the op once on zeros of the geometries in question, which may take as
long as the op takes. Answers depend on the question alone and are shared by all sessions; of a
question only the hash is kept.

Invariant: a probe never sees a session's data and is checked as a program's op is.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgspec
import torch

from jgpu.broker.executor.programs import contracts
from jgpu.broker.executor.programs.checking.arguments import Bound, Ref, bind, refs_of
from jgpu.broker.executor.programs.checking.check import check_guards, look_at
from jgpu.broker.executor.programs.checking.guards import check_range
from jgpu.broker.executor.programs.checking.inference import (
    Inferred,
    call_on,
    flatten,
    infer,
    scratch,
)
from jgpu.broker.executor.programs.checking.ops import OpSchema, resolve
from jgpu.broker.executor.programs.flags import check_flags, gate
from jgpu.broker.executor.programs.geometry import geometry_of, required_bytes
from jgpu.broker.executor.programs.kinds import KINDS, DeviceKind
from jgpu.broker.executor.programs.precautions import precaution_of
from jgpu.broker.executor.programs.precautions.language import Attempt
from jgpu.broker.executor.programs.precautions.sizes import size_rule
from jgpu.broker.executor.programs.running.callables import below_autograd
from jgpu.broker.executor.programs.running.rng import drawing
from jgpu.broker.executor.programs.running.shortage import is_text_of_shortage
from jgpu.broker.executor.programs.shared import SharedEntries
from jgpu.errors import ProgramError
from jgpu.wire.messages import TOO_LARGE, Number
from jgpu.wire.program import Flags, Geometry, Op, Program, View, validate_form

__all__ = [
    "HANDS",
    "_MOST_INPUTS",
    "_QUESTION_BYTES",
    "Answer",
    "Prober",
    "question_of",
    "scratch_bytes",
]

#: `Probed.outputs` and `Probed.error`
Answer: TypeAlias = tuple[tuple[Geometry | None, ...], tuple[str, str] | None]

_ANSWER: Final = msgspec.msgpack.Decoder(Answer)
_KINDS: Final = {bool: "bool", int: "int", float: "float", tuple: "complex"}


@dataclass(frozen=True, slots=True)
class _Question:
    info: OpSchema
    bound: Bound
    refs: tuple[Ref, ...]
    tensors: tuple[tuple[Geometry, int], ...]
    values: tuple[bool | int | float | complex, ...]
    flags: Flags

    @property
    def geometries(self) -> list[Geometry]:
        return [geometry for geometry, _ in self.tensors]


#: tensors that one probe may name, and bytes of all that it says
_MOST_INPUTS: Final = 1024
_QUESTION_BYTES: Final = 64 << 10
#: scratch memory that one probe may need, and that part of the device at most
_SCRATCH_BYTES: Final = 256 << 20
_SCRATCH_PART: Final = 16
#: probes made at a time, each for another identity
HANDS: Final = 3
#: bytes of an answer beside its own, in the tables that hold it
_ENTRY_BYTES: Final = 512
_TOO_LARGE: Final[Answer] = ((), (TOO_LARGE, "It is too large to be tried."))


def scratch_bytes(capacity: int) -> int:
    """Scratch memory that one probe may need on a device of so many bytes.

    `HANDS` times as much is the reserve for all of them; it comes on top of what sessions have.
    """
    return min(_SCRATCH_BYTES, capacity // _SCRATCH_PART)


def question_of(
    op: Op, inputs: Sequence[Geometry], params: Sequence[Number], flags: Flags
) -> bytes:
    """What one question's answer is kept under; raises `ProgramError` for one that is too large."""
    if len(inputs) > _MOST_INPUTS:
        raise ProgramError(
            f"A probe names at most {_MOST_INPUTS} tensors; {op.name} came with {len(inputs)}."
        )
    said = msgspec.msgpack.encode((op, tuple(inputs), tuple(params), flags), order="sorted")
    if len(said) > _QUESTION_BYTES:
        raise ProgramError(
            f"A probe says what it asks in {_QUESTION_BYTES} bytes; {op.name} took {len(said)}."
        )
    return blake2b(said, digest_size=16).digest()


class Prober:
    """Asks kernels, and remembers; `most_bytes` bounds the scratch memory of one probe.

    `ask` may be called on any thread, all else on one.
    """

    def __init__(
        self,
        device: DeviceKind,
        most_bytes: int = _SCRATCH_BYTES,
        most: int = 8192,
        kept_bytes: int = 16 << 20,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`around`: a context for the ops that are asked."""
        self._around = around
        self.device: DeviceKind = device
        self.most_bytes = most_bytes
        self._known: SharedEntries[bytes] = SharedEntries(most, kept_bytes)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is remembered."""
        return self._known.nbytes

    def probe(
        self,
        op: Op,
        inputs: Sequence[Geometry],
        params: Sequence[Number] = (),
        flags: Flags = Flags(),  # noqa: B008 - frozen
        identity: str = "",
    ) -> Answer:
        """True output geometries, or the error (type name, text) that the op raises.

        Raises `ProgramError` where the op may not run at all.
        """
        question = question_of(op, inputs, params, flags)
        answer = self.known(question, identity)
        if answer is None:
            answer = self.ask(op, inputs, params, flags)
            self.remember(question, identity, answer)
        return answer

    def known(self, question: bytes, identity: str) -> Answer | None:
        """The answer, if it was given before; `identity` is who asks."""
        found = self._known.get(question, identity)
        return None if found is None else _ANSWER.decode(found)

    def remember(self, question: bytes, identity: str, answer: Answer) -> None:
        """Keep an answer that `ask` gave, unless it is of that moment: there was no memory."""
        if answer[1] is not None and is_text_of_shortage(*answer[1]):
            return
        if self._known.get(question, identity) is None:
            kept = msgspec.msgpack.encode(answer)
            self._known.add(question, identity, kept, len(kept) + _ENTRY_BYTES)

    def ask(
        self, op: Op, inputs: Sequence[Geometry], params: Sequence[Number], flags: Flags
    ) -> Answer:
        """What `probe` answers, found out now."""
        return self._ask(self._question(op, inputs, params, flags))

    def _question(
        self, op: Op, inputs: Sequence[Geometry], params: Sequence[Number], flags: Flags
    ) -> _Question:
        """The op, checked as a program of its own."""
        check_flags(flags)
        kinds = tuple(_KINDS[type(value)] for value in params)
        views = tuple(View(k) for k in range(len(inputs)))
        alone = Op(op.name, op.args, op.kwargs, ())
        validate_form(Program(len(inputs), kinds, tuple(inputs), views, (alone,), flags))
        info = resolve(op.name, self.device)
        contracts.require_contract(info)
        bound = bind(alone, info, KINDS[self.device].place)
        refs = tuple(refs_of(bound))
        tensors = tuple((inputs[ref.view], required_bytes(inputs[ref.view])) for ref in refs)
        contracts.check(info, bound, [geometry for geometry, _ in tensors])
        values = tuple(complex(*v) if isinstance(v, tuple) else v for v in params)
        return _Question(info, bound, refs, tensors, values, flags)

    def _ask(self, question: _Question) -> Answer:
        """The kernel's word; where zeros are not to its liking or too many, the meta kernel's."""
        expected: Inferred | None = None
        refusal = None
        try:
            with gate.passing(question.flags):  # what ops return depends on the default dtype
                expected = infer(question.info, question.bound, question.tensors)
        except ProgramError as error:
            refusal = str(error)
        if not KINDS[self.device].computes:
            return _inferred(expected, refusal)
        needed = sum(nbytes for _, nbytes in question.tensors)
        if expected is not None:
            needed += sum(r.nbytes for r in expected.returns if r is not None)
        foretold = expected is not None or refusal is not None
        too_large = _inferred(expected, refusal) if foretold else _TOO_LARGE
        if needed > self.most_bytes:
            return too_large
        try:
            return self._run(question, self.most_bytes - (0 if foretold else needed)), None
        except _TooLargeError:
            return too_large
        except Exception as error:
            # zeros are singular matrices, wrong pivots, ...: no fault of the user's
            if expected is not None:
                return _inferred(expected, None)
            return (), (type(error).__name__, str(error)[:4096])

    def _run(self, question: _Question, most_bytes: int) -> tuple[Geometry | None, ...]:
        device = KINDS[self.device].asked_on or KINDS[self.device].place
        info, geometries = question.info, question.geometries
        made: dict[int, torch.Tensor] = {}
        for ref, (geometry, nbytes) in zip(question.refs, question.tensors, strict=True):
            if ref.slot not in made:
                made[ref.slot] = scratch(geometry, device, nbytes)
        tensors = [made[ref.slot] for ref in question.refs]
        nodes = dict(zip((a.name for a in info.arguments), question.bound, strict=True))
        look = look_at(info, question.bound, geometries)
        for guard in check_guards(info, question.bound, look, self.device):
            node = nodes[guard.argument]
            if isinstance(node, Ref):
                check_range(info.name, made[node.slot], guard)
        generator = torch.Generator(device)
        with gate.passing(question.flags), below_autograd(), self._around():
            call = (info, question.bound, tensors, lambda node: question.values[node.index])
            # scratch tensors are harmless, plain numbers may not be
            kernel = precaution_of(info, look, self.device) or info.call
            given = *call, generator, _bounded(info, kernel, most_bytes)
            if info.seeded and info.generator is None:
                result = drawing(generator, call_on, *given)
            else:
                result = call_on(*given)
        if device.type == "cuda":  # its time is this probe's, and so are its faults
            torch.cuda.current_stream().synchronize()
        owners = {tensor.untyped_storage()._cdata for tensor in tensors}
        return tuple(
            None if r is None or r.untyped_storage()._cdata in owners else geometry_of(r)
            for r in flatten(info, result)
        )


class _TooLargeError(Exception):
    """The result would need more than one probe may."""


def _bounded(info: OpSchema, kernel: Callable[..., Any], most_bytes: int) -> Callable[..., Any]:
    """The kernel, behind a look at how much it returns, where no meta kernel can tell."""
    rule = size_rule(info.base)
    if rule is None:
        return kernel

    def call(*args: Any, **kwargs: Any) -> Any:
        with suppress(IndexError, RuntimeError, TypeError, ValueError):  # the kernel has words
            if rule(Attempt(info, args, kwargs)) > most_bytes:
                raise _TooLargeError
        return kernel(*args, **kwargs)

    return call


def _inferred(expected: Inferred | None, refusal: str | None) -> Answer:
    if expected is None:
        return (), ("RuntimeError", refusal or "Nothing foretells what this op returns.")
    geometries = tuple(None if r is None or r.alias >= 0 else r.geometry for r in expected.returns)
    return geometries, None
