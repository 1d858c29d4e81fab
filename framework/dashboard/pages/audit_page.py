"""The audit log: which operator did what, to how many jobs, from where."""

from dataclasses import asdict

from framework import admin
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN = 200


class AuditPage(Page):
    """Show the last actions of operators. ``actor`` and ``action`` of the query choose some."""

    name = "audit"
    path = "/audit"
    title = "Audit log"
    menu = "records"
    role = "operate"

    async def read(self, view: View) -> Facts:
        """Read the last actions on each shard, the newest first."""
        actor, action = view.query.get("actor"), view.query.get("action")
        found = await view.each(lambda shard: admin.audit_log(actor=actor, action=action, limit=_SHOWN, shard=shard))
        records = sorted((one for listed in found.values() for one in listed), key=lambda one: -one.at)
        return {"actor": actor, "action": action, "records": [asdict(one) for one in records[:_SHOWN]]}
