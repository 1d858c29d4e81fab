"""Say what a change would do to a class before it is applied: the answer of ``jobs explain CLASS --assume``."""

from collections.abc import Mapping, Sequence
from typing import Any

from framework.admin.diagnosis.facts import DiagnosisScope, ShardEvidence
from framework.admin.explain_reader import Blocker
from framework.pages.view import View
from framework.shard.shard import Shard
from framework.text import Sentence, joined


def assumed_text(view: View, shard: Shard, worker: str, assumed: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what blocks the waiting jobs of a class now, and what would block them under the assumption.

    Raises redis errors.
    """
    evidence = ShardEvidence(shard, view.installation, DiagnosisScope(cls=worker))
    queue = evidence.queue_of(worker)
    now, then = _told(evidence.blockers(worker, queue, {})), _told(evidence.blockers(worker, queue, assumed))
    if now == then:
        return Sentence("{worker} on {shard}: before and after: {now}", worker=worker, shard=shard.name, now=now)
    return Sentence(
        "{worker} on {shard}: now: {now}; then: {then}", worker=worker, shard=shard.name, now=now, then=then
    )


def _told(blockers: Sequence[Blocker]) -> str:
    return joined(one.why for one in blockers) if blockers else Sentence("nothing blocks its jobs")
