"""Say what a change would do to a class before it is applied: the answer of ``jobs explain CLASS --assume``."""

from collections.abc import Mapping, Sequence
from typing import Any

from framework.admin.diagnosis.facts import DiagnosisScope, ShardEvidence
from framework.admin.explain_reader import Blocker
from framework.pages.view import View
from framework.shard.shard import Shard


def assumed_text(view: View, shard: Shard, worker: str, assumed: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what blocks the waiting jobs of a class now, and what would block them under the assumption.

    Raises redis errors.
    """
    evidence = ShardEvidence(shard, view.installation, DiagnosisScope(cls=worker))
    queue = evidence.queue_of(worker)
    now, then = _told(evidence.blockers(worker, queue, {})), _told(evidence.blockers(worker, queue, assumed))
    if now == then:
        return f"{worker} on {shard.name}: before and after: {now}"
    return f"{worker} on {shard.name}: now: {now}; then: {then}"


def _told(blockers: Sequence[Blocker]) -> str:
    return "; ".join(one.why for one in blockers) or "nothing blocks its jobs"
