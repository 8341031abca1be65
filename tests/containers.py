"""Finds, by reading the code, what outlives a call and may grow: tables, memos, cached functions.

`containers(root)` gives every dictionary, set, list or queue that is a module's, a class's, an
instance's or a closure's; every cached function and property; and every variable or attribute that
is made at its first use and kept. What is written once in the code and changed nowhere (a table of
handlers) is told apart by `grown`.

Not found: containers that only a running function's own frame holds, and what is stored with
`setattr` or in the containers of others.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Container", "containers"]

ROOT = Path(__file__).parents[1]
MAPPINGS = {
    *("dict", "OrderedDict", "defaultdict", "Counter", "ChainMap"),
    *("WeakKeyDictionary", "WeakValueDictionary", "Mapping", "MutableMapping"),
}
SETS = {"set", "WeakSet", "frozenset", "MutableSet"}
LISTS = {"list", "deque", "bytearray", "SimpleQueue", "Queue", "PriorityQueue", "LifoQueue"}
KINDS = {name: kind for kind, names in (("mapping", MAPPINGS), ("set", SETS), ("list", LISTS))
         for name in names}  # fmt: skip
CACHED = {"lru_cache", "cache", "cached_property"}
MUTATORS = {
    *("append", "appendleft", "extend", "extendleft", "insert", "put", "put_nowait", "push"),
    *("add", "update", "setdefault", "__setitem__", "subtract"),
    *("pop", "popleft", "popitem", "remove", "discard", "clear", "move_to_end"),
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, order=True, slots=True)
class Container:
    """Something that outlives a call."""

    module: str
    #: the class, or the function whose closures hold it; empty for a module's own
    owner: str
    name: str
    #: "mapping", "set", "list"; "function" or "property" that is cached; "lazy": made once, kept
    kind: str
    #: it changes after it was made
    grown: bool
    line: int

    @property
    def full(self) -> str:
        """Its dotted name: module, owner, name."""
        return ".".join(filter(None, (self.module, self.owner, self.name)))


def containers(*packages: str) -> list[Container]:
    """Everything found below these packages ("jgpu.device", ...), by name."""
    found = {}
    for package in packages:
        path = ROOT.joinpath(*package.split("."))
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        for file in files:
            for container in of_text(module_name(file), file.read_text(), mutated_attributes()):
                found.setdefault(container.full, container)
    return sorted(found.values())


def module_name(path: Path) -> str:
    """The dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@lru_cache(maxsize=1)
def mutated_attributes() -> frozenset[str]:
    """Names of attributes and imported variables that any module of the package changes."""
    found: set[str] = set()
    for file in sorted((ROOT / "jgpu").rglob("*.py")):
        for function in functions(ast.parse(file.read_text())):
            found.update(text.rpartition(".")[2] for text in mutated(function) if "." in text)
    return frozenset(found)


def of_text(module: str, text: str, elsewhere: frozenset[str] = frozenset()) -> list[Container]:
    """What one module's text makes; `elsewhere` names attributes that other modules change."""
    return list(_Module(module, ast.parse(text), elsewhere).found())


def functions(tree: ast.AST) -> Iterator[ast.AST]:
    """All functions, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def mutated(function: ast.AST) -> set[str]:
    """What a function changes by item or by method, as written: "known", "self._known"."""
    aliases = dict(_aliases(function))
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(_chain(node.value))
        elif isinstance(node, ast.AugAssign):
            found.add(_chain(node.target))
        elif isinstance(node, ast.Attribute) and node.attr in MUTATORS:
            found.add(_chain(node.value))
    found |= {aliases[name] for name in found if name in aliases}
    return found - {""}


def _aliases(function: ast.AST) -> Iterator[tuple[str, str]]:
    """Local names for something that has one: `values = self._values`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, other)
    elif isinstance(target, ast.Name) and _chain(value):
        yield target.id, _chain(value)


def _chain(node: ast.expr) -> str:
    """A dotted name as written, or nothing; what stands before an unnamed thing is "?"."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_chain(node.value) or '?'}.{node.attr}"
    return ""


def _last(node: ast.expr) -> str:
    return _chain(node).rpartition(".")[2]


def kind_of_annotation(node: ast.expr | None) -> str | None:
    """The kind of container that an annotation names, through `Final`, `ClassVar` and `| None`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp):
        return kind_of_annotation(node.left) or kind_of_annotation(node.right)
    if isinstance(node, ast.Subscript):
        if _last(node.value) in ("Final", "ClassVar", "Optional", "Annotated"):
            inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            return kind_of_annotation(inner)
        node = node.value
    return KINDS.get(_last(node)) if node is not None else None


