"""Explain that a job waits for a replica."""

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.errors import JobReplicaNotUpToDate
from framework.text import Sentence, error_class
from framework.types import Payload

_NO_REPLICA = error_class(JobReplicaNotUpToDate(""))


def replica_blockers(payload: Payload) -> list[Blocker]:
    """Return the blockers of a job of the retry set that has not run because its replicas were behind; none for a failed job."""
    if payload.get("error_class") != _NO_REPLICA:
        return []
    why = Sentence("it has not run: no replica of its database had the writes before its push")
    return [
        Blocker(
            "replica_behind",
            why,
            Sentence("its next run, which reads from the primary if the replicas are still behind"),
        )
    ]


class ReplicaReader(ExplainReader):
    """Say that replicas were behind."""

    def not_run(self, payload: Payload) -> list[Blocker]:
        return replica_blockers(payload)
