"""Each action of ``framework.admin`` is on a page, or the guide says why not."""

import inspect
import re

from framework import admin
from framework.dashboard.application import all_pages
from tests.harness import ROOT

_TABLE = re.compile(r"<!-- actions of framework.admin -->\n(.*?)<!-- /actions", re.DOTALL)

NO_ACTIONS = {
    *("Queue.of_state", "Queue.states", "Queue.peek", "Queue.find", "Queue.count", "QueueRates.empty_in_s"),
    *("JobSet.find", "JobSet.scan", "JobSet.where", "JobSet.top", "MatchingJobs.count", "MatchingJobs.top"),
    *("HeldSet.places", "HeldSet.indexed_places", "HeldSet.find", "HeldSet.where", "MatchingHeldJobs.count"),
    *("JobRecord.fact", "Processes.find", "DeletedJobs.find", "BulkResult.add", "CancelResult.add", "RateWindow.add"),
    # The step of ``undo`` on one shard.
    "DeletedJob.restore",
    *("audit_log", "batches", "cron_entries", "dead", "deleted", "deploys", "error_groups", "flags", "held", "history"),
    *("interrupted", "iteration", "job_story", "limit_holders", "limiters", "limits", "locks", "paused", "processes"),
    *("profile", "profiles", "queues", "read_counts", "retries", "run_series", "scheduled", "server_times"),
    *("shard_health", "stacks", "stats", "top", "work", "worker_class", "worker_classes", "workflows"),
    *("acting_as", "read_only"),
}
"""What reads, and what adds up answers."""


def public_calls():
    """Return the functions and methods of ``framework.admin``, without the awaitable twins."""
    found = set()
    for name in admin.__all__:
        one = getattr(admin, name)
        if inspect.isclass(one):
            found |= {f"{name}.{each}" for each, member in vars(one).items() if each[0] != "_" and _is_call(member)}
        else:
            found.add(name)
    return {name for name in found if not _is_twin(name, found)}


def _is_call(member):
    return inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)


def _is_twin(name, names):
    owner, dot, own = name.rpartition(".")
    # Of a property, as ``Queue.asize``, too.
    plain = own[1:]
    return own[0] == "a" and (
        f"{owner}{dot}{plain}" in names or (bool(owner) and hasattr(getattr(admin, owner), plain))
    )


def test_each_action_of_admin_is_on_a_page_or_has_a_reason():
    (table,) = _TABLE.findall((ROOT / "docs" / "operate" / "dashboard.md").read_text())
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    listed = [name for names, _ in rows for name in re.findall(r"`([\w.]+)`", names)]
    assert sorted(listed) == sorted(public_calls() - NO_ACTIONS)
    assert public_calls() >= NO_ACTIONS
    offered = {(page.title, action.label) for page in all_pages() for action in page.actions}
    for names, pages in rows:
        named = re.findall(r"\*([^*]+)\*: ([A-Z][\w ]+\w)", pages)
        assert named or "no page" in pages, names
        assert set(named) <= offered, names
