"""The answer of the search box: jobs of every place and shard, and the queues and classes that have the text in their names."""

import json
import re
from functools import partial
from typing import Any, cast

from framework import admin
from framework.admin.job_search import FoundJob, JobQuery, ShardSearch, parse_query, search_shard
from framework.pages.long_reads import ShardRead, percent_of
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.text import Sentence

_MOST_NAMES = 50
_MOST_JOBS = 100
_TIME_LIMIT_S = 60.0
"""How long the search of a shard takes at most; it says where it has stopped."""
_JID = re.compile(r"[^\s/:]{8,}")
"""What an id of a job may be: that of Sidekiq has 24 hexadecimal digits."""


class SearchPage(Page):
    """Show the jobs that have every word of the query, and names with its text. ``from`` goes on where a search has stopped."""

    name = "search"
    path = "/search"
    title = "Search"
    of_jobs = True
    is_long = True
    # A search is not repeated for each event of a page that stays open.
    fresh_s = 60.0

    async def read(self, view: View) -> Facts:
        """Search the shards at the same time.

        Raises:
            ValueError: a word of the query is not allowed, or ``from`` is not of a search.
        """
        text = view.query.get("q", "").strip()
        query = parse_query(text) if text else JobQuery()
        resume = _resume_of(view)
        found: dict[str, ShardSearch] = {}
        percent = 100
        if query:
            reads = await view.read_long(self.name, partial(self._search, view, query, resume))
            found = {shard: one for shard, read in reads.items() for one in read.found}
            percent = percent_of(reads)
        names: Facts = {"queues": [], "classes": []}
        if text and not resume:
            names = await self._names(view, text)
        searched, total = sum(one.searched for one in found.values()), sum(one.total for one in found.values())
        points = {shard: list(one.resume) for shard, one in found.items() if one.resume is not None}
        return {
            "text": text,
            "jid": text if _JID.fullmatch(text) else None,
            **names,
            "jobs": [
                _facts(view, job)
                for shard, one in found.items()
                for job in list(one.found)
                if view.may("read", shard, job.job.worker)
            ],
            "searched": min(searched, total),
            "total": total,
            "is_over": percent == 100,
            "percent": 100 if percent == 100 and not points else min(99, int(100 * searched / total)) if total else 0,
            "next": json.dumps(points) if points else None,
        }

    @staticmethod
    def _search(
        view: View, query: JobQuery, resume: dict[str, tuple[str, int]], shard: str, read: ShardRead[ShardSearch]
    ) -> None:
        # The other shards were searched before.
        if resume and shard not in resume:
            return
        found = ShardSearch()
        read.found.append(found)

        def on_progress(_: str, searched: int) -> None:
            read.share = min(1.0, searched / max(1, found.total))
            read.step()

        search_shard(
            view.shards[shard],
            query,
            # What the caller may not see matches nothing: else a search would tell it.
            view.shown_arguments,
            view.installation.settings.size_limit,
            time_limit_s=_TIME_LIMIT_S,
            most=_MOST_JOBS,
            resume=resume.get(shard),
            into=found,
            on_progress=on_progress,
        )

    @staticmethod
    async def _names(view: View, text: str) -> Facts:
        """Return the queues and loaded classes with the text in their names."""
        wanted = text.lower()
        readable = [shard for shard in view.shards if view.may("read", shard)]
        found = await view.each(lambda shard: [one.name for one in admin.queues(shard)], readable)
        classes = [
            name
            for name in view.installation.classes.declarations or {}
            if wanted in name.lower() and any(view.may("read", shard, name) for shard in view.shards)
        ]
        queues = {name for names in found.values() for name in names if wanted in name.lower()}
        return {"queues": sorted(queues)[:_MOST_NAMES], "classes": sorted(classes)[:_MOST_NAMES]}


def _resume_of(view: View) -> dict[str, tuple[str, int]]:
    """Return where to go on, by shard. Raises ValueError."""
    text = view.query.get("from", "")
    if not text:
        return {}
    try:
        points = cast("dict[str, Any]", json.loads(text))
        return {str(shard): (str(key), int(position)) for shard, (key, position) in points.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(Sentence("from is not the point at which a search has stopped: search again")) from None


def _facts(view: View, one: FoundJob) -> Facts:
    return {**view.job_facts(one.job, one.since), "place": one.store.kind, "place_name": one.store.name}
