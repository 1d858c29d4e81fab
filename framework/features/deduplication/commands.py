"""``jobs locks``: show the locks of deduplicated jobs, and delete one."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

from framework.command_line import EXIT_FAILED, remedy_command
from framework.errors import PayloadError
from framework.features.deduplication.admin import HeldLock, LockCount, count_locks, delete_lock, find_lock, scan_locks
from framework.features.deduplication.push import Deduplicator
from framework.push.protection import open_protection
from framework.shard.shard import Shard
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import json_option, modules_option, shard_option, yes_option
from framework.terminal.output import echo, refuse_unknown, reports_errors, unknown_worker_message
from framework.terminal.project import load_project, refuse_unknown_class
from framework.terminal.shards import ChangeWords, NamedTable, ShardCommand, ShardTable, progress_reporter
from framework.text import format_age, format_count, format_duration
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import loads
from framework.wire.resources import IDEMPOTENCY_KEY

_DEFAULT_MAX_LOCKS = 100


class _Classes(ShardTable[LockCount]):
    field = "classes"
    headings = ("CLASS", "LOCKS", "OLDEST", "DUPLICATES")

    def row(self, one: LockCount, now: float) -> Sequence[str]:
        return one.worker or "?", f"{one.locks:,}", format_age(now, one.oldest), f"{one.duplicates:,}"


class _Locks(NamedTable[HeldLock]):
    field = "locks"
    headings = ("LOCK", "JID", "SINCE", "ENDS IN", "DUPLICATES")

    def row(self, one: HeldLock, now: float) -> Sequence[str]:
        ends = "never" if one.left_s is None else format_duration(one.left_s)
        return one.key, one.jid, format_age(now, one.since), ends, f"{one.duplicates:,}"

    def find(self, shard: Shard, name: str) -> HeldLock | None:
        return find_lock(shard.client, name)

    def describe(self, shard: Shard, one: HeldLock) -> Iterable[str]:
        left = "without end" if one.left_s is None else f"for {format_duration(one.left_s)} more"
        yield f"{shard.name}: {one.key} is held {left} by the job {one.jid} of {one.worker}"
        yield f"  to find that job: {remedy_command('jobs', 'explain', one.jid, '--shard', shard.name)}"


_LOCKS = _Locks()


@click.group("locks", cls=DefaultShowGroup)
def locks() -> None:
    """Show and delete the locks of deduplicated jobs.

    While a job has a lock, equal jobs are dropped. Without a command the locks are shown.
    """


@locks.command("show")
@click.argument("what", required=False, metavar="[CLASS|KEY]")
@click.argument("arguments", nargs=-1, metavar="[ARG]...")
@click.option(
    "--most",
    type=click.IntRange(1),
    default=_DEFAULT_MAX_LOCKS,
    show_default=True,
    help="Show at most this number of locks.",
)
@modules_option
@shard_option
@json_option
@reports_errors
def show(
    what: str | None,
    arguments: Sequence[str],
    *,
    most: int,
    names: Sequence[str],
    as_json: bool,
    modules: Sequence[str],
) -> None:
    """Count the locks of each class, or show the locks of CLASS, or the lock KEY.

    For a lock the table shows the job that holds it, and the time left.

    With ARGs, each as JSON or as a word, show the lock of the jobs of CLASS with these arguments.
    """
    on = ShardCommand(names)
    if what is not None and arguments:
        what = _key_of(what, arguments, modules)
    if what is None:
        _show_counts(on, as_json=as_json)
    else:
        _show_locks(on, what, most, modules, as_json=as_json)
    on.exit_if_unanswered()


def _show_counts(on: ShardCommand, *, as_json: bool) -> None:
    found = on.read(lambda shard: count_locks(shard.client, progress_reporter(shard.name)))
    on.show(_Classes().of(found, "No lock is held"), as_json=as_json)


def _show_locks(on: ShardCommand, what: str, most: int, modules: Sequence[str], *, as_json: bool) -> None:
    found = sorted(on.read(lambda shard: _read(shard, what)), key=lambda row: row.one.since or 0.0)
    none = f"No job holds {what}" if _is_key(what) else f"No job of the class {what} holds a lock"
    on.show(_LOCKS.of(found, none, most=most), as_json=as_json)
    if as_json:
        return
    if not found and not _is_key(what) and not on.unanswered:
        refuse_unknown_class(what, modules)
    if len(found) > most:
        echo(f"and {format_count(len(found) - most, 'younger lock')}: --most shows more")


def _key_of(name: str, arguments: Sequence[str], modules: Sequence[str]) -> str:
    """Return the key of the lock that a push of the class with these arguments would take."""
    if _is_key(name):
        raise click.UsageError(f"{name} is the key of a lock: give arguments only with a class.")
    project = load_project(modules)
    refuse_unknown([name], project.workers, unknown_worker_message, status=EXIT_FAILED)
    declaration = project.declarations[name]
    bound = declaration.signature.bind([_value(argument) for argument in arguments], {})
    payload: Payload = {"jid": "", "version": declaration.version}
    Deduplicator().set_key(payload, declaration, bound)
    if declaration.encrypt:
        open_protection(project.settings).hide_lock_key(payload)
    return str(payload[IDEMPOTENCY_KEY])


def _value(argument: str) -> Any:
    try:
        return loads(argument.encode())
    except PayloadError:
        return argument


def _is_key(what: str) -> bool:
    return what.startswith(keys.LOCKS)


def _read(shard: Shard, what: str) -> list[HeldLock]:
    if _is_key(what):
        found = find_lock(shard.client, what)
        return [] if found is None else [found]
    return [one for one in scan_locks(shard.client, progress_reporter(shard.name)) if one.worker == what]


@locks.command("delete")
@click.argument("what", metavar="KEY|CLASS")
@click.argument("arguments", nargs=-1, metavar="[ARG]...")
@yes_option
@modules_option
@shard_option
@reports_errors
def delete(what: str, arguments: Sequence[str], *, yes: bool, names: Sequence[str], modules: Sequence[str]) -> None:
    """Delete the lock KEY, or the lock of the jobs of CLASS with these arguments.

    An equal job may then be pushed, even while the job that held the lock runs.

    The command shows the lock and deletes it only while the same job holds it. Status 1: there was no lock, or another
    job holds it now.
    """
    key = what if _is_key(what) else _key_of(what, arguments, modules)
    words = ChangeWords(
        "Delete the lock", "deleted", "not deleted, because another job holds it now", f"No lock was deleted: {key}"
    )
    _LOCKS.change(ShardCommand(names), key, lambda shard, held: delete_lock(shard.client, held), words, yes=yes)
