"""Jobs under limits, for real processes; each says on the proofs' server who runs beside it."""

import os
import time

from redis import Redis

from framework import ApplicationWorker, ConcurrencyScope

PROOFS = Redis.from_url(os.environ["PROOF_URL"])


class Limited(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def perform(self, name: str, release: str = "") -> None:
        """Say how many run, this one included, and go on when released."""
        PROOFS.zadd("beside", {f"{os.getpid()} {self.jid}": time.time()})
        PROOFS.rpush("ran", name)
        PROOFS.rpush("peaks", PROOFS.zcard("beside"))
        while release and not PROOFS.exists(release):
            time.sleep(0.01)
        PROOFS.zrem("beside", f"{os.getpid()} {self.jid}")


class OneWorker(Limited):
    concurrency_limit = 1


class ThreeWorker(Limited):
    concurrency_limit = 3
