"""Install, remove and list the kernel "Python 3 (shared GPU)", or route every kernel.

A thin front of `jgpu.kernelprovider`: it reads the words, says what was done and where.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from jgpu.cli._accelerator import is_missing_for
from jgpu.kernelprovider import interpreter, kernelspec, routing
from jgpu.kernelprovider.kernelspec import Place

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run `jgpu kernelspec` with these arguments."""
    options = _parser().parse_args(arguments)
    actions = {"install": _install, "remove": _remove, "list": _list}
    return actions[options.action](options)


def _install(options: argparse.Namespace) -> int:
    python, name, display = sys.executable, kernelspec.KERNEL_NAME, kernelspec.DISPLAY_NAME
    if options.python:
        found = interpreter.examine(options.python)
        if found.missing:
            print(f"Installing {interpreter.requirement()} into {found.prefix} ...", flush=True)
            found = interpreter.install_client(found)
        if not found.has["torch"]:
            print(f"Note: {found.prefix} has no PyTorch; jgpu does not install it.")
        python = found.executable
        if found.prefix != Path(sys.prefix):
            name = f"{name}-{found.prefix.name}"
            display = f"{display.removesuffix(')')}, {found.prefix.name})"
    place = _place(options)
    if options.all_kernels:
        return _route(place)
    directory = kernelspec.install(
        place,
        python=python,
        name=options.name or _acceptable(name),
        display_name=options.display_name or display,
    )
    print(f"Installed the kernel {directory.name!r} in {directory}.")
    _note_other_environment(place)
    if is_missing_for(python):
        words = f" --python {options.python}" if options.python else ""
        done = f"`jgpu accelerate{words}` would make small steps cheaper"
        print(f"Note: {done} (half a minute, once).")
    return 0


def _route(place: Place) -> int:
    file = routing.route(place)
    print(f"Every kernel whose spec names no provisioner now shares the GPU ({file}).")
    print("Running Jupyter servers read it when they start.")
    print("nbval, papermill, nbclient and nbconvert read no such file; in their environment set")
    print(f"  {routing.ENVIRONMENT}")
    _note_other_environment(place)
    return 0


def _remove(options: argparse.Namespace) -> int:
    place = _place(options)
    if options.all_kernels:
        file = routing.unroute(place)
        if file is None:
            print(f"Nothing to undo: {routing.config_file(place)} does not route kernels to jgpu.")
        else:
            print(f"Kernels start as they did before ({file}).")
        return 0
    directory = kernelspec.remove(place, options.name or kernelspec.KERNEL_NAME)
    print(f"Removed {directory}.")
    return 0


def _list(options: argparse.Namespace) -> int:
    found = kernelspec.find_all()
    places = [Place(), Place(Path(sys.prefix)), Place(Path("/usr/local")), Place(Path("/"))]
    files = {str(routing.config_file(p)): routing.is_routed(p) for p in places}
    routed = [file for file, is_routed in files.items() if is_routed]
    if options.json:
        specs = {name: str(path) for name, path in found.items()}
        print(json.dumps({"kernels": specs, "routed_by": routed}))
        return 0
    for name, path in found.items():
        print(f"{name}  {path}")
    for file in routed:
        print(f"every kernel  {file}")
    if not found and not routed:
        print("No kernel shares the GPU yet; `jgpu kernelspec install` adds one.")
    return 0


def _note_other_environment(place: Place) -> None:
    if place.prefix not in (None, Path(sys.prefix)):
        print("Note: the Jupyter server that is to start such kernels needs jgpu, too.")


def _acceptable(name: str) -> str:
    """A name as Jupyter wants it: letters, digits, dots, dashes and underscores."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).lower()


def _place(options: argparse.Namespace) -> Place:
    if options.user:
        return Place()
    if options.sys_prefix:
        return Place(Path(sys.prefix))
    return Place(options.prefix.absolute()) if options.prefix else Place.default()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jgpu kernelspec", description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True, metavar="install|remove|list")
    install = actions.add_parser("install", help="add the kernel, or route every kernel")
    remove = actions.add_parser("remove", help="undo `install`")
    listing = actions.add_parser("list", help="the kernels that share the GPU")
    listing.add_argument("--json", action="store_true", help="for programs")
    for action in (install, remove):
        where = action.add_mutually_exclusive_group()
        where.add_argument("--user", action="store_true", help="for this user alone")
        where.add_argument("--sys-prefix", action="store_true", help="in this Python's environment")
        where.add_argument("--prefix", type=Path, metavar="P", help="below P, e.g. /usr/local")
        action.add_argument(
            "--all-kernels",
            action="store_true",
            help="make jgpu's the default provisioner, so that every kernel shares the GPU",
        )
        action.add_argument("--name", help="the kernel's name in Jupyter (default: jgpu)")
    install.add_argument("--display-name", help="the name in the launcher")
    install.add_argument(
        "--python",
        metavar="INTERPRETER",
        help="let the kernel run this Python, and install the client into it where it is missing",
    )
    return parser
