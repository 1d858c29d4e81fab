"""Test what the causes of waiting jobs say about deferred ones, as processes write them."""

import time

from framework.features.deferral.parked import REASON
from framework.features.flags.flag import Flag, run_flag
from framework.features.flags.redis_flags import set_flag
from framework.fetch.deferred_blocks import name_block
from framework.wire import keys
from tests.admin.diagnosis.test_readers import found
from tests.harness import encoded

__all__ = ["found"]


def test_packed_jobs_count_as_deferred(found, redis):
    now = time.time()
    set_flag(redis, Flag(run_flag("Mail"), 0), None)
    jobs = [encoded("Mail", jid=f"{number:024}", deferred=True, deferred_by=REASON) for number in range(3)]
    redis.zadd(keys.SCHEDULE, dict.fromkeys(jobs, now + 600))
    names = [("Mail", REASON, 40), ("Mail", "database_health_check", 9), ("Post", REASON, 7)]
    redis.zadd(keys.DEFERRED_PACKED, {name_block(*name): now + 3_600 for name in names})
    (one,) = found()
    assert (one.code, one.jobs) == ("deferring", 43)
    assert "40 jobs of these are in blocks, where Ruby does not see them" in one.evidence
