"""What tests, benchmarks, documents and lessons mention of jgpu's modules exists.

Read, not imported, so that a name that moved is found at once also in what few people run: slow
tests, programs in strings, documents. A module's names are those of its top level.
"""

import ast
import json
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jgpu"
FOLDERS = ("bench", "docs", "jgpu", "notebooks", "tests")
_BUILT = {"_build", "node_modules", ".ipynb_checkpoints", "__pycache__"}
_FENCED = re.compile(r"^```(?:python|\{code-block\} python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def texts(folder):
    """(where, Python) of each program in the folder's files, those inside strings included."""
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix not in (".py", ".md", ".ipynb") or _BUILT & set(path.parts):
            continue
        where, text = str(path.relative_to(ROOT)), path.read_text()
        if path.suffix == ".py":
            yield where, text
        elif path.suffix == ".md":
            yield from ((where, fenced) for fenced in _FENCED.findall(text))
        else:
            cells = json.loads(text)["cells"]
            code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            yield from ((where, re.sub(r"^[%!]", "# ", each, flags=re.MULTILINE)) for each in code)


@cache
def file_of(name):
    """Where the text of a module of this name would be."""
    path = ROOT.joinpath(*name.split("."))
    package = path / "__init__.py"
    return package if package.exists() else path.with_suffix(".py")


@cache
def is_module(name):
    return name.split(".")[0] == "jgpu" and file_of(name).exists()


@cache
def names_in(module):
    """The names at a module's top level; None where it finds them as they are asked for."""
    found = {"__dict__", "__doc__", "__file__", "__name__", "__path__"}
    for node in _at_the_top(ast.parse(file_of(module).read_bytes()).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Global):
            found |= set(node.names)
        else:
            stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            found |= {each.id for each in stored if isinstance(each.ctx, ast.Store)}
    return None if "__getattr__" in found else found


def _at_the_top(body):
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _at_the_top(getattr(node, part, ()))


def has(module, name):
    known = names_in(module)
    return known is None or name in known or is_module(f"{module}.{name}")


def missing(text):
    """(line, what) of each mention that is wrong."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.search(r"\b(from|import) jgpu\b", node.value):
                inside = missing(textwrap.dedent(node.value))
                yield from ((node.lineno + line - 1, what) for line, what in inside)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "jgpu" and not is_module(alias.name):
                    yield node.lineno, alias.name
                elif alias.asname:
                    aliases[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from _imported(node, aliases)
    yield from _used(tree, {name: of for name, of in aliases.items() if is_module(of)})


def _imported(node, aliases):
    module = node.module or ""
    if module.split(".")[0] == "jgpu" and not is_module(module):
        yield node.lineno, module
        return
    for alias in node.names:
        full = f"{module}.{alias.name}"
        aliases[alias.asname or alias.name] = full
        if is_module(module) and alias.name != "*" and not has(module, alias.name):
            yield node.lineno, full


def _used(node, aliases):
    """Attributes of modules, but where a function has another thing of that name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        inside = list(ast.walk(node))
        own = {each.arg for each in inside if isinstance(each, ast.arg)}
        names = (each for each in inside if isinstance(each, ast.Name))
        own |= {each.id for each in names if not isinstance(each.ctx, ast.Load)}
        aliases = {name: module for name, module in aliases.items() if name not in own}
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = aliases.get(node.value.id)
        if module and not has(module, node.attr):
            yield node.lineno, f"{module}.{node.attr}"
    for child in ast.iter_child_nodes(node):
        yield from _used(child, aliases)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_mentioned_of_jgpu_exists(folder):
    found = [
        f"{where}:{line}: {what}" for where, text in texts(folder) for line, what in missing(text)
    ]
    assert found == []


def test_a_name_that_moved_would_be_found():
    text = """
import JGPU.nowhere
from JGPU.wire import limits, nothing
from JGPU.wire import messages as m
from JGPU.device.nowhere import session
from elsewhere import asking

m.Geometries, m.Sync, limits.MAX_FRAME_BYTES, limits.MOST, asking.anything
def f(m): m.anything
program = '''
    from JGPU.wire.limits import LEAST
'''
"""
    assert sorted(missing(text.replace("JGPU", "jgpu"))) == [
        (2, "jgpu.nowhere"),
        (3, "jgpu.wire.nothing"),
        (5, "jgpu.device.nowhere"),
        (8, "jgpu.wire.limits.MOST"),
        (8, "jgpu.wire.messages.Geometries"),
        (11, "jgpu.wire.limits.LEAST"),
    ]
