"""The answer of the search box: a job id leads to its job, a name to the classes and queues that have it."""

import re

from framework import admin
from framework.pages.page import Page
from framework.pages.view import Facts, View

_MOST = 50
_JID = re.compile(r"[^\s/]{8,}")
"""What an id of a job may be: that of Sidekiq has 24 hexadecimal digits."""


class SearchPage(Page):
    """Show the queues and classes whose names have the text."""

    name = "search"
    path = "/search"
    title = "Search"

    async def read(self, view: View) -> Facts:
        """Look for the text in the names of queues and of loaded classes."""
        text = view.query.get("q", "").strip()
        found = await view.each(lambda shard: [one.name for one in admin.queues(shard)]) if text else {}
        wanted = text.lower()
        queues = sorted({name for names in found.values() for name in names if wanted in name.lower()})
        classes = sorted(name for name in view.installation.classes.declarations or {} if wanted in name.lower())
        return {
            "text": text,
            "jid": text if _JID.fullmatch(text) else None,
            "queues": queues[:_MOST],
            "classes": classes[:_MOST] if text else [],
        }
