"""Two releases of one application, chosen by RELEASE; the processes of test_versions.py run them."""

import os
import time
from datetime import timedelta
from typing import Any

from redis import Redis

from framework import ApplicationWorker, RetryLater

proofs = Redis.from_url(os.environ["PROOF_URL"])
RELEASE = os.environ.get("RELEASE", "new")


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def record(self, *values: object) -> None:
        proofs.rpush("proof:ran", " ".join(map(str, (type(self).__name__, self.job_version, *values))))


if RELEASE == "old":

    class ImportWorker(Base):
        wire_name = "ImportWorker"
        version = 1

        def perform(self, path: str, then: str = "end") -> None:
            self.record("perform", path)
            self.stop(then)

        def stop(self, then: str) -> None:
            if then == "fail":
                raise ValueError(then)
            if then == "later":
                raise RetryLater(timedelta(seconds=0))

    class RenamedWorker(Base):
        wire_name = "Old::ReportWorker"

        def perform(self, number: int) -> None:
            self.record("as it was called before", number)

    class RemovedWorker(Base):
        wire_name = "RemovedWorker"

        def perform(self, secret: str) -> None:
            self.record(secret)

else:

    class ImportWorker(Base):  # type: ignore[no-redef]
        wire_name = "ImportWorker"
        version = 3
        loggable_arguments = ("path",)

        async def perform(self, project_id: int, options: dict[str, Any], path: str = "") -> None:
            self.record("perform", project_id, path)

        def perform_v1(self, path: str, then: str = "end") -> None:
            self.record("perform_v1", path)
            count = self._aw_job.get("retry_count")
            if then == "fail" and count is None:
                raise ValueError(then)
            if then == "later" and not proofs.set("later", 1, nx=True):
                return
            if then == "later":
                raise RetryLater(timedelta(seconds=0))
            if then == "hang" and proofs.set("hung", 1, nx=True):
                time.sleep(3600)

        @classmethod
        def retry_in(cls, count: int, error: Exception, job: object) -> float:
            return 0.01

    class RenamedWorker(Base):  # type: ignore[no-redef]
        wire_name = "Reports::ReportWorker"
        aliases = ("Old::ReportWorker",)

        def perform(self, number: int) -> None:
            self.record(number)
            self.log_extra(rows=number)
