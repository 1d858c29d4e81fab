"""Test the sorted sets of the data API: read, find and filter their jobs, and each action on one job."""

import base64
import json
import time

import pytest

from framework import admin
from framework.admin.entries import ACTIONS, OVERLAP, PAGE, ordered_entries
from framework.errors import ArgumentsError, JobRefusedError, ReadOnlyError, ShardUnavailableError
from framework.store.connect import server_time
from framework.wire import keys
from tests.harness import compressed, encoded, full_memory

NOW = time.time()
LOCK = keys.lock("ab")
FAILED = {"error_class": "Office::TimeoutError", "error_message": "no answer of smtp", "failed_at": NOW - 500.5}


def add(redis, key, jid, score=NOW, **fields):
    """Put a job into a set, and return its bytes."""
    data = encoded(fields.pop("name", "Job"), jid=jid, **fields)
    redis.zadd(key, {data: score})
    return data


def jids(entries):
    return [entry.jid for entry in entries]


def queued(redis, queue="default"):
    return [json.loads(data) for data in redis.lrange(keys.queue(queue), 0, -1)]


@pytest.fixture
def tracked(shard, redis):
    """Return a function that adds a tracked job with its lock to a set, and returns the entry of the API."""

    def made(jobs, key, state, **fields):
        data = add(redis, key, "j1", idempotency_key=LOCK, status_expiration=60, **fields)
        redis.hset(LOCK, mapping={"jid": "j1", "class": "Job"})
        redis.pexpire(LOCK, 50_000)
        redis.set(keys.status("j1"), state, ex=60)
        entry = jobs.find("j1")
        assert entry.data == data
        return entry

    return made


def test_loop_yields_jobs_in_the_order_of_their_set(shard, redis):
    for key in (keys.SCHEDULE, keys.RETRY, keys.DEAD, keys.INTERRUPTED):
        for number in range(3):
            add(redis, key, f"{key}{number}", score=NOW + number)
    assert jids(admin.scheduled()) == ["schedule0", "schedule1", "schedule2"]
    assert jids(admin.retries()) == ["retry0", "retry1", "retry2"]
    assert jids(admin.dead()) == ["dead2", "dead1", "dead0"]
    assert jids(admin.interrupted()) == ["interrupted2", "interrupted1", "interrupted0"]
    assert (admin.dead().size, admin.scheduled("main").size) == (3, 3)


def test_loop_misses_no_job_while_the_set_changes(redis):
    """Half of the jobs have one time; jobs before and after the loop's place leave and come during the loop."""
    count = 4 * (PAGE + OVERLAP)
    for number in range(count):
        redis.zadd("set", {f"{number:04d}": 5 if number % 2 else number})
    for newest_first in (False, True):
        seen = []
        for member, _ in ordered_entries(redis, "set", newest_first=newest_first):
            seen.append(member.decode())
            if len(seen) % PAGE == 7:
                for gone in seen[-3:-1]:
                    redis.zrem("set", gone)
                redis.zadd("set", {f"new {len(seen)}": len(seen) % 9})
        assert len(seen) == len(set(seen))
        stayed = {name.decode() for name in redis.zrange("set", 0, -1)} - {name for name in seen if "new" in name}
        assert {name for name in stayed if "new" not in name} <= set(seen)
        redis.zremrangebylex("set", "[new", "[nex")


def test_loop_begins_a_score_again_when_many_of_it_have_left(redis):
    redis.zadd("set", {f"{number:04d}": 1 for number in range(4 * PAGE)})
    seen = []
    for member, _ in ordered_entries(redis, "set", newest_first=False):
        seen.append(member)
        if len(seen) == 2 * PAGE + OVERLAP:
            redis.zrem("set", *seen)
    assert len(set(seen)) == len(seen) == 4 * PAGE


def test_malformed_payloads_are_shown_and_raise_nothing(shard, redis):
    damaged = json.dumps(compressed([1], jid="damaged", args=["no base64 !"])).encode()
    odd = b'{"class":["x"],"args":5,"queue":null,"tags":"t","error_class":1,"jid":7,"retried_at":{}}'
    for number, data in enumerate([b"\xff\x00 no json", b"[]", odd, damaged]):
        redis.zadd(keys.RETRY, {data: NOW + number})
    found = list(admin.retries())
    assert [bool(one.problem) for one in found] == [True] * 4
    shown = [(one.worker, one.queue, one.tags, one.args, one.since, one.context, repr(one)) for one in found]
    assert len(shown) == 4
    assert (
        list(admin.retries().where(cls="Job", queue="q", error="E", tag="t", context={"user": 1}, older_than=1)) == []
    )
    assert admin.retries().where().count() == 4


