"""Jobs under limits, for real processes; each says on the proofs' server what it saw of the others."""

import os
import time
from pathlib import Path

from redis import Redis

from framework import ApplicationWorker, ConcurrencyScope

PROOFS = Redis.from_url(os.environ["PROOF_URL"])


def lives(pid: str) -> bool:
    """Tell whether a process lives; a killed one whose exit status is not read yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Limited(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def perform(self, name: str, release: str = "", lasts_s: float = 0.0) -> None:
        """Say how many run, this one included, and go on when released."""
        me = f"{os.getpid()} {self.jid}"
        pipeline = PROOFS.pipeline()
        pipeline.zadd("beside", {me: time.time()})
        pipeline.zrange("beside", 0, -1)
        pipeline.rpush("ran", name)
        _, beside, _ = pipeline.execute()
        PROOFS.rpush("seen", sum(lives(one.split()[0].decode()) for one in beside))
        while release and not PROOFS.exists(release):
            time.sleep(0.01)
        time.sleep(lasts_s)
        PROOFS.pipeline().zrem("beside", me).rpush("ended", name).execute()


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
