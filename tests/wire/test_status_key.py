import math
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.shard.connection import pack
from framework.types import JobState
from framework.wire.status_key import MAX_TTL_S, QueuedCommands, TrackedJob, most_advanced, tracked_job
from tests.tables import each_row


@each_row(
    ("kept", "seconds"),
    [(60, 60), (0.5, 1), (1800.0, 1800), (10**30, MAX_TTL_S), (math.inf, MAX_TTL_S)],
)
def test_tracked_job_needs_an_expiration(kept, seconds):
    assert tracked_job({"jid": "j", "status_expiration": kept}) == TrackedJob("j", seconds)


@each_row("kept", [None, 0, -1, True, "60", [60], math.nan])
def test_tracked_job_ignores_invalid_expirations(kept):
    assert tracked_job({"jid": "j", "status_expiration": kept}) is None


@each_row("fields", [{}, {"jid": ""}, {"jid": 7}, {"jid": None}])
def test_tracked_job_needs_an_id(fields):
    assert tracked_job({**fields, "status_expiration": 60}) is None
    assert tracked_job({"jid": "j"}) is None


@given(st.lists(st.binary(min_size=12, max_size=12).map(bytes.hex), unique=True), st.integers(1, MAX_TTL_S))
@example(["7" * 24, "a" * 24], 7)
def test_queued_commands_are_those_of_the_single_jobs(jids, ttl_s):
    commands = [TrackedJob(jid, ttl_s).queued_command(None) for jid in jids]
    queued = QueuedCommands(jids, ttl_s)
    assert (list(queued), list(queued[1:]), len(queued)) == (commands, commands[1:], len(commands))
    assert queued.packed(pack) == b"".join(map(pack, commands))


def test_status_command_writes_the_state():
    job = TrackedJob("j", 60)
    assert job.command("running") == ("SET", "aw:status:j", "running", "EX", 60)
    assert job.queued_command(None) == ("SET", "aw:status:j", "queued", "EX", 60)
    assert job.queued_command(1_800_000_000.2) == ("SET", "aw:status:j", "queued", "EXAT", 1_800_000_061)
    assert job.lifetime_s(10.4) == 71
    assert (job.queued_command(1e300)[4], job.lifetime_s(1e300)) == (MAX_TTL_S, MAX_TTL_S)


@pytest.mark.proves("R46")
@example(kept=5e-324, waits_s=0.0)
@given(kept=st.floats() | st.floats(0, 3) | st.integers() | st.text(), waits_s=st.floats(0, 1e300))
def test_status_command_never_has_a_ttl_redis_refuses(kept, waits_s):
    """Any value of another writer gives a TTL between one second and Redis's limit."""
    job = tracked_job({"jid": "j", "status_expiration": kept})
    if job is not None:
        commands = [job.command("running"), job.command("retrying", delay_s=waits_s), job.queued_command(None)]
        assert all(type(command[4]) is int and 1 <= command[4] <= MAX_TTL_S for command in commands)
        assert type(job.queued_command(waits_s)[4]) is int


@pytest.mark.proves("R46")
def test_status_command_with_extreme_ttls_is_accepted(redis):
    for seconds in (1, MAX_TTL_S):
        redis.execute_command(*TrackedJob("j", seconds).command("running"))
        assert 0 <= redis.ttl("aw:status:j") <= seconds
    redis.execute_command(*TrackedJob("j", MAX_TTL_S).queued_command(1e300))
    assert redis.ttl("aw:status:j") > 1e9


def test_most_advanced_state_wins():
    order = [None, b"queued", b"retrying", b"running", b"discarded", b"expired", b"cancelled", b"failed"]
    order.append(b"completed")
    for place, word in enumerate(order):
        for earlier in order[: place + 1]:
            assert (
                most_advanced([word, earlier])
                == most_advanced([earlier, word])
                == (word.decode() if word else "unknown")
            )
    assert {word.decode() for word in order if word} | {"unknown"} == set(get_args(JobState))


def test_most_advanced_ignores_unknown_words():
    assert most_advanced([]) == most_advanced([b"1"]) == most_advanced([b"unknown", b"paused"]) == "unknown"
