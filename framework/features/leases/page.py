"""The exclusive leases of the application. Operators end one here."""

from collections.abc import Iterable

from framework.features.leases.store import LeaseState, end_lease, read_leases
from framework.pages.forms import Form
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_duration


class LeaseRows(Rows[LeaseState]):
    """The leases that are held. Their tokens are not shown: a token makes a program the holder."""

    noun = "lease"

    def read(self, view: View, shard: Shard) -> Iterable[LeaseState]:  # noqa: ARG002 - of Rows
        """Return the leases of a shard."""
        return read_leases(shard.client)

    def name_of(self, one: LeaseState) -> str:
        """Return the name."""
        return one.name

    def facts(self, one: LeaseState) -> Facts:
        """Return the holder and the times."""
        return {"holder": one.holder, "since": one.since, "left_s": one.left_s}


class EndLease(RowAction[LeaseState]):
    """End leases for their holders."""

    name = "end"
    label = "End lease"
    role = "admin"
    is_harmful = True
    record = "jobs leases delete"
    rows = LeaseRows()

    def shown(self, at: FormAt, one: LeaseState) -> str:
        """Return the holder."""
        return Sentence(
            "{name} on {shard}: held by {holder}, for {time} more",
            name=one.name,
            shard=at.shard.name,
            holder=one.holder,
            time=format_duration(one.left_s),
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "Another holder may take it, while the work of the first one goes on: that one sees it at its next renewal."
        )

    def change(self, at: FormAt, one: LeaseState) -> int:
        """End it if it has the same holder."""
        return int(end_lease(at.shard.client, one))


class LeasesPage(TablePage[LeaseState]):
    """Show the leases that are held."""

    name = "leases"
    path = "/leases"
    title = "Leases"
    menu = "control"
    rows = LeaseRows()
    heading = "Lease"
    columns = (
        Column("Holder", "holder"),
        Column("Since", "since", "time"),
        Column("Ends in", "left_s", "duration"),
    )
    about = "Exclusive leases that code takes with framework.lease."
    empty = "No lease is held."
    actions = (EndLease(),)
