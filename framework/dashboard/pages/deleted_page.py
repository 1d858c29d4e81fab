"""The jobs that operators have deleted in the last 24 hours, to bring them back."""

import hashlib
from collections.abc import Iterable
from itertools import islice
from typing import Any

from framework.admin.deleted_jobs import DeletedJob, read_deleted
from framework.pages.forms import Form
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_count

_MOST = 500
_DIGITS = 16


class DeletedRows(Rows[DeletedJob]):
    """The jobs that were deleted last."""

    noun = "job"

    def read(self, view: View, shard: Shard) -> Iterable[DeletedJob]:
        """Return the deleted jobs of a shard."""
        return list(islice(read_deleted(shard, view.installation.settings), _MOST))

    def name_of(self, one: DeletedJob) -> str:
        """Return a name for the deletion: a job may have been deleted twice."""
        return hashlib.sha256(one.member).hexdigest()[:_DIGITS]

    def worker_of(self, one: DeletedJob) -> str | None:
        """Return the class."""
        return one.worker

    def facts(self, one: DeletedJob) -> Facts:
        """Return the job, its set and the time."""
        return {
            "jid": one.jid,
            "class": one.display_class,
            "queue": one.queue,
            "place": one.place,
            "deleted_at": one.deleted_at,
            "error_class": one.error_class,
        }


class UndoDelete(RowAction[DeletedJob]):
    """Bring deleted jobs back."""

    name = "undo"
    label = "Bring back"
    record = "jobs undo"
    rows = DeletedRows()

    def shown(self, at: FormAt, one: DeletedJob) -> str:
        """Return the job and where it goes."""
        return Sentence(
            "{worker} {jid} on {shard}: back to {place}",
            worker=one.display_class or Sentence("malformed"),
            jid=one.jid,
            shard=at.shard.name,
            place=one.place,
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "They go back to the sets that they come from; those that are due by now run at once. Their locks were "
            "freed, and their batches have counted them as removed: they come back without these."
        )

    def change(self, at: FormAt, one: DeletedJob) -> int:  # noqa: ARG002 - of ShardAction
        """Bring it back, unless another operator has."""
        return int(one.undo())

    def done(self, count: int) -> str:
        """Return how many are back."""
        return Sentence("{jobs} back", jobs=format_count(count, "job", "is"))


class DeletedPage(TablePage[DeletedJob]):
    """Show the deleted jobs, the last one first."""

    name = "deleted"
    path = "/deleted"
    title = "Deleted"
    menu = "jobs"
    of_jobs = True
    rows = DeletedRows()
    heading = "Deletion"
    name_kind = "code"
    columns = (
        Column("Class", "class", "class"),
        Column("Queue", "queue", "queue"),
        Column("From", "place", "tag"),
        Column("Deleted", "deleted_at", "time"),
        Column("Error", "error_class"),
        Column("Job", "jid"),
    )
    about = "Jobs that were deleted from a set in the last 24 hours. They can be brought back."
    empty = "No job was deleted in the last 24 hours."
    actions = (UndoDelete(),)

    def order(self, row: Facts) -> Any:
        """Return the last one first."""
        return -row["deleted_at"], row["name"]
