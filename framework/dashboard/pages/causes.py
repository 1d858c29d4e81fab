"""The page of the likely causes of trouble: what ``application-worker diagnose`` finds."""

import asyncio

from framework.admin.diagnosis.cause import Cause
from framework.admin.diagnosis.diagnose import diagnose
from framework.admin.diagnosis.facts import DiagnosisScope
from framework.pages.page import Page
from framework.pages.view import Facts, View


class CausesPage(Page):
    """Show what is wrong now, the likeliest cause first, each with its remedy."""

    name = "causes"
    path = "/causes"
    title = "What is wrong"
    menu = "now"
    fresh_s = 10.0
    # It looks at everything: windows of each set, ends of many queues.
    commands = 120
    searched_by = ("class", "queue")

    async def read(self, view: View) -> Facts:
        """Diagnose the shards. ``class`` and ``queue`` of the query narrow the question."""
        scope = DiagnosisScope(view.query.get("class"), view.query.get("queue"))
        shards = [view.shards[name] for name in sorted(view.shards)]
        found = await asyncio.to_thread(diagnose, shards, view.installation, scope)
        view.processor_s += found.processor_s
        return {"causes": [_cause_facts(one) for one in found.causes], "notes": found.notes}


def _cause_facts(one: Cause) -> Facts:
    """Return a cause. The class that its sentence names stands first: the page leads to the first ones."""
    return {**one.as_json(), "classes": sorted(one.classes, key=lambda name: (name not in one.cause.split(), name))}
