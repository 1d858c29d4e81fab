"""Two releases of one application, chosen by RELEASE: the old release lacks one class and has version 1 of another."""

import os
from datetime import timedelta

from redis import Redis

from framework import ApplicationWorker, Deduplicate, RetryLater

proofs = Redis.from_url(os.environ["PROOF_URL"])
RELEASE = os.environ.get("RELEASE", "new")


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"

    def record(self, *values: object) -> None:
        proofs.rpush("proof:ran", " ".join(map(str, (type(self).__name__, *values))))


class OldWorker(Base):
    def perform(self, number: int) -> None:
        self.record(number)


if RELEASE == "old":

    class ReportWorker(Base):
        version = 1
        loggable_arguments = ("title",)

        def perform(self, title: str, pages: int = 1) -> None:
            self.record("of the old release", title)

else:

    class ReportWorker(Base):  # type: ignore[no-redef]
        version = 2

        def perform(self, title: str, pages: str) -> None:
            self.record(title, pages)

        def perform_v1(self, title: str, pages: int = 1) -> None:
            self.record("as before", title)

    class NewWorker(Base):
        def perform(self, number: int) -> None:
            self.record(number)

    class LockedWorker(Base):
        status_expiration = timedelta(hours=1)
        idempotent = True
        deduplicate = Deduplicate("until_executed", ttl=timedelta(hours=2))

        def perform(self, number: int) -> None:
            self.record(number)

    class OddWorker(Base):
        def perform(self, then: str) -> None:
            if proofs.rpush("proof:odd", self.jid) == 1 and then == "fail":
                raise ValueError(then)
            if proofs.llen("proof:odd") == 1 and then == "later":
                raise RetryLater(3600)
