"""Check the text of `jobs explain` about a job that comes back because its replicas were behind."""

from framework.errors import JobReplicaNotUpToDate
from framework.features.consistency.explain import replica_blockers
from framework.text import error_class


def test_replica_blockers_of_a_delayed_job_name_its_next_run():
    job = {"class": "W", "error_class": error_class(JobReplicaNotUpToDate("W")), "retry_count": 0}
    ((code, why, remedy),) = replica_blockers(job)
    assert (code, why) == (
        "replica_behind",
        "it has not run: no replica of its database had the writes before its push",
    )
    assert remedy == "its next run, which reads from the primary if the replicas are still behind"


def test_replica_blockers_of_a_failed_job_are_none():
    assert replica_blockers({"class": "W", "error_class": "JobReplicaNotUpToDate"}) == []
    assert replica_blockers({"class": "W"}) == []
