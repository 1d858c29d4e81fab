"""The page of the likely causes of trouble: what ``application-worker diagnose`` finds."""

from functools import partial

from framework.admin.diagnosis.cause import Cause, in_order
from framework.admin.diagnosis.diagnose import away, read_causes, readers
from framework.admin.diagnosis.facts import DiagnosisScope, ShardEvidence
from framework.pages.long_reads import ShardRead
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHARE = 0.4
"""A reader is one step, and takes several milliseconds of a large shard."""


class CausesPage(Page):
    """Show what is wrong now, the likeliest cause first, each with its remedy."""

    name = "causes"
    path = "/causes"
    title = "What is wrong"
    menu = "now"
    fresh_s = 10.0
    searched_by = ("class", "queue")

    async def read(self, view: View) -> Facts:
        """Diagnose the shards. ``class`` and ``queue`` of the query narrow the question."""
        scope = DiagnosisScope(view.query.get("class"), view.query.get("queue"))
        found = await view.read_long(self.name, partial(self._read, view, scope), share=_SHARE, keeps_former=True)
        causes = [one for read in found.values() for one in list(read.found)]
        causes += [away(view.shards[name], error, view.installation) for name, error in view.errors.items()]
        return {
            "causes": [_cause_facts(one) for one in in_order(causes)],
            "notes": [note for read in found.values() for note in read.notes],
            "percent": view.percent,
            "read_at": view.read_at,
        }

    def _read(self, view: View, scope: DiagnosisScope, shard: str, read: ShardRead[Cause]) -> None:
        facts = ShardEvidence(view.shards[shard], view.installation, scope)
        kinds = len(readers())
        for number, causes in enumerate(read_causes(facts, read.notes), start=1):
            read.found += causes
            read.share = number / kinds
            read.step()


def _cause_facts(one: Cause) -> Facts:
    """Return a cause. The class that its sentence names stands first: the page leads to the first ones."""
    return {**one.as_json(), "classes": sorted(one.classes, key=lambda name: (name not in one.cause.split(), name))}
