"""How many iterations the running loops will still do, as far as the notebook's own lines tell.

At an iteration's boundary the frames of the notebook's code are looked at, from the cell inwards:
which `for` statements are they in, over what, and how far are they? Known are `range`, data loaders
and other things with a length, and what is wrapped around them by `enumerate`, `zip`, `tqdm` and
`trange`. Nothing of the notebook is changed or called but `len`, and nobody depends on the answer
but policies that ask how long a job will be (`srtf`).

What is not covered: `while` loops, loops inside libraries, loops left by `break`.
"""

import ast
import linecache
import operator
from collections.abc import Callable, Mapping
from time import monotonic
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

__all__ = ["Loops"]

#: seconds between two looks; a look takes some tens of microseconds
_EVERY_S: Final = 0.25
_LARGEST: Final = 1 << 40
_WRAPPERS: Final = frozenset({"enumerate", "tqdm", "track", "progress_bar", "iter", "list"})
#: what a loop may run over whose length is asked for: an operator on plain numbers
_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class _Place(NamedTuple):
    """How far a loop is."""

    #: iterations after the present one
    left: int
    total: int


class Loops:
    """Looks now and then, and says what is news."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._look_at = 0.0
        self._statements: dict[CodeType, list[ast.For]] = {}
        #: boundaries since the last look, and what was said then
        self._boundaries = 0
        self._said: int | None = None
        #: by loop: the places of those around it, and boundaries since it began
        self._counted: dict[ast.For, tuple[tuple[int, ...], int]] = {}

    def forget(self) -> None:
        """A cell began: no loop runs."""
        self._look_at, self._boundaries, self._said = 0.0, 0, None
        self._counted.clear()

    def at_boundary(self, frame: FrameType | None) -> int | None:
        """Return how many iterations are left if that is news, None if not.

        `frame` is the one whose iteration ended, somewhere inside the notebook's code.
        """
        self._boundaries += 1
        now = self._clock()
        if now < self._look_at:
            return None
        self._look_at = now + _EVERY_S
        left = self.left(frame)
        if left is None:
            return None
        expected = None if self._said is None else self._said - self._boundaries
        self._boundaries, self._said = 0, left
        return left if expected is None or abs(left - expected) > 1 else None

    def left(self, frame: FrameType | None) -> int | None:
        """Return how many iterations the loops around a frame will still do; None if unknown."""
        places: list[_Place] = []
        for each in reversed(_notebook_frames(frame)):
            for loop in self._around(each):
                place = self._place(loop, each, tuple(found.left for found in places))
                if place is None:
                    return None
                places.append(place)
        if not places:
            return None
        left, inner = 0, 1
        for place in reversed(places):
            left += place.left * inner
            inner *= max(1, place.total)
        return min(left, _LARGEST)

    def _around(self, frame: FrameType) -> list[ast.For]:
        """The `for` statements that a frame is in, outermost first."""
        code = frame.f_code
        loops = self._statements.get(code)
        if loops is None:
            loops = self._statements[code] = _loops_of(code)
        line = frame.f_lineno
        return [each for each in loops if each.body[0].lineno <= line <= (each.end_lineno or 0)]

    def _place(self, loop: ast.For, frame: FrameType, outer: tuple[int, ...]) -> _Place | None:
        look = _Look(frame)
        total = look.length(loop.iter)
        if total is None:
            return None
        done = look.done(loop.target, loop.iter)
        if done is None:
            before, count = self._counted.get(loop, ((), 0))
            count = count + self._boundaries if before == outer and count else 1
            self._counted[loop] = (outer, count)
            done = min(count, total) - 1
        return _Place(max(0, total - done - 1), total)


def _notebook_frames(frame: FrameType | None) -> list[FrameType]:
    """Frames of code that was written in the notebook, innermost first."""
    found = []
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__":
            found.append(frame)
            if frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return found


def _loops_of(code: CodeType) -> list[ast.For]:
    """All `for` statements of the file or cell that are in this very function, in order."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return []  # magics, or a file that has changed
    body: ast.AST = tree
    if code.co_name != "<module>":
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name
        ]
        first = code.co_firstlineno
        near = [
            node
            for node in functions
            if first in (node.lineno, *(decorator.lineno for decorator in node.decorator_list))
        ]
        if not near:
            return []
        body = near[0]
    found: list[ast.For] = []
    _collect(body, found)
    return found


def _collect(node: ast.AST, found: list[ast.For]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.For):
            found.append(child)
        _collect(child, found)


class _Look:
    """Values of plain expressions in a frame; nothing is called but `len`."""

    def __init__(self, frame: FrameType) -> None:
        self._locals = frame.f_locals
        self._globals = frame.f_globals

    def length(self, node: ast.expr) -> int | None:
        """How many things an expression that is looped over has."""
        numbers = self._range(node)
        if numbers is not None:
            return len(numbers) if -_LARGEST < numbers.stop - numbers.start < _LARGEST else _LARGEST
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name == "zip" and node.args:
                lengths = [self.length(each) for each in node.args]
                known = [each for each in lengths if each is not None]
                return min(known) if len(known) == len(lengths) else None
            if name in _WRAPPERS and node.args:
                return self.length(node.args[0])
            return None
        value = self._value(node)
        try:
            return len(value) if value is not None and not isinstance(value, int) else None
        except Exception:  # whatever a notebook's own class raises
            return None

    def done(self, target: ast.expr, node: ast.expr) -> int | None:
        """How many iterations of a loop are over, by its variable; None if that does not tell."""
        numbers = self._range(_unwrapped(node))
        if isinstance(node, ast.Call) and _name(node) == "enumerate" and len(node.args) == 1:
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
            index = self._value(first) if isinstance(first, ast.Name) else None
            return index if type(index) is int and index >= 0 else None
        value = self._value(target) if isinstance(target, ast.Name) else None
        if numbers is not None and type(value) is int and value in numbers:
            return numbers.index(value)
        return None

    def _range(self, node: ast.expr) -> range | None:
        if not isinstance(node, ast.Call) or _name(node) not in ("range", "trange"):
            return None
        arguments = [self._value(each) for each in node.args]
        if not 1 <= len(arguments) <= 3 or any(type(each) is not int for each in arguments):
            return None
        if len(arguments) == 3 and not arguments[2]:
            return None
        return range(*arguments)

    def _value(self, node: ast.expr) -> Any:
        """The value of a name, number, attribute chain, `len(...)` or simple sum; else None."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._locals.get(node.id, self._globals.get(node.id))
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            return getattr(owner, "__dict__", {}).get(node.attr)
        if isinstance(node, ast.Call) and _name(node) == "len" and len(node.args) == 1:
            return self.length(node.args[0])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand)
            return -value if type(value) is int else None
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._value(node.left), self._value(node.right)
            if type(left) is int and type(right) is int and right:
                return _OPERATORS[type(node.op)](left, right)
        return None


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _unwrapped(node: ast.expr) -> ast.expr:
    """What a progress bar is around."""
    while isinstance(node, ast.Call) and _name(node) in _WRAPPERS and node.args:
        if _name(node) == "enumerate":
            return node
        node = node.args[0]
    return node
