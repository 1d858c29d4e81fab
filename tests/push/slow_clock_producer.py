"""Push with a host clock that is wrong by the seconds in the first argument; Redis's clock is correct."""

import json
import logging
import sys
import time

# Replaced before the framework reads it.
_true, _off_s = time.time, float(sys.argv[1])
time.time = lambda: _true() + _off_s

from datetime import timedelta  # noqa: E402

from framework import (  # noqa: E402
    ApplicationWorker,
    Deduplicate,
    middleware,
)

logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
seen: list[float] = []


class See:
    def call(self, cls, job, queue, pool):
        if "at" in job:
            seen.append(job["at"] - time.time())
        yield


class PlainWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self, name: str) -> None: ...


class TrackedWorker(PlainWorker):
    status_expiration = timedelta(seconds=50)


class EqualWorker(PlainWorker):
    idempotent = True
    deduplicate = Deduplicate(including_scheduled=True)


if "middleware" in sys.argv:
    middleware.client.add(See)
jids = {}
for cls in (PlainWorker, TrackedWorker, EqualWorker):
    jids[cls.__name__] = cls.perform_in(300, "in")
    cls.perform_bulk_in(timedelta(seconds=300), [("first",), ("second",), ("third",)], batch_size=1, batch_delay=60)
PlainWorker.perform_in(0, "now")
PlainWorker.perform_at(_true() + _off_s + 1_000, "at")
sys.stdout.write(json.dumps({"jids": jids, "seen": seen}))
