"""The jobs that a limit or a pause holds outside of their queues."""

from itertools import islice

from framework import admin
from framework.admin import HeldPlace, HeldRecord
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN = 100


class HeldPage(Page):
    """Show each limit and pause that holds jobs, and some of these jobs."""

    name = "held"
    path = "/held"
    title = "Held back"
    menu = "jobs"
    mends = ("paused",)
    of_jobs = True

    async def read(self, view: View) -> Facts:
        """Read the places of held jobs, the fullest first."""
        found = await view.each(_read)
        places = [
            place for places, _ in found.values() for place in places if view.may("read", place.shard, place.name)
        ]
        return {
            "places": [
                {"shard": one.shard, "kind": one.kind, "name": one.name, "jobs": one.jobs, "since": one.since}
                for one in sorted(places, key=lambda one: -one.jobs)
            ],
            "jobs": [
                {**view.job_facts(job, job.since), "held_by": job.held_by, "kind": job.kind}
                for _, jobs in found.values()
                for job in jobs
                if view.may("read", job.shard, job.worker)
            ],
        }


def _read(shard: str) -> tuple[list[HeldPlace], list[HeldRecord]]:
    held = admin.held(shard)
    places = held.indexed_places()
    return list(places), list(islice(held, _SHOWN)) if places else []
