"""The locks of deduplicated jobs. Operators release one here, so that an equal job may be pushed."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from framework.admin.statistics import ignore_progress
from framework.features.deduplication.admin import HeldLock, delete_lock, scan_locks
from framework.pages.forms import Form
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_duration

_MOST = 1_000
"""The locks that are read of a shard: a class may hold a million."""


class LockRows(Rows[HeldLock]):
    """Some of the locks of a shard, of the class of the query if it names one."""

    noun = "lock"

    def read(self, view: View, shard: Shard) -> Iterable[HeldLock]:
        """Return the first locks that are found."""
        worker = view.query.get("class")
        found = scan_locks(shard.client, ignore_progress)
        return list(islice((one for one in found if worker in (None, one.worker)), _MOST))

    def name_of(self, one: HeldLock) -> str:
        """Return the key."""
        return one.key

    def worker_of(self, one: HeldLock) -> str | None:
        """Return the class."""
        return one.worker

    def facts(self, one: HeldLock) -> Facts:
        """Return its holder and its times."""
        return {
            "class": one.worker,
            "jid": one.jid,
            "since": one.since,
            "left_s": one.left_s,
            "duplicates": one.duplicates,
        }


class DeleteLock(RowAction[HeldLock]):
    """Release locks."""

    name = "delete"
    label = "Release"
    role = "admin"
    is_harmful = True
    record = "jobs locks delete"
    rows = LockRows()

    def shown(self, at: FormAt, one: HeldLock) -> str:
        """Return the holder of a lock."""
        left = (
            Sentence("without end")
            if one.left_s is None
            else Sentence("for {time} more", time=format_duration(one.left_s))
        )
        return Sentence(
            "{key} on {shard}: held by job {jid} of {worker}, {left}",
            key=one.key,
            shard=at.shard.name,
            jid=one.jid,
            worker=one.worker,
            left=left,
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "An equal job may be pushed, also while the job that held the lock waits or runs: both then run. A lock that "
            "another job holds by then stays."
        )

    def change(self, at: FormAt, one: HeldLock) -> int:
        """Delete it if the same job holds it."""
        return int(delete_lock(at.shard.client, one))


class LocksPage(TablePage[HeldLock]):
    """Show the locks that are held, the oldest first. ``class`` of the query chooses those of a class."""

    name = "locks"
    path = "/locks"
    title = "Locks"
    menu = "control"
    mends = ("lock_left", "lock_outlived")
    filters_class = True
    of_jobs = True
    # It looks through the keys of the shard.
    within_s = 5.0
    fresh_s = 30.0
    class_part = "rows"
    rows = LockRows()
    heading = "Lock"
    name_kind = "code"
    columns = (
        Column("Class", "class", "class"),
        Column("Held by", "jid", "job"),
        Column("Taken", "since", "time"),
        Column("Ends in", "left_s", "duration"),
        Column("Duplicates", "duplicates", "count"),
    )
    about = "While a job holds a lock, equal jobs are dropped or wait for it."
    empty = "No lock is held."
    actions = (DeleteLock(),)

    def order(self, row: Facts) -> Any:
        """Return the oldest first."""
        return row["since"] or 0.0, row["name"]
