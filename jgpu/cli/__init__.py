"""The command `jgpu`: finds the subcommand's module and calls its `main`.

A subcommand is a module of this package. Its name is the command's name (with `_` for `-`), the
first line of its docstring the help that `jgpu --help` shows, and `main(arguments) -> int` what it
does and its exit status. Adding a command is adding a module; nothing is registered anywhere.

Invariant: only the module of the command that was asked for is imported, so `jgpu run` starts as
fast as it can and a kernel's environment needs none of the broker's extras.
"""

import ast
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from jgpu import __version__
from jgpu.errors import JgpuError

__all__ = ["commands", "main"]

_INTERRUPTED = 130
_USAGE = 2
_EXTRAS = {
    "numpy",
    "prometheus_client",
    "psutil",
    "jinja2",
    "jupyterhub",
    "pynvml",
    "rich",
    "sqlalchemy",
    "torch",
    "tornado",
}

#: commands whose packages come with another extra than the broker's
_EXTRA_OF = {"hub-page": "hub"}


def commands() -> dict[str, str]:
    """Every subcommand's name with the first line of its help, without importing any."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            name = module.name.replace("_", "-")
            found[name] = _first_line(Path(__path__[0], f"{module.name}.py"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jgpu` with these arguments (default: the process's) and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _main(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough; keep the interpreter from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else _USAGE
    if words[0] in ("-V", "--version"):
        print(f"jgpu {__version__}")
        return 0
    name = words[0]
    if name not in commands():
        print(f"jgpu: there is no command {name!r}; `jgpu --help` lists them.", file=sys.stderr)
        return _USAGE
    return _call(name, words[1:])


def _call(name: str, arguments: list[str]) -> int:
    try:
        command = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        return int(command.main(arguments) or 0)
    except JgpuError as error:
        print(f"jgpu {name}: {error}", file=sys.stderr)
        if error.advice and error.advice not in str(error):
            print(error.advice, file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRAS:
            raise
        print(
            f"jgpu {name}: this Python ({sys.executable}) lacks {error.name}; "
            f"`{sys.executable} -m pip install 'jgpu[{_EXTRA_OF.get(name, 'broker')}]'` adds it.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _help() -> str:
    lines = ["usage: jgpu COMMAND ...", "", "Many notebooks share one GPU as if each had it.", ""]
    found = commands()
    width = max(map(len, found), default=0)
    lines += [f"  {name:<{width}}  {text}" for name, text in found.items()]
    return "\n".join([*lines, "", "`jgpu COMMAND --help` tells more."])


def _first_line(path: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    except (OSError, SyntaxError):
        return ""
    return text.partition("\n")[0].rstrip(".")