def test_arguments_are_decompressed_and_encrypted_ones_hidden(shard, redis):
    redis.zadd(keys.DEAD, {json.dumps(compressed([1, "long" * 50], jid="big")).encode(): 1})
    add(redis, keys.DEAD, "secret", args=[1, "ciphertext"], encrypt=True)
    wrapped = {"name": "Sidekiq::ActiveJob::Wrapper", "wrapped": "MailJob", "args": [{"arguments": ["ann"]}]}
    add(redis, keys.DEAD, "ruby", **wrapped)
    dead = admin.dead()
    assert dead.find("big").display_args == [1, "long" * 50]
    assert dead.find("secret").display_args == [1, "[encrypted data]"]
    ruby = dead.find("ruby")
    assert (ruby.display_class, ruby.display_args) == ("MailJob", ["ann"])
    assert jids(dead.where(cls="MailJob")) == ["ruby"]


def test_find_reads_the_id_and_no_other_field(shard, redis):
    add(redis, keys.DEAD, "other", args=["wanted"])
    assert admin.dead().find("wanted") is admin.dead().find("\ud800") is None
    data = add(redis, keys.DEAD, "wanted")
    found = admin.dead().find("wanted")
    assert (found.data, found.shard, found.score) == (data, "main", pytest.approx(NOW))
    assert admin.retries().find("wanted") is None


def test_filter_selects_by_each_criterion(shard, redis):
    fields = {"meta.user": "ann", "meta.project": 7, "correlation_id": "c1", "tags": ["slow"], **FAILED}
    add(redis, keys.RETRY, "all", queue="mail", name="MailJob", **fields)
    add(redis, keys.RETRY, "none")
    failed = admin.retries()
    # The ages count from ``NOW``: on a loaded machine this test may come long after it.
    longer, longest = (span + time.time() - NOW for span in (400, 40_000))
    for criteria in (
        {"cls": "MailJob"},
        {"queue": "mail"},
        {"error": "Office::TimeoutError"},
        {"error": "TimeoutError"},
        {"error": TimeoutError},
        {"error": "answer of smtp"},
        {"tag": "slow"},
        {"context": {"user": "ann", "project": 7}},
        {"context": {"meta.project": "7", "correlation_id": "c1"}},
        {"older_than": longer},
        {"cls": "MailJob", "queue": "mail", "error": "TimeoutError", "tag": "slow", "older_than": longer},
    ):
        assert jids(failed.where(**criteria)) == ["all"], criteria
        assert failed.where(**criteria).count() == 1
    for criteria in (
        {"cls": "Mail"},
        {"queue": "mai"},
        {"tag": "s"},
        {"context": {"user": "an"}},
        {"older_than": longest},
    ):
        assert failed.where(**criteria).count() == 0, criteria
    assert jids(failed.scan("smtp")) == jids(failed.scan("Mail*no*smtp")) == ["all"]
    assert failed.scan("smtp*Mail").count() == 0
    assert (
        repr(failed.where(cls="MailJob", older_than=400)) == "<MatchingJobs of retry: class=MailJob, older than 400 s>"
    )


def test_wrong_criteria_get_a_clear_error(shard):
    with pytest.raises(ValueError, match="queue is empty: leave it out"):
        admin.dead().where(queue="")
    with pytest.raises(TypeError, match="tag=5: give a text"):
        admin.dead().where(tag=5)
    with pytest.raises(ValueError, match="older_than=-1: give a timedelta"):
        admin.dead().where(older_than=-1)
    with pytest.raises(ValueError, match=r"scan\('\*'\): give a text"):
        admin.dead().scan("*")
    with pytest.raises(ValueError, match="pass the field `resume` of an earlier result"):
        admin.dead().where().delete(resume="x")


