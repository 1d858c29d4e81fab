"""One job: where it is, why it does not run, what it holds, its payload and its error."""

from typing import NamedTuple

from framework.admin.explain import Explainer, Explanation
from framework.admin.explain_reader import KeptFact, ShardSnapshot
from framework.admin.job_record import JobRecord
from framework.admin.search import search
from framework.admin.statistics import ignore_progress
from framework.pages.page import Page
from framework.pages.view import Facts, View


class _Found(NamedTuple):
    explanations: list[Explanation]
    state: str | None
    kept: dict[str, KeptFact | None]


class JobPage(Page):
    """Show what every shard knows of a job. The search for it scans all places, in bounded steps."""

    name = "job"
    path = "/job/{jid:path}"
    title = "Job"
    of_jobs = True
    within_s = 10.0
    fresh_s = 5.0

    async def read(self, view: View) -> Facts:
        """Search the job on each shard, and explain it."""
        jid = view.parameters["jid"]
        found = await view.each(lambda shard: self._read(view, shard, jid))
        seen = [
            (shard, one)
            for shard, facts in found.items()
            for one in facts.explanations
            if view.may("read", shard, str(one.location.payload.get("class")))
        ]
        # What a shard keeps of a job after its end has no class, so it needs the role on the shard.
        kept = {
            shard: facts
            for shard, facts in found.items()
            if view.may("read", shard) or any(shard == at for at, _ in seen)
        }
        return {
            "jid": jid,
            "places": [self._place_facts(view, shard, one) for shard, one in seen],
            "states": {shard: facts.state for shard, facts in kept.items() if facts.state is not None},
            "kept": [
                {"shard": shard, "text": fact.text}
                for shard, facts in kept.items()
                for fact in facts.kept.values()
                if fact is not None
            ],
        }

    @staticmethod
    def _read(view: View, shard: str, jid: str) -> _Found:
        client = view.shards[shard].client
        snapshot = ShardSnapshot(client, shard)
        explainer = Explainer(snapshot, view.installation.classes)
        found = [explainer.explain(one) for one in search(client, jid, ignore_progress)]
        return _Found(found, snapshot.status(jid), dict(explainer.kept(jid)))

    @staticmethod
    def _place_facts(view: View, shard: str, one: Explanation) -> Facts:
        job = JobRecord(shard, one.location.data, view.installation.settings.size_limit)
        may_see_all = view.may("operate", shard, job.worker)
        return {
            "job": view.job_facts(job, one.since),
            "where": one.where,
            "place": one.location.store.kind,
            "since": one.since,
            "due": one.due,
            "reasons": [reason._asdict() for reason in one.blockers],
            "holds": list(one.resources),
            "context": view.context_facts(job),
            "backtrace": job.error_backtrace,
            # The arguments are in the payload.
            "payload": job.text if may_see_all else None,
        }
