"""End the producer at each call to the operating system, with and without power, and check what the next start replays.

A push that returned is in Redis exactly once afterwards; a push that did not return is there at most once.
"""

import json
from collections import Counter
from contextlib import suppress

import pytest

from framework.wire import keys
from tests.features.reliable_push.conftest import DOWN, CrashingFiles, Killed
from tests.push.conftest import worker

pytestmark = pytest.mark.usefixtures("no_thread")
PUSHES = 3


def push_until_killed(producer, files):
    """Push while Redis is down; return the ids of the pushes that returned."""
    producer(url=DOWN, files=files)
    job = worker(queue="default")
    returned = []
    with suppress(Killed):
        returned.extend(job.perform_async(number) for number in range(PUSHES))
    return returned


def jids_in(redis):
    return [json.loads(data)["jid"] for data in reversed(redis.lrange(keys.queue("default"), 0, -1))]


def check(producer, redis, returned):
    """Start the producer again, after workers took all jobs, and check that each returned push came once, in order."""
    taken = jids_in(redis)
    redis.delete(keys.queue("default"))
    again = producer()
    again.reliable.replay()
    found = taken + jids_in(redis)
    assert max(Counter(found).values(), default=1) == 1
    assert [jid for jid in found if jid in returned] == returned
    assert again.files == []


@pytest.mark.parametrize("loses_power", [False, True], ids=("killed", "power"))
def test_end_while_keeping_loses_no_returned_push(producer, redis, loses_power):
    files = CrashingFiles()
    push_until_killed(producer, files)
    assert files.calls > 3 * PUSHES
    for ends_at in range(1, files.calls + 1):
        producer().reliable.replay()
        redis.flushall()
        returned = push_until_killed(producer, CrashingFiles(ends_at, loses_power=loses_power))
        assert len(returned) < PUSHES
        check(producer, redis, returned)


@pytest.mark.parametrize("loses_power", [False, True], ids=("killed", "power"))
def test_end_during_a_replay_writes_no_push_twice(producer, redis, loses_power):
    calls = 0
    while True:
        calls += 1
        redis.flushall()
        returned = push_until_killed(producer, CrashingFiles())
        assert len(returned) == PUSHES
        dying = producer(files=CrashingFiles(calls, loses_power=loses_power))
        try:
            dying.reliable.replay()
        except Killed:
            check(producer, redis, returned)
            continue
        break
    assert calls > 3 * PUSHES
    assert jids_in(redis) == returned
