"""Add and remove entries of the schedule at run time, and list all entries, for the data API.

The class of an entry must be loaded: its arguments are checked, and its jobs decide about the shard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from framework.admin.access import Listing, check_writable, collect, sum_of
from framework.admin.audit import acting_name, audited
from framework.admin.port import current
from framework.async_twin import async_twin
from framework.declare.declaration import Declaration
from framework.declare.port import current as current_client
from framework.errors import ConfigurationError, ConfigurationProblem, JobRefusedError, UnknownNameError
from framework.features.cron.changes import with_order
from framework.features.cron.entries import (
    AddedEntries,
    AddedEntry,
    CronEntry,
    Missed,
    Origin,
    Overlap,
    check_new_entry,
    collect_entries,
    hide_arguments,
)
from framework.features.cron.settings import CronSettings
from framework.features.cron.store import CronStates, Snapshot, last_tick, next_tick
from framework.push.protection import open_protection
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.typeguards import is_text, short_repr


@dataclass(frozen=True, slots=True)
class ScheduledEntry:
    """One entry of the schedule, with the operators' order applied. Ticks are in epoch seconds."""

    name: str
    shard: str
    cls: str
    cron: str
    time_zone: str
    args: tuple[Any, ...]
    origin: Origin
    """``file``, ``class`` or ``added``."""
    enabled: bool
    missed: Missed
    overlap: Overlap
    offset_s: int
    """The seconds by which a tick pushes its job later than its time."""
    next_tick: int | None
    """``None`` for an entry that is disabled."""
    last_tick: int | None
    """The last tick that had a job."""
    last_jid: str
    waits: bool
    """Whether a run waits for the end of the last job (``overlap: queue``)."""
    reason: str
    """The reason of the operator that changed the entry; else of the one that added it."""


def add_cron_entry(
    name: str,
    *,
    cron: str,
    cls: type[Any] | str,
    args: Sequence[Any] = (),
    time_zone: str = "UTC",
    missed: Missed = "once",
    overlap: Overlap = "run",
    spread: int | None = None,
    reason: str = "",
) -> None:
    """Add an entry to the schedule, which stays over deploys. It begins with its next tick, within 5 s.

    It is checked as an entry of ``config/schedule.yml`` is. ``cls`` is a worker class or its wire name. To change an entry, remove it
    and add it again.

    Raises:
        ConfigurationError: a value is wrong, no class of that name is loaded, the arguments do not fit ``perform``, or the
            configuration has an entry of this name.
        JobRefusedError: an entry of this name was added before.
        ShardUnavailableError: the shard of the jobs does not answer.
        ReadOnlyError: the call is inside of a ``read_only`` block.
    """
    check_writable("add_cron_entry()")
    _check_types(name, cls, args, reason)
    wire_name = cls if isinstance(cls, str) else cls.declaration().wire_name
    facts: dict[str, Any] = {"cron": cron, "class": wire_name, "args": list(args), "time_zone": time_zone}
    facts |= {"missed": missed, "overlap": overlap, "spread": spread}
    settings = CronSettings.of(current().settings)
    entry, declaration = check_new_entry(settings, name, facts)

    def add(shard: Shard) -> int:
        added = AddedEntry(entry, reason.strip(), acting_name(), server_time(shard.client))
        added = hide_arguments(settings, name, added, declaration)
        return states_of(shard).add(name, added.encode())

    what = {"entry": name, "class": wire_name, "cron": cron, "reason": reason.strip()}
    if not sum_of(_shard_of(declaration), audited("add_cron_entry", add, what)):
        raise JobRefusedError(f"an entry {name!r} was added before: remove_cron_entry({name!r}) removes it")


aadd_cron_entry = async_twin(add_cron_entry)


def remove_cron_entry(name: str) -> None:
    """Remove an entry that was added at run time, with its state. Its jobs in the queue stay.

    Raises:
        UnknownNameError: no entry of this name was added. An entry of the configuration is disabled with ``cron disable``.
        ShardUnavailableError: a shard does not answer.
        ReadOnlyError: the call is inside of a ``read_only`` block.
    """
    check_writable("remove_cron_entry()")
    if not is_text(name):
        raise UnknownNameError(f"no entry {name!r} was added at run time")
    application = CronSettings.of(current().settings).cron.application
    remove = audited("remove_cron_entry", lambda one: CronStates(one.client, application).remove(name), {"entry": name})
    if not sum_of(None, remove):
        raise UnknownNameError(f"no entry {name!r} was added at run time")


aremove_cron_entry = async_twin(remove_cron_entry)


def cron_entries(shard: str | None = None) -> Listing[ScheduledEntry]:
    """Return the entries of the schedule whose classes are loaded, by shard and name.

    Raises:
        ShardUnavailableError: no shard answers.
    """

    def read(one: Shard) -> list[ScheduledEntry]:
        snapshot = states_of(one).read()
        here = entries_on(one, snapshot.added)
        return [_described(here[name], one.name, snapshot) for name in sorted(here)]

    return collect(shard, read)


acron_entries = async_twin(cron_entries)


def _check_types(name: Any, cls: Any, args: Any, reason: Any) -> None:
    """Check what the checks of an entry do not see. Raises ConfigurationError."""
    wrong = {
        "cls": None if isinstance(cls, str) or hasattr(cls, "declaration") else "a worker class, or its wire name",
        "args": None if isinstance(args, Sequence) and not isinstance(args, str | bytes) else "a list of arguments",
        "reason": None if isinstance(reason, str) and reason.isprintable() else "a text of one line",
    }
    values: dict[str, Any] = {"cls": cls, "args": cast("Any", args), "reason": reason}
    problems = [
        ConfigurationProblem(f"the cron entry {name!r}", key, f"must be {allowed}, not {short_repr(values[key])}")
        for key, allowed in wrong.items()
        if allowed is not None
    ]
    if problems:
        raise ConfigurationError(problems)


def entries_on(shard: Shard, added: Mapping[str, bytes]) -> dict[str, CronEntry]:
    """Return the entries whose jobs go to a shard, by name: those of the configuration, and of these that were added."""
    settings = CronSettings.of(current().settings)
    configured = collect_entries(settings)
    here = {name: entry for name, entry in configured.items() if _shard_of(entry.declaration) == shard.name}
    return {**here, **AddedEntries(settings, shard.name, _shard_of).usable(added)}


def states_of(shard: Shard) -> CronStates:
    """Return the states of the entries on a shard."""
    settings = CronSettings.of(current().settings)
    return CronStates(shard.client, settings.cron.application, open_protection(settings).state)


def _shard_of(declaration: Declaration) -> str:
    return current_client().home(declaration)


def _described(configured: CronEntry, shard: str, snapshot: Snapshot) -> ScheduledEntry:
    entry = with_order(configured, snapshot)
    state = snapshot.states.get(entry.name)
    return ScheduledEntry(
        name=entry.name,
        shard=shard,
        cls=entry.declaration.wire_name,
        cron=entry.expression.text,
        time_zone=entry.expression.zone,
        args=entry.shown_args,
        origin=entry.origin,
        enabled=entry.enabled,
        missed=entry.missed,
        overlap=entry.overlap,
        offset_s=entry.offset_s,
        next_tick=next_tick(entry, state, snapshot.now),
        last_tick=last_tick(state),
        last_jid=state.jid if state is not None else "",
        waits=state is not None and state.waits,
        reason=entry.order.reason or entry.note,
    )
