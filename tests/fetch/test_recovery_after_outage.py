"""Recovery after an outage: no connection that died silently keeps a job from the process.

The proxy is healed at once: connections of before stay dead, new ones work, as behind a network that dropped its state.
"""

from dataclasses import replace

import pytest

from framework.fetch import pipeline as pipeline_module
from framework.timings import STANDARD
from tests.harness import encoded, until
from tests.servers.proxy import Proxy

QUEUE = "queue:default"
SOON_S = 4.0
"""Far below what a dead connection would cost if it were waited for."""


@pytest.fixture
def silent_proxy(redis_url, monkeypatch):
    """A proxy to fetch through; the deadlines are short, so that each is met within the test."""
    monkeypatch.setattr(pipeline_module, "COMMAND_TIMEOUT_S", 0.3)
    with Proxy(redis_url) as proxy:
        yield proxy


def drop_connections_silently(proxy):
    proxy.swallow()
    proxy.heal()


@pytest.mark.proves("F11", "R1")
def test_failed_acknowledgement_renews_blocking_calls(bench, redis, silent_proxy):
    redis.lpush(QUEUE, encoded(jid="first"))
    one = bench(url=silent_proxy.url).start()
    one.got(1)
    until(lambda: one.blocked_calls() == 1, "the free slot waits for a job")
    drop_connections_silently(silent_proxy)
    redis.lpush(QUEUE, encoded(jid="next"))  # the server gives the job to the dead blocking call
    until(lambda: one.working() == [encoded(jid="next"), encoded(jid="first")])
    one.end(one.units[0])
    until(lambda: len(one.units) == 2, "the next", SOON_S)
    assert [(lost.job.jid, lost.cause) for lost in one.recovered_jobs] == [("next", "lost reply")]
    assert one.answered == 1
    # One call, not the dead one beside it.
    until(lambda: one.blocked_calls() == 1 and one.working() == [encoded(jid="next")])


@pytest.mark.proves("F11", "R3")
def test_idle_process_finds_its_dead_blocking_call(bench, redis, silent_proxy):
    one = bench(url=silent_proxy.url, timings=replace(STANDARD, block_timeout_s=1.0, reply_margin_s=0.2)).start()
    until(one.idle)
    drop_connections_silently(silent_proxy)
    redis.lpush(QUEUE, encoded(jid="next"))
    until(lambda: len(one.units) == 1, "the next", SOON_S)
    assert len(one.errors) == 1


@pytest.mark.proves("F11", "R9")
def test_lost_fetch_is_found_when_redis_answers(bench, redis, silent_proxy):
    silent_proxy.lose_replies(b"EVALSHA", {1}, hang=True)
    redis.lpush(QUEUE, *(encoded(jid=str(number)) for number in range(3)))
    one = bench(url=silent_proxy.url, slots=1, job=lambda unit: False).start()
    until(lambda: len(one.units) == 3, "all", SOON_S)
    assert [unit.data for unit in one.units] == [encoded(jid=str(number)) for number in range(3)]
