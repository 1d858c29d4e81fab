"""Limits seen from outside: real processes, and what their jobs saw of one another."""

import json
import time
import pytest

from framework.wire import keys
from tests.harness import enqueue, until


def names(redis):
    return [name.decode() for name in redis.lrange("ran", 0, -1)]


@pytest.mark.proves("R43", "R44", "I10", "I12")
@pytest.mark.parametrize("k", ["OneWorker", "ThreeWorker"])
def test_jobs_beyond_the_limit_wait_in_order_and_each_end_lets_the_next_begin(site, redis, k):
    for number in range(2000):
        enqueue(redis, k, args=[f"{number}"], jid=f"one{number}")
    processes = [site.worker("-q", "default", "-c", "5").ready() for _ in range(2)]
    began = time.time()
    until(lambda: redis.llen("ran") == 2000, "all have run")
    print(time.time() - began)
    print(max(int(peak) for peak in redis.lrange("peaks", 0, -1)))
    until(lambda: not redis.keys("aw:working:*"), "all ended")
    print(redis.keys("aw:limit:*:*"))
    ns = [int(n) for n in names(redis)]
    print(sum(a > b for a, b in zip(ns, ns[1:])), max(abs(i - n) for i, n in enumerate(ns)))
    print(ns[:50], ns[1000:1020])
    assert 0
