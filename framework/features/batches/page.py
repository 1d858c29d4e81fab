"""The batches: how many of their jobs have ended, and how."""

from itertools import islice

from framework.features.batches.admin import batches
from framework.features.batches.batch import BatchStatus
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN = 200


class BatchesPage(Page):
    """Show the batches, the newest first."""

    name = "batches"
    path = "/batches"
    title = "Batches"
    menu = "jobs"

    async def read(self, view: View) -> Facts:
        """Read some batches of each shard."""
        found = await view.each(lambda shard: list(islice(batches(shard), _SHOWN)))
        statuses = [one for listed in found.values() for one in listed]
        return {"batches": [_facts(one) for one in sorted(statuses, key=lambda one: -one.created_at)]}


def _facts(one: BatchStatus) -> Facts:
    return {
        "bid": one.bid,
        "shard": one.shard,
        "description": one.description,
        "parent": one.parent,
        "total": one.total,
        "pending": one.pending,
        "failures": one.failures,
        "dead": one.dead,
        "removed": one.removed,
        "is_open": one.open,
        "created_at": one.created_at,
        "complete_at": one.complete_at,
        "success_at": one.success_at,
        "cancelled_at": one.cancelled_at,
    }