def kind_of_value(node: ast.expr | None) -> tuple[str, bool] | None:
    """The kind of container that an expression makes, and whether it is empty at first."""
    if isinstance(node, ast.Dict | ast.DictComp):
        return "mapping", isinstance(node, ast.Dict) and not node.keys
    if isinstance(node, ast.Set | ast.SetComp):
        return "set", False
    if isinstance(node, ast.List | ast.ListComp):
        return "list", isinstance(node, ast.List) and not node.elts
    if isinstance(node, ast.BinOp):
        return kind_of_value(node.left) or kind_of_value(node.right)
    if isinstance(node, ast.IfExp):
        return kind_of_value(node.body) or kind_of_value(node.orelse)
    if not isinstance(node, ast.Call):
        return None
    if _last(node.func) == "field":
        factory = next((k.value for k in node.keywords if k.arg == "default_factory"), None)
        if isinstance(factory, ast.Lambda):
            return kind_of_value(factory.body)
        kind = KINDS.get(_last(factory)) if factory is not None else None
        return (kind, True) if kind else None
    func = node.func.value if isinstance(node.func, ast.Subscript) else node.func
    kind = KINDS.get(_last(func))
    filled = node.args[1:] if _last(func) == "defaultdict" else node.args  # its factory
    return (kind, not filled) if kind else None


class _Module:
    """One module's text, walked once."""

    def __init__(self, name: str, tree: ast.Module, elsewhere: frozenset[str]) -> None:
        self.name = name
        self.tree = tree
        changed = [mutated(function) for function in functions(tree)]
        self.changed = set().union(*changed) if changed else set()
        #: attributes that anybody changes, by their last name
        self.attributes = elsewhere | {t.rpartition(".")[2] for t in self.changed if "." in t}

    def found(self) -> Iterator[Container]:
        """Everything in it."""
        yield from self._of_body(self.tree.body, "")
        yield from self._of_globals()

    def _of_body(self, body: list[ast.stmt], owner: str) -> Iterator[Container]:
        """Variables of a module or class, and all that is inside it."""
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                inner = f"{owner}.{statement.name}" if owner else statement.name
                yield from self._of_body(statement.body, inner)
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._of_function(statement, owner)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                yield from self._of_assignment(statement, owner)
            elif isinstance(statement, ast.If | ast.Try | ast.With):
                for part in ("body", "orelse", "finalbody"):
                    yield from self._of_body(getattr(statement, part, []), owner)

    def _of_assignment(
        self, node: ast.Assign | ast.AnnAssign, owner: str, values: dict[str, str] | None = None
    ) -> Iterator[Container]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
        made = kind_of_value(node.value)
        kind = kind_of_annotation(annotation) or (made[0] if made else None)
        if kind is None and values and isinstance(node.value, ast.Name):
            kind = values.get(node.value.id)
        empty = made[1] if made else node.value is None or not isinstance(node.value, ast.Tuple)
        for target in targets:
            name = _chain(target)
            if kind is None or not name or (values is not None and "." not in name):
                continue
            if values is not None and not name.startswith("self."):
                owner, name = name.rpartition(".")[0], name.rpartition(".")[2]
            name = name.removeprefix("self.")
            grown = empty or name in self.attributes or (not owner and name in self.changed)
            yield Container(self.name, owner, name, kind, grown, node.lineno)

    def _of_function(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str
    ) -> Iterator[Container]:
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _last(called) in CACHED:
                kind = "property" if _last(called) == "cached_property" else "function"
                yield Container(self.name, owner, function.name, kind, True, function.lineno)
        arguments = function.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        kinds = {a.arg: kind_of_annotation(a.annotation) for a in given}
        values = {name: kind for name, kind in kinds.items() if kind}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                yield from self._of_assignment(node, owner, values)
        yield from self._of_closures(function, owner)
        yield from self._of_lazies(function, owner)

    def _of_closures(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str
    ) -> Iterator[Container]:
        """Containers of a function that functions inside it change."""
        inner = [node for node in functions(function) if node is not function]
        changed: set[str] = set()
        for node in inner:
            own = {t.id for t in ast.walk(node)
                   if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)}  # fmt: skip
            changed |= mutated(node) - own
        own_lines = {id(n) for node in inner for n in ast.walk(node)}
        where = f"{owner}.{function.name}" if owner else function.name
        for node in ast.walk(function):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or id(node) in own_lines:
                continue
            made = kind_of_value(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if made and isinstance(target, ast.Name) and target.id in changed:
                    yield Container(self.name, where, target.id, made[0], True, node.lineno)

    def _of_lazies(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str
    ) -> Iterator[Container]:
        """Attributes that are made where they are None, and kept."""
        aliases = dict(_aliases(function))
        asked = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is):
                nothing = node.comparators[0]
                if isinstance(nothing, ast.Constant) and nothing.value is None:
                    name = _chain(node.left)
                    asked.add(aliases.get(name, name))
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    name = _chain(target)
                    computed = not isinstance(node.value, ast.Constant)
                    if computed and name in asked and name.startswith("self."):
                        short = name.removeprefix("self.")
                        yield Container(self.name, owner, short, "lazy", True, node.lineno)

    def _of_globals(self) -> Iterator[Container]:
        """Variables of the module that a function sets anew."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Global):
                for name in node.names:
                    yield Container(self.name, "", name, "lazy", True, node.lineno)
