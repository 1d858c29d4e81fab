"""Collect the entries of the schedule, configured and added at run time, apply the operators' orders, and find the due ticks."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeAlias

from pydantic import ValidationError

from framework.cron_expression import CronExpression, check_cron
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import (
    ArgumentsError,
    ConfigurationError,
    ConfigurationProblem,
    MissingKeyError,
    PayloadError,
    StateRefusedError,
)
from framework.features.cron import keys
from framework.features.cron.settings import CronEntrySettings, CronSection, CronSettings, Schedule
from framework.push.protection import PayloadProtection, open_protection
from framework.route.router import LoadedWorkers
from framework.settings.base import Section, SettingsSchema
from framework.settings.load import ValueSources, to_problems
from framework.store.absent_keys import AbsentKeys
from framework.text import did_you_mean
from framework.typeguards import is_list, is_mapping
from framework.types import Json
from framework.wire.json import dumps, loads
from framework.wire.protected import HIDDEN, StatePlace

Missed: TypeAlias = Literal["skip", "once", "all"]
Overlap: TypeAlias = Literal["run", "skip", "queue"]
Origin: TypeAlias = Literal["file", "class", "added"]
"""Where an entry comes from: ``config/schedule.yml``, the attribute ``cron``, or an operator at run time."""

SCHEDULE_FILE = "schedule.yml"
"""The file of the schedule in the config folder."""

_FINGERPRINT_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Order:
    """The operators' order for one entry. ``None`` leaves what the configuration says."""

    enabled: bool | None = None
    cron: str | None = None
    args: list[Any] | None = None
    reason: str = ""
    set_by: str = ""
    set_at: float = 0.0

    def encode(self) -> bytes:
        return dumps(asdict(self))

    @property
    def changes_nothing(self) -> bool:
        """Return whether the entry is as the configuration says."""
        return self.enabled is None and self.cron is None and self.args is None

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to keep: it changes nothing, and no operator gave a reason for that."""
        return self.changes_nothing and not self.reason


NO_ORDER = Order()


@dataclass(frozen=True, slots=True)
class CronEntry:
    """One entry whose class this process has, with the operators' order applied."""

    name: str
    declaration: Declaration
    expression: CronExpression
    args: tuple[Any, ...] = ()
    missed: Missed = "once"
    overlap: Overlap = "run"
    enabled: bool = True
    order: Order = NO_ORDER
    offset_s: int = 0
    """The seconds by which each tick pushes its job later than its time (``spread``). The tick itself stays what it is."""
    origin: Origin = "class"
    added_by: str = ""
    """The operator that added the entry at run time."""
    note: str = ""
    """The reason that the operator gave."""

    def ordered(self, order: Order) -> "CronEntry":
        """Return the entry with an order of the operators applied."""
        return replace(
            self,
            expression=self.expression if order.cron is None else CronExpression(order.cron, self.expression.zone),
            args=self.args if order.args is None else tuple(order.args),
            enabled=self.enabled if order.enabled is None else order.enabled,
            order=order,
        )

    @property
    def shown_args(self) -> tuple[Any, ...]:
        """The arguments as commands show them: not those of a class with ``encrypt``."""
        return (HIDDEN,) if self.declaration.encrypt and self.args else self.args

    @property
    def fingerprint(self) -> str:
        """Return a short digest of the values that decide the ticks: an entry that changed begins with its next tick.

        The offset is not part of it: whatever it is, a tick is settled once, and none is lost when it changes.
        """
        facts = (self.enabled, self.expression.text, self.expression.zone, self.order.set_at)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:_FINGERPRINT_LENGTH]


def collect_entries(settings: CronSettings) -> dict[str, CronEntry]:
    """Return the entries whose classes are registered, by name. An entry of a class has the class's wire name.

    The file overrides the class: ``cron`` of a class has no effect if an entry of the file names the class, or has its wire name.
    """
    found: dict[str, CronEntry] = {}
    scheduled: set[str] = set(settings.schedule)
    for name, one in settings.schedule.items():
        worker: Any = registry.find(one.class_)
        if worker is not None:
            found[name] = entry_of(name, worker.declaration(), one, settings.cron)
            scheduled.add(worker.declaration().wire_name)
    for worker in registry.workers():
        declaration: Declaration = worker.declaration()
        facts = declaration.facts
        if facts["cron"] is not None and declaration.wire_name not in scheduled:
            expression = CronExpression(facts["cron"], facts["time_zone"])
            offset_s = spread_offset_s(declaration.wire_name, _declared_spread_s(declaration), settings.cron)
            found[declaration.wire_name] = CronEntry(declaration.wire_name, declaration, expression, offset_s=offset_s)
    return found


