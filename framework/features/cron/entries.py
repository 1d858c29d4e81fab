"""Collect the configured entries of the schedule, apply the operators' orders to them, and decide which ticks are due."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from framework.cron_expression import CronExpression, check_cron
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ArgumentsError, ConfigurationProblem, PayloadError
from framework.features.cron.settings import CronEntrySettings, CronSection, CronSettings
from framework.route.router import LoadedWorkers
from framework.text import did_you_mean
from framework.typeguards import is_list, is_mapping
from framework.wire.json import dumps, loads
from framework.wire.protected import HIDDEN

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
        """Return the stored form."""
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
    """Return the entry of these settings."""
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
        """Return the last due tick."""
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
