"""Jobs under limits, for real processes; each records the running jobs on the proofs server."""

import os
import time
from pathlib import Path

from redis import Redis

from framework import ApplicationWorker, ConcurrencyScope

PROOFS = Redis.from_url(os.environ["PROOF_URL"])


def process_is_alive(pid: str) -> bool:
    """Return whether a process is alive; a killed process whose exit status is not read yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Limited(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def perform(self, name: str, release: str = "", lasts_s: float = 0.0) -> None:
        """Record how many jobs run, this one included, and wait until the key ``release`` exists."""
        holder = f"{os.getpid()} {self.jid}"
        pipeline = PROOFS.pipeline()
        pipeline.zadd("running", {holder: time.time()})
        pipeline.zrange("running", 0, -1)
        pipeline.rpush("ran", name)
        _, running, _ = pipeline.execute()
        PROOFS.rpush("seen", sum(process_is_alive(one.split()[0].decode()) for one in running))
        while release and not PROOFS.exists(release):
            time.sleep(0.01)
        time.sleep(lasts_s)
        PROOFS.pipeline().zrem("running", holder).rpush("ended", name).execute()


class OneWorker(Limited):
    concurrency_limit = 1

    @classmethod
    def on_concurrency_limit_deferred(cls, args):
        PROOFS.rpush("deferred", args[0])

    @classmethod
    def on_concurrency_limit_resumed(cls, args):
        PROOFS.rpush("resumed", args[0])
        raise RuntimeError("a hook's own trouble")


class FiveWorker(Limited):
    concurrency_limit = 5


class AskedWorker(Limited):
    @staticmethod
    def concurrency_limit():
        return int(PROOFS.get("limit") or 0)


class TenantWorker(Limited):
    concurrency_limit = 3
    concurrency_scope = ConcurrencyScope("user", limit=2)


class BrokenWorker(Limited):
    concurrency_limit = 1

    def perform(self, name: str) -> None:
        raise OSError(name)


class FreeWorker(Limited):
    pass


class FiftyWorker(Limited):
    concurrency_limit = 50
