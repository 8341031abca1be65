"""What was set live, for good or until a moment: changed, ended, and kept in the ledger.

Invariant: what is on record is what counts, but for what waits to be written.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

from jgpu.broker.control.quotas.ledger.charges import UsageLedger
from jgpu.broker.control.quotas.ledger.problems import SettingKey, StoredSetting
from jgpu.broker.control.quotas.scopes import Said, Scope, Scopes
from jgpu.broker.control.quotas.spec import FIELDS, read_setting, show
from jgpu.errors import ConfigError

__all__ = ["LiveSettings"]

_LOG = logging.getLogger("jgpu.broker")


class LiveSettings:
    """The live part of all scopes, and its rows in the ledger."""

    def __init__(self, scopes: Scopes, ledger: UsageLedger) -> None:
        self._scopes = scopes
        self._ledger = ledger
        #: told whom it concerned, and in words, that something set until a moment has ended
        self.on_end: Callable[[str, str], None] = lambda about, text: None

    def change(self, scope: Scope, settings: Mapping[str, str], until: float = 0.0) -> None:
        """Change what a scope says, "" to take a field out, all of them without any.

        With `until` it counts up to this moment, and then what counted before. Raises
        `ConfigError`, and nothing has changed then.
        """
        values = {name: _read(name, text) for name, text in settings.items()}
        before = self._rows(scope)
        if not settings:
            values = {key.field: None for key in before}
        self._scopes.set_live(scope, values, until)
        after = self._rows(scope)
        for key in {**before, **after}:
            if key.field in values:
                self._ledger.keep_setting(key, after.get(key))
        for name in values.keys() - {key.field for key in (*before, *after)}:
            self._ledger.keep_setting(SettingKey(*scope, name), None)

    def try_change(self, scope: Scope, settings: Mapping[str, str], until: float = 0.0) -> None:
        """Raise `ConfigError` where `change` would, and change nothing."""
        values = {name: _read(name, text) for name, text in settings.items()}
        copy.copy(self._scopes).set_live(scope, values, until)  # which replaces and never alters

    def end(self, now: float) -> None:
        """Take out what was set until a moment that is over."""
        if now < self._scopes.next_end:
            return
        for said in self._scopes.end_timed(now):
            rows = _rows_of(said)
            for key in rows:
                self._ledger.keep_setting(key, None)
            fields = ", ".join(f"{key.field}={setting.text}" for key, setting in rows.items())
            _LOG.info("What was set of %s for a time has ended: %s.", said.scope, fields)
            about = str(said.scope).removeprefix("user:")
            self.on_end(about, f"What was set for a time has ended: {fields}.")

    def load(self, settings: Mapping[SettingKey, StoredSetting], now: float) -> None:
        """Take in what was on record; what was set meanwhile stands."""
        for key, (text, until) in settings.items():
            if self._ledger.is_unwritten(key):
                continue
            replaced = self._ledger.is_unwritten(key._replace(timed=False))
            if key.timed and (until <= now or replaced):
                self._ledger.keep_setting(key, None)
                continue
            try:
                scope = Scope(key.kind, key.name)
                self._scopes.load(scope, key.field, read_setting(key.field, text), until)
            except ConfigError as error:
                where = f"{key.kind}:{key.name}"
                _LOG.error("A quota of %s in the ledger is left out: %s", where, error)

    def keep_all(self) -> None:
        """Have everything written, for a ledger that has lost it."""
        for scope in {*self._scopes.live, *self._scopes.timed}:
            for key, setting in self._rows(scope).items():
                self._ledger.keep_setting(key, setting)

    def _rows(self, scope: Scope) -> dict[SettingKey, StoredSetting]:
        """What was set live of a scope, as it is on record."""
        return {
            key: setting
            for said in self._scopes.said_live(scope)
            for key, setting in _rows_of(said).items()
        }


def _rows_of(said: Said) -> dict[SettingKey, StoredSetting]:
    return {
        SettingKey(*said.scope, name, bool(said.until)): StoredSetting(
            show(name, value), said.until
        )
        for name, value in said.spec.items()
    }


def _read(name: str, text: str) -> Any:
    if name not in FIELDS:
        names = ", ".join(FIELDS[:-1])
        raise ConfigError(f"There is no {name!r} in a quota; there is {names} or {FIELDS[-1]}.")
    return read_setting(name, text) if text else None
