"""The batches, and one of them with its tree. Operators cancel and delete them here."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from framework.features.batches.batch import BatchStatus
from framework.features.batches.payload import EVENTS
from framework.features.batches.store import change_batch, list_batches
from framework.features.batches.tree import BatchNode, BatchTree, read_tree
from framework.pages.forms import Form
from framework.pages.page import Page
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence

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
        nested = Sentence(", {children:,} nested batches", children=one.children) if one.children else ""
        return Sentence(
            "{bid} on {shard}: {pending:,} of {total:,} jobs pending{nested}",
            bid=one.bid,
            shard=at.shard.name,
            pending=one.pending,
            total=one.total,
            nested=nested,
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "Jobs that wait do not start any more, and running ones are asked to end, within five seconds. The events "
            "complete and finished happen once all have ended. This cannot be undone."
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
        return Sentence("Their jobs still run, and no callback of them is enqueued any more. This cannot be undone.")

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
    name_kind = "batch"
    columns = (
        Column("Description", "description"),
        Column("State", "state", "tag"),
        Column("Progress", "ended", "progress"),
        Column("Dead", "dead", "count"),
        Column("Nested", "children", "count"),
        Column("Nested in", "parent", "batch"),
        Column("Made", "created_at", "time"),
    )
    empty = "No batch is kept."
    actions = (CancelBatch(), DeleteBatch())

    def order(self, row: Facts) -> Any:
        """Return the newest first."""
        return -row["created_at"], row["name"]


class BatchPage(Page):
    """Show one batch: the batches around it and in it, its callbacks, and its jobs that failed."""

    name = "batch"
    path = "/batches/{batch}"
    title = "Batch"

    async def read(self, view: View) -> Facts:
        """Read the batch on the shard that has it.

        Raises:
            UnknownNameError: no shard has it, and all answer.
        """
        bid = view.parameters["batch"]
        one = await view.find(lambda shard: read_tree(view.shards[shard], bid), Sentence("the batch {bid}", bid=bid))
        if one is None:
            return {"batch": bid, "tree": None}
        return {"batch": bid, **_tree_facts(one)}


def _tree_facts(found: BatchTree) -> Facts:
    own = found.root.status
    times = {event: getattr(own, f"{event}_at") for event in EVENTS}
    return {
        "shard": own.shard,
        "tree": _node_facts(found.root),
        "above": [_batch_facts(one) for one in found.above],
        "has_more_above": bool((found.above[0] if found.above else own).parent),
        "callback_queue": own.callback_queue,
        "events": [
            {
                "event": event,
                "at": at,
                "callbacks": [
                    {"class": one.worker, "queue": one.queue} for one in found.callbacks if one.event == event
                ],
            }
            for event, at in times.items()
        ],
        "failed_jobs": list(found.failed),
        "dead_jobs": list(found.dead),
    }


def _node_facts(node: BatchNode) -> Facts:
    return {**_batch_facts(node.status), "nested": [_node_facts(one) for one in node.nested]}


def _batch_facts(one: BatchStatus) -> Facts:
    return {"batch": one.bid, **BatchRows().facts(one)}


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