def spread_offset_s(name: str, spread_s: int | None, cron: CronSection) -> int:
    """Return the offset of an entry, from 0 to ``spread_s`` - 1 seconds; without a spread of its own, by the setting.

    A hash of the names of the application, the installation and the entry: the same in each process and after each restart,
    and different for two entries and for two installations.
    """
    within_s = cron.spread if spread_s is None else spread_s
    if not within_s:
        return 0
    names = f"{cron.application} {cron.installation} {name}"
    return int.from_bytes(hashlib.sha256(names.encode()).digest()[:8], "big") % within_s


def _declared_spread_s(declaration: Declaration) -> int | None:
    spread: timedelta | None = declaration.facts["spread"]
    return None if spread is None else round(spread.total_seconds())


def entry_of(
    name: str, declaration: Declaration, one: CronEntrySettings, cron: CronSection, origin: Origin = "file"
) -> CronEntry:
    return CronEntry(
        name,
        declaration,
        CronExpression(one.cron, one.time_zone),
        tuple(one.args),
        one.missed,
        one.overlap,
        one.enabled,
        offset_s=spread_offset_s(name, one.spread, cron),
        origin=origin,
    )


def unknown_classes(settings: CronSettings) -> dict[str, str]:
    """Return the entries of the file whose classes this process does not have, by name, with the class."""
    return {name: one.class_ for name, one in settings.schedule.items() if registry.find(one.class_) is None}


def schedule_problems(workers: LoadedWorkers) -> Iterator[ConfigurationProblem]:
    """Yield what is wrong with the file: unknown classes, if all modules of the application are loaded, and arguments.

    Processes that only push do not read the file.
    """
    if not workers.from_modules:
        return
    settings = CronSettings.of(workers.settings)
    file = settings.config_file_label(SCHEDULE_FILE)
    known = [one.wire_name for one in workers.declarations]
    for name, wire_name in unknown_classes(settings).items() if workers.whole else ():
        message = f"no worker has the wire name {wire_name!r}{did_you_mean(wire_name, known)}"
        yield ConfigurationProblem(file, f"schedule.{name}.class", message)
    for name, entry in collect_entries(settings).items():
        if name in settings.schedule:
            yield from arguments_problems(file, f"schedule.{name}.args", entry.declaration, entry.args)


def arguments_problems(file: str, key: str, declaration: Declaration, args: Any) -> Iterator[ConfigurationProblem]:
    """Yield why the arguments of an entry do not fit ``perform``."""
    try:
        declaration.signature.check(list(args))
    except ArgumentsError as error:
        place = f"argument {error.argument!r} " if error.argument else ""
        yield ConfigurationProblem(file, key, f"{declaration.wire_name}: {place}{error.reason}")


def decode_order(data: bytes | None) -> Order | None:
    """Return the order in ``data``, ``None`` if it cannot be read: the entry is then as the configuration says."""
    if data is None:
        return NO_ORDER
    try:
        fields = loads(data, None)
        if not is_mapping(fields):
            return None
        enabled, cron, args = fields.get("enabled"), fields.get("cron"), fields.get("args")
        return Order(
            enabled if isinstance(enabled, bool) else None,
            None if cron is None else check_cron(cron),
            args if is_list(args) else None,
            str(fields.get("reason", "")),
            str(fields.get("set_by", "")),
            float(fields.get("set_at", 0.0)),
        )
    except (PayloadError, ValueError, TypeError):
        return None


MOST_CAUGHT_UP = 100
"""The most missed ticks that ``missed: all`` catches up; older ones are skipped."""


@dataclass(frozen=True, slots=True)
class DueTicks:
    """The ticks that are due: those that push a job, in order, and those that are skipped because they are too late."""

    push: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    more_skipped: bool = False
    """Whether more ticks are skipped than ``skipped`` has."""

    @property
    def last(self) -> int:
        return (self.push or self.skipped or (0,))[-1]


NOTHING_DUE = DueTicks()


def due_ticks(expression: CronExpression, settled: int, now: float, missed: Missed, missed_after_s: float) -> DueTicks:
    """Return the due ticks after ``settled``, the last tick that was decided about. ``now`` is without the offset of the entry.

    A tick is missed ``missed_after_s`` after its time: no process ran, or Redis did not answer. Until then it is late and pushes its
    job whatever the policy, as the end of a leader or a restart of Redis delays ticks. A tick that is not missed does the work of the
    missed ones before it, so the policy ``once`` pushes a job for missed ticks only if no such tick is due.
    """
    found, more = expression.latest_ticks(settled, int(now), MOST_CAUGHT_UP)
    if not found:
        return NOTHING_DUE
    late = [tick for tick in found if now - tick > missed_after_s]
    kept = found[len(late) :]
    if missed == "all":
        kept, late = found, []
    elif missed == "once" and not kept:
        kept, late = late[-1:], late[:-1]
    return DueTicks(tuple(kept), tuple(late), more)


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
