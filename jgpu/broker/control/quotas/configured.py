"""Quotas and groups of a configuration file, checked; mistakes are told with file and line.

A configuration file is Python, so a line can be told only where it is written out plainly, as
`c.JgpuBroker.user_quotas = {"user1": {"weight": 2}}` or `...["user1"]["weight"] = 2`.
"""

import ast
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jgpu.broker.control.quotas.scopes import QuotaSettings, Scope
from jgpu.broker.control.quotas.spec import QuotaSpec, make_spec, read_setting
from jgpu.errors import ConfigError

__all__ = ["configuration_mistake", "find_line", "quota_settings"]


def quota_settings(
    default: Any, groups: Any, users: Any, members: Any, files: Iterable[str] = ()
) -> QuotaSettings:
    """Frozen settings from what the traits hold; raises `ConfigError`."""
    files = list(files)
    specs = {Scope("default"): _spec(default, ("default_quota",), files)}
    for kind, trait, found in (("group", "group_quotas", groups), ("user", "user_quotas", users)):
        for name, settings in found.items():
            _check_name(name, (trait, name), files)
            specs[Scope(kind, name)] = _spec(settings, (trait, name), files)
    return QuotaSettings(
        specs=specs,
        members={
            name: _members(listed, ("groups", name), files) for name, listed in members.items()
        },
    )


def configuration_mistake(error: Exception) -> str:
    """One sentence with file and line for what executing a configuration file raised."""
    if isinstance(error, SyntaxError):
        written = (error.text or "").strip()
        return f"{error.filename}, line {error.lineno}: {error.msg}: {written}"
    *_, last = traceback.extract_tb(error.__traceback__) or [None]
    where = f"{last.filename}, line {last.lineno}: " if last is not None else ""
    line = f": {last.line}" if last is not None and last.line else ""
    return f"{where}{type(error).__name__}: {error}{line}"


def _spec(settings: Any, place: tuple[Any, ...], files: list[str]) -> QuotaSpec:
    if not isinstance(settings, Mapping):
        raise _mistake(f"{settings!r} is no quota; write it like {{'memory': '4G'}}", place, files)
    for name, value in settings.items():
        try:
            read_setting(name, value)
        except ConfigError as error:
            raise _mistake(str(error), (*place, name), files) from None
    try:
        return make_spec(settings)
    except ConfigError as error:
        raise _mistake(str(error), place, files) from None


def _members(listed: Any, place: tuple[Any, ...], files: list[str]) -> frozenset[str]:
    _check_name(place[-1], place, files)
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise _mistake(f"{listed!r} is no list of login names", place, files)
    names = list(listed)
    for name in names:
        _check_name(name, place, files)
    return frozenset(names)


def _check_name(name: Any, place: tuple[Any, ...], files: list[str]) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
        raise _mistake(f"{name!r} is no name", place, files)


def _mistake(text: str, place: tuple[Any, ...], files: list[str]) -> ConfigError:
    trait, *keys = place
    where = f"JgpuBroker.{trait}" + "".join(f"[{key!r}]" for key in keys)
    for file in files:
        line = find_line(Path(file), place)
        if line:
            return ConfigError(f"{file}, line {line}: {where}: {text.rstrip('.')}.")
    return ConfigError(f"{where}: {text.rstrip('.')}.")


def find_line(file: Path, place: tuple[Any, ...]) -> int:
    """The line on which a trait, or a key within it, is set; 0 if it cannot be seen."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return 0
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found = _line_within(target, node.value, place) or found
    return found


def _line_within(target: ast.expr, value: ast.expr, place: tuple[Any, ...]) -> int:
    keys: list[Any] = []
    while isinstance(target, ast.Subscript):
        key = target.slice
        keys.insert(0, key.value if isinstance(key, ast.Constant) else None)
        target = target.value
    if not isinstance(target, ast.Attribute) or [target.attr, *keys] != list(
        place[: 1 + len(keys)]
    ):
        return 0
    line = value.lineno
    for key in place[1 + len(keys) :]:
        if not isinstance(value, ast.Dict):
            break
        pairs = zip(value.keys, value.values, strict=True)
        found = [(k, v) for k, v in pairs if isinstance(k, ast.Constant) and k.value == key]
        if not found:
            break
        line, value = found[-1][0].lineno, found[-1][1]
    return line
