"""One job: where it is, why it does not run, what it holds, its payload and its error, its runs, and what has happened to it."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from string import Formatter
from typing import NamedTuple
from urllib.parse import quote

from framework.admin import stats
from framework.admin.explain import Explainer
from framework.admin.explain_reader import KeptFact, ShardSnapshot
from framework.admin.job_record import JobRecord
from framework.admin.search import find
from framework.feature import all_features
from framework.pages.job_story import FailedRun, RecordedStory, ShownPlace, attempts_of, moments_of, timeline
from framework.pages.long_reads import ShardRead, percent_of
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.settings.model import DashboardSection
from framework.telemetry.context import CORRELATION_ID
from framework.wire.context_fields import TRACEPARENT, trace_ids

_RUNNING = ("running", "in flight")
"""The places of a job that a process has."""


class _Kept(NamedTuple):
    """What a shard keeps of the job."""

    state: str | None
    kept: dict[str, KeptFact | None]


class JobPage(Page):
    """Show what every shard knows of a job. The search for it scans all places, in bounded steps."""

    name = "job"
    path = "/job/{jid:path}"
    title = "Job"
    of_jobs = True
    is_long = True
    fresh_s = 5.0

    async def read(self, view: View) -> Facts:
        """Search the job on each shard, explain it, and ask the features what they have recorded of it."""
        jid = view.parameters["jid"]
        found = await view.read_long(self.name, partial(self._read, view, jid))
        stories: list[RecordedStory] = [
            await one.job_story.load()(view, jid) for one in all_features() if one.job_story
        ]
        seen = [
            (shard, one)
            for shard, read in found.items()
            for one in list(read.found)
            if isinstance(one, ShownPlace)
            and view.may("read", shard, str(one.explanation.location.payload.get("class")))
        ]
        # What a shard keeps of a job after its end has no class, so it needs the role on the shard.
        kept = {
            shard: one
            for shard, read in found.items()
            for one in list(read.found)
            if isinstance(one, _Kept) and (view.may("read", shard) or any(shard == at for at, _ in seen))
        }
        jobs = [self._job(view, shard, one) for shard, one in seen]
        known = [moments_of(job, place) for job, (_, place) in zip(jobs, seen, strict=True)]
        links = view.installation.settings.dashboard
        return {
            "jid": jid,
            "percent": percent_of(found),
            "places": [self._place_facts(view, job, place) for job, (_, place) in zip(jobs, seen, strict=True)],
            "states": {shard: facts.state for shard, facts in kept.items() if facts.state is not None},
            "kept": [
                {"shard": shard, "text": fact.text}
                for shard, facts in kept.items()
                for fact in facts.kept.values()
                if fact is not None
            ],
            "timeline": timeline(chain(*known, *(one.moments for one in stories))),
            "attempts": self._attempts(
                jobs, [place for _, place in seen], list(chain(*(one.failures for one in stories)))
            ),
            "problems": [one.problem for one in stories if one.problem],
            **_links(links, {**_names(jobs[0]), "jid": jid} if jobs else {"jid": jid}),
        }

    @staticmethod
    def _attempts(
        jobs: Sequence[JobRecord], places: Sequence[ShownPlace], recorded: Sequence[FailedRun]
    ) -> list[Facts]:
        """Return the runs of the job: of the place whose process runs it, if one does."""
        pairs = sorted(zip(jobs, places, strict=True), key=lambda one: one[1].running_since is None)
        job, place = pairs[0] if pairs else (None, None)
        return attempts_of(job, place, recorded)

    @staticmethod
    def _read(view: View, jid: str, shard: str, read: ShardRead["ShownPlace | _Kept"]) -> None:
        client = view.shards[shard].client
        snapshot = ShardSnapshot(client, shard)
        explainer = Explainer(snapshot, view.installation.classes)
        read.found.append(_Kept(snapshot.status(jid), dict(explainer.kept(jid))))
        sizes = stats(shard)
        total = sizes.enqueued + sizes.scheduled + sizes.retry + sizes.dead + sizes.interrupted
        # A job that was found in no place is searched once more, in the opposite order.
        turns = 2

        def on_progress(_: str, scanned: int) -> None:
            read.share = min(1.0, scanned / max(1, turns * total))
            read.step()

        for one in find(client, jid, on_progress):
            turns = 1
            process = one.store.name if one.store.kind in _RUNNING else ""
            since = snapshot.owner(process, jid).running_since if process else None
            read.found.append(ShownPlace(explainer.explain(one), process, since))

    @staticmethod
    def _job(view: View, shard: str, place: ShownPlace) -> JobRecord:
        return JobRecord(shard, place.explanation.location.data, view.installation.settings.size_limit)

    @staticmethod
    def _place_facts(view: View, job: JobRecord, place: ShownPlace) -> Facts:
        one = place.explanation
        may_see_all = view.may("operate", job.shard, job.worker)
        return {
            "job": view.job_facts(job, one.since),
            "where": one.where,
            "place": one.location.store.kind,
            "process": place.process,
            "since": one.since,
            "due": one.due,
            "stops": one.interruptions.stops,
            "deaths": one.interruptions.deaths,
            "reasons": [reason._asdict() for reason in one.blockers],
            "holds": list(one.resources),
            "context": view.context_facts(job),
            "backtrace": job.error_backtrace,
            # The arguments are in the payload.
            "payload": job.text if may_see_all else None,
        }


def _names(job: JobRecord) -> dict[str, str]:
    """Return what the link of a job may name."""
    trace, span = trace_ids(job.payload.get(TRACEPARENT)) or ("", "")
    return {
        "class": job.display_class,
        "queue": job.queue,
        "shard": job.shard,
        CORRELATION_ID: job.fact(CORRELATION_ID) or "",
        "trace_id": trace,
        "span_id": span,
    }


def _links(section: DashboardSection, names: Mapping[str, str]) -> Facts:
    """Return the addresses of the trace and of the log lines; ``None`` for one that names what the job has not."""
    return {"trace_url": _link(section.trace_url, names), "log_url": _link(section.log_url, names)}


def _link(template: str | None, names: Mapping[str, str]) -> str | None:
    if template is None or not all(names.get(field) for _, field, *_ in Formatter().parse(template) if field):
        return None
    return template.format_map({name: quote(text, safe="") for name, text in names.items()})