def test_retry_moves_a_dead_job_as_sidekiq_does(tracked, redis):
    redis.sadd(keys.QUEUES, "other")
    entry = tracked(admin.dead(), keys.DEAD, "failed", retry_count=25, queue="mail", extra={"kept": [1.5]}, **FAILED)
    redis.delete(LOCK)
    redis.zadd(keys.DEAD_BUSINESS, {"digest": 1})
    assert entry.retry()
    (job,) = queued(redis, "mail")
    assert (job["retry_count"], job["extra"], job["error_class"]) == (24, {"kept": [1.5]}, FAILED["error_class"])
    assert job["enqueued_at"] == pytest.approx(time.time(), abs=60)
    assert redis.smembers(keys.QUEUES) == {b"other", b"mail"}
    assert (admin.dead().size, redis.get(keys.status("j1"))) == (0, b"queued")
    assert redis.hget(LOCK, "jid") == b"j1"  # the lock was free
    assert not entry.retry()
    assert redis.llen("queue:mail") == 1


def test_retry_leaves_the_lock_of_another_job(tracked, redis):
    entry = tracked(admin.dead(), keys.DEAD, "failed")
    redis.hset(LOCK, "jid", "other")
    assert entry.retry()
    assert redis.hget(LOCK, "jid") == b"other"


def test_enqueue_now_keeps_the_retry_count_and_the_lock(tracked, redis):
    entry = tracked(admin.scheduled(), keys.SCHEDULE, "queued", at=NOW + 5, deferred=True, retry_count=3)
    redis.pexpire(LOCK, 5_000_000)
    assert entry.enqueue_now()
    (job,) = queued(redis)
    assert (job["retry_count"], "at" in job, "deferred" in job) == (3, False, False)
    assert redis.pttl(LOCK) > 4_000_000


def test_enqueued_job_of_another_writer_gets_what_a_queue_needs(shard, redis):
    """Ruby's client adds queue and times too; what only its writer can write keeps its bytes."""
    redis.zadd(keys.SCHEDULE, {b'{"class":"Job","args":[1e999],"jid":"j","deep":%b}' % (b"[" * 90 + b"]" * 90): 1})
    assert admin.scheduled().find("j").enqueue_now()
    (data,) = redis.lrange("queue:default", 0, -1)
    assert b'"args":[1e999]' in data
    assert b"[" * 90 in data
    job = json.loads(data)
    assert (job["queue"], job["created_at"]) == ("default", job["enqueued_at"])


def test_requeue_gives_an_interrupted_job_one_more_run(tracked, redis):
    counts = {"interrupted_count": 3, "aw_unknown_class_since": NOW - 9e5 + 0.5, "aw_unknown_class_count": 4, **FAILED}
    assert tracked(admin.interrupted(), keys.INTERRUPTED, "failed", **counts).requeue()
    (job,) = queued(redis)
    assert job["interrupted_count"] == 3
    assert not {"aw_unknown_class_since", "aw_unknown_class_count", "error_class"} & job.keys()


def test_kill_moves_the_bytes_and_trims_the_dead_set(tracked, redis):
    entry = tracked(admin.retries(), keys.RETRY, "retrying")
    add(redis, keys.DEAD, "old", score=NOW - 200 * 86_400)
    add(redis, keys.DEAD, "young", score=NOW - 10)
    assert entry.kill()
    assert jids(admin.dead()) == ["j1", "young"]
    assert admin.dead().find("j1").data == entry.data
    assert admin.dead().find("j1").score == pytest.approx(server_time(redis), abs=60)
    assert (redis.exists(LOCK), redis.get(keys.status("j1"))) == (0, b"failed")


def test_kill_of_malformed_bytes_wraps_them(shard, redis):
    redis.zadd(keys.RETRY, {b"no json": 1})
    (entry,) = admin.retries()
    assert entry.kill()
    (dead,) = admin.dead()
    assert base64.b64decode(dead.payload["aw_raw"]) == b"no json"
    with pytest.raises(JobRefusedError, match=r"\(dead\) stays as it is: its payload cannot run: delete it"):
        dead.retry()
    assert dead.delete()


