"""The batches: how many of their jobs have ended, and how. Operators cancel and delete them here."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from framework.features.batches.batch import BatchStatus
from framework.features.batches.store import change_batch, list_batches
from framework.pages.forms import Form
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard

_MOST = 200


class BatchRows(Rows[BatchStatus]):
    """Some of the batches that are kept."""

    noun = "batch"

    def read(self, view: View, shard: Shard) -> Iterable[BatchStatus]:  # noqa: ARG002 - of Rows
        """Return batches of a shard."""
        return list(islice(list_batches(shard), _MOST))

    def name_of(self, one: BatchStatus) -> str:
        """Return the id."""
        return one.bid

    def facts(self, one: BatchStatus) -> Facts:
        """Return the counts and the times."""
        return {
            "description": one.description,
            "parent": one.parent,
            "state": _state(one),
            "ended": (one.total - one.pending, one.total),
            "total": one.total,
            "pending": one.pending,
            "failures": one.failures,
            "dead": one.dead,
            "removed": one.removed,
            "children": one.children,
            "created_at": one.created_at,
            "complete_at": one.complete_at,
            "success_at": one.success_at,
            "cancelled_at": one.cancelled_at,
            "expires_at": one.expires_at,
        }


class CancelBatch(RowAction[BatchStatus]):
    """Cancel the jobs of batches, and of their nested ones."""

    name = "cancel"
    label = "Cancel"
    record = "batches cancel"
    is_harmful = True
    rows = BatchRows()

    def shown(self, at: FormAt, one: BatchStatus) -> str:
        """Return what of it is pending."""
        nested = f", {one.children:,} nested batches" if one.children else ""
        return f"{one.bid} on {at.shard.name}: {one.pending:,} of {one.total:,} jobs pending{nested}"

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return (
            "Jobs that wait do not start any more, and running ones are asked to end, within five seconds. The events complete and "
            "finished happen once all have ended. This cannot be undone."
        )

    def change(self, at: FormAt, one: BatchStatus) -> int:
        """Cancel it if it is still there."""
        return int(change_batch(at.shard, one.bid, "cancel") > 0)


class DeleteBatch(RowAction[BatchStatus]):
    """Delete the states of batches."""

    name = "delete"
    label = "Delete state"
    role = "admin"
    record = "batches delete"
    is_harmful = True
    rows = BatchRows()

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return "Their jobs still run, and no callback of them is enqueued any more. This cannot be undone."

    def change(self, at: FormAt, one: BatchStatus) -> int:
        """Delete its state."""
        return int(change_batch(at.shard, one.bid, "delete") > 0)


class BatchesPage(TablePage[BatchStatus]):
    """Show the batches, the newest first."""

    name = "batches"
    path = "/batches"
    title = "Batches"
    menu = "jobs"
    rows = BatchRows()
    heading = "Batch"
    name_kind = "code"
    columns = (
        Column("Description", "description"),
        Column("State", "state", "tag"),
        Column("Progress", "ended", "progress"),
        Column("Failures", "failures", "count"),
        Column("Dead", "dead", "count"),
        Column("Removed", "removed", "count"),
        Column("Nested", "children", "count"),
        Column("Nested in", "parent", "code"),
        Column("Made", "created_at", "time"),
        Column("Expires", "expires_at", "time"),
    )
    empty = "No batch is kept."
    actions = (CancelBatch(), DeleteBatch())

    def order(self, row: Facts) -> Any:
        """Return the newest first."""
        return -row["created_at"], row["name"]


def _state(one: BatchStatus) -> str:
    if one.cancelled_at is not None:
        return "cancelled"
    if one.success_at is not None:
        return "succeeded"
    if one.dead:
        return "has dead jobs"
    if one.complete_at is not None:
        return "complete"
    return "open" if one.open else "runs"
