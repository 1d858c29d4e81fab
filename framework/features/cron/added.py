"""Hold the entries that operators add at run time: what is stored, how it is checked, and which of it a process can use."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from pydantic import ValidationError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import (
    ConfigurationError,
    ConfigurationProblem,
    MissingKeyError,
    PayloadError,
    StateRefusedError,
)
from framework.features.cron import keys
from framework.features.cron.entries import SCHEDULE_FILE, CronEntry, arguments_problems, collect_entries, entry_of
from framework.features.cron.settings import CronEntrySettings, CronSettings, Schedule
from framework.push.protection import PayloadProtection, open_protection
from framework.settings.base import Section, SettingsSchema
from framework.settings.load import ValueSources, to_problems
from framework.store.absent_keys import AbsentKeys
from framework.text import did_you_mean
from framework.typeguards import is_mapping
from framework.types import Json
from framework.wire.json import dumps, loads
from framework.wire.protected import StatePlace

ShardOf: TypeAlias = Callable[[Declaration], str]
"""Returns the shard of the jobs of a class."""


_HIDDEN_ARGS = "encrypted_args"


_SCHEMA = SettingsSchema(CronSettings)


class _NewEntries(Section):
    """The shape of ``config/schedule.yml``, so that the same checks apply."""

    schedule: Schedule


@dataclass(frozen=True, slots=True)
class AddedEntry:
    """One entry that was added at run time. ``added_at`` is in epoch seconds."""

    entry: CronEntrySettings
    reason: str = ""
    added_by: str = ""
    added_at: float = 0.0
    secret_args: str = ""
    """The arguments of a class with ``encrypt``, encrypted; those of ``entry`` are empty then."""

    def encode(self) -> bytes:
        """Return the stored form."""
        facts = self.entry.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        secret = {_HIDDEN_ARGS: self.secret_args} if self.secret_args else {}
        return dumps({**facts, **secret, "reason": self.reason, "added_by": self.added_by, "added_at": self.added_at})


def decode_added(data: bytes) -> AddedEntry | None:
    """Return the entry in ``data``, ``None`` if it cannot be read."""
    try:
        fields = loads(data, None)
        if not is_mapping(fields):
            return None
        facts: dict[str, Any] = dict(fields)
        reason, added_by = str(facts.pop("reason", "")), str(facts.pop("added_by", ""))
        added_at, secret = float(facts.pop("added_at", 0.0)), str(facts.pop(_HIDDEN_ARGS, ""))
        return AddedEntry(CronEntrySettings.model_validate(facts), reason, added_by, added_at, secret)
    except (PayloadError, ValueError, TypeError):
        return None


def added_place(application: str, name: str) -> StatePlace:
    """Return the place of an entry, to which its signature is bound."""
    return StatePlace("cron entry", keys.cron_entries(application), (name,))


def hide_arguments(settings: CronSettings, name: str, added: AddedEntry, declaration: Declaration) -> AddedEntry:
    """Return an entry as it is stored: with encrypted arguments, if the class has ``encrypt``.

    Raises:
        EncryptionKeyError: there is no key.
    """
    if not (declaration.encrypt and added.entry.args):
        return added
    arguments = dumps(list(added.entry.args))
    secret = open_protection(settings).seal(arguments, _secret_place(settings, name), declaration.wire_name)
    return replace(added, entry=added.entry.model_copy(update={"args": ()}), secret_args=secret)


def _shown_arguments(
    settings: CronSettings, protection: PayloadProtection, name: str, added: AddedEntry
) -> CronEntrySettings:
    """Return the settings of a stored entry, with decrypted arguments. Raises PayloadError and MissingKeyError."""
    if not added.secret_args:
        return added.entry
    args = loads(protection.open(added.secret_args, _secret_place(settings, name)), None)
    return added.entry.model_copy(update={"args": tuple(args)})


def _secret_place(settings: CronSettings, name: str) -> list[Json]:
    return ["cron entry", settings.cron.application, name]


def check_new_entry(
    settings: CronSettings, name: str, facts: Mapping[str, Any]
) -> tuple[CronEntrySettings, Declaration]:
    """Return a new entry and its class, checked as an entry of ``config/schedule.yml`` is.

    Raises:
        ConfigurationError: with every problem: a wrong value, an unknown class, arguments that do not fit ``perform``, a name that
            the file or a class has.
    """
    place = f"the cron entry {name!r}"
    try:
        entry = _NewEntries.model_validate({"schedule": {name: dict(facts)}}).schedule[name]
    except ValidationError as error:
        found = to_problems(error, ValueSources(_SCHEMA, None, {}, {}))
        raise ConfigurationError(
            [ConfigurationProblem(place, one.key.removeprefix(f"schedule.{name}."), one.message) for one in found]
        ) from None
    taken = _configured_place(settings, name, collect_entries(settings))
    if taken:
        message = f"{taken} has an entry of this name. Take another name, or change that entry with `cron set`"
        raise ConfigurationError([ConfigurationProblem(place, "", message)])
    worker = registry.find(entry.class_)
    if worker is None:
        known: Sequence[str] = registry.names()
        message = (
            f"no loaded module has a worker of the wire name {entry.class_!r}{did_you_mean(entry.class_, known)}. "
            "Load the module of the class first"
        )
        raise ConfigurationError([ConfigurationProblem(place, "class", message)])
    declaration: Declaration = worker.declaration()
    problems = list(arguments_problems(place, "args", declaration, entry.args))
    if problems:
        raise ConfigurationError(problems)
    return entry, declaration


def _configured_place(settings: CronSettings, name: str, configured: Collection[str]) -> str:
    """Return which part of the configuration has an entry of this name; empty if none has."""
    if name in settings.schedule:
        return settings.config_file_label(SCHEDULE_FILE)
    return "the attribute cron of a class" if name in configured else ""


class AddedEntries:
    """Read the entries that were added at run time on one shard, and check them. One thread uses it."""

    def __init__(self, settings: CronSettings, shard: str, shard_of: ShardOf, absent: AbsentKeys | None = None) -> None:
        """``absent`` knows whether the key of the entries may exist; without ``absent`` it is always read."""
        self._settings = settings
        self._shard = shard
        self._shard_of = shard_of
        self._absent = absent or AbsentKeys()
        self._key = keys.cron_entries(settings.cron.application)
        self._protection = open_protection(settings)
        self._raw: Mapping[str, bytes] = {}
        self._usable: Mapping[str, CronEntry] = {}
        self.unusable: Mapping[str, str] = {}
        """Why an entry pushes nothing here, by name."""

    def may_exist(self) -> bool:
        """Return whether the stored entries have to be read: the record task of the process asks for their key (decision 212)."""
        return self._absent.may_exist(self._key)

    def usable(self, raw: Mapping[str, bytes]) -> Mapping[str, CronEntry]:
        """Return the entries that this process can push, by name. Only a change of the stored entries costs anything."""
        self._absent.note(self._key, found=bool(raw))
        if raw != self._raw:
            found: dict[str, CronEntry] = {}
            unusable: dict[str, str] = {}
            for name, data in raw.items():
                one = self.usable_entry(name, data)
                if isinstance(one, str):
                    unusable[name] = one
                else:
                    found[name] = one
            self._raw, self._usable, self.unusable = dict(raw), found, unusable
        return self._usable

    @cached_property
    def _configured(self) -> Collection[str]:
        return collect_entries(self._settings).keys()

    def usable_entry(self, name: str, data: bytes) -> CronEntry | str:
        """Return the entry, or why this process cannot push its jobs."""
        try:
            added = decode_added(self._protection.state.open(added_place(self._settings.cron.application, name), data))
        except (StateRefusedError, MissingKeyError) as error:
            return error.reason
        if added is None:
            return "it cannot be read"
        taken = _configured_place(self._settings, name, self._configured)
        if taken:
            return f"{taken} has an entry of this name, which counts"
        worker = registry.find(added.entry.class_)
        if worker is None:
            return f"the class {added.entry.class_} is not loaded"
        declaration: Declaration = worker.declaration()
        shard = self._shard_of(declaration)
        if shard != self._shard:
            return f"jobs of {declaration.wire_name} are routed to the shard {shard} now: remove it, and add it again"
        try:
            entry = _shown_arguments(self._settings, self._protection, name, added)
        except (PayloadError, MissingKeyError) as error:
            return error.reason
        made = entry_of(name, declaration, entry, self._settings.cron, "added")
        return replace(made, added_by=added.added_by, note=added.reason)