def test_delete_releases_the_lock_and_ends_the_state(tracked, redis):
    assert tracked(admin.scheduled(), keys.SCHEDULE, "queued").delete()
    assert (redis.exists(LOCK), redis.get(keys.status("j1")), admin.scheduled().size) == (0, b"discarded", 0)
    assert list(redis.hgetall(keys.COUNTERS)) == [
        b'sidekiq_jobs_skipped_total{action="dropped",reason="operator",worker="Job"}'
    ]


def test_delete_of_a_dead_job_keeps_its_state(tracked, redis):
    assert tracked(admin.dead(), keys.DEAD, "failed").delete()
    assert (redis.get(keys.status("j1")), redis.exists(keys.COUNTERS)) == (b"failed", 0)


def test_reschedule_changes_the_time_alone(tracked, redis):
    entry = tracked(admin.retries(), keys.RETRY, "retrying")
    assert entry.reschedule(server_time(redis) + 9_000)
    (found,) = admin.retries()
    assert (found.data, found.due) == (entry.data, pytest.approx(server_time(redis) + 9_000, abs=60))
    assert redis.pttl(LOCK) > 9_000_000
    assert (redis.get(keys.status("j1")), redis.ttl(keys.status("j1")) > 8_900) == (b"retrying", True)
    with pytest.raises(ArgumentsError, match="give a timedelta, an aware datetime or a number"):
        found.reschedule("tomorrow")
    redis.delete(keys.RETRY)
    assert not found.reschedule(5)
    assert admin.retries().size == 0


def test_action_of_another_set_is_refused_with_the_right_ones(shard, redis):
    add(redis, keys.DEAD, "j1")
    with pytest.raises(
        ValueError, match=r"kill\(\) is no action for dead jobs.*there are retry\(\), enqueue_now\(\), "
    ):
        admin.dead().find("j1").kill()
    with pytest.raises(ValueError, match=r"retry\(\) is no action for scheduled jobs"):
        admin.scheduled().where().retry()
    assert all(hasattr(admin.JobEntry, name) for names in ACTIONS.values() for name in names)


def test_job_on_its_way_to_another_shard_stays(shard, redis):
    data = add(redis, keys.SCHEDULE, "j1", aw_transfer="token")
    for action in ("enqueue_now", "delete", "kill"):
        with pytest.raises(JobRefusedError, match="on its way to another shard"):
            getattr(admin.scheduled().find("j1"), action)()
    assert redis.zscore(keys.SCHEDULE, data)


def test_destination_of_another_type_leaves_the_job(shard, redis):
    data = add(redis, keys.RETRY, "j1", score=NOW + 0.25)
    redis.set("queue:default", "x")
    redis.set(keys.DEAD, "x")
    for action in ("retry", "kill"):
        with pytest.raises(JobRefusedError, match="queue:default is not a list, or `dead` is not a sorted set"):
            getattr(admin.retries().find("j1"), action)()
    assert redis.zrange(keys.RETRY, 0, -1, withscores=True) == [(data, pytest.approx(NOW + 0.25))]


def test_full_server_lets_operators_act(shard, redis):
    for number in range(3):
        add(redis, keys.RETRY, f"j{number}")
    with full_memory(redis):
        assert admin.retries().find("j0").retry()
        assert admin.retries().find("j1").kill()
        assert admin.retries().find("j2").reschedule(60)


def test_read_only_block_refuses_every_action(shard, redis):
    add(redis, keys.DEAD, "j1")
    with admin.read_only():
        entry = admin.dead().find("j1")
        with pytest.raises(ReadOnlyError, match=r"JobEntry\.retry\(\) is refused"):
            entry.retry()
        with pytest.raises(ReadOnlyError, match=r"MatchingJobs\.delete\(\) is refused"):
            admin.dead().where().delete()
    assert admin.dead().size == 1


def test_shard_that_does_not_answer_is_never_left_out_silently(silent_second, redis):
    add(redis, keys.DEAD, "j1")
    assert admin.dead().find("j1").jid == "j1"
    seen = []
    with pytest.raises(ShardUnavailableError, match="'second' is unavailable"):
        seen.extend(admin.dead())
    assert jids(seen) == ["j1"]
    for ask in (lambda: admin.dead().size, lambda: admin.dead().find("j2"), lambda: admin.dead().where().count()):
        with pytest.raises(ShardUnavailableError, match="'second' is unavailable"):
            ask()
