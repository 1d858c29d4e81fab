"""Test what the readers of the core decide from data in Redis, as processes and producers write them."""

import json
import time
from contextlib import closing

import pytest
from redis.exceptions import NoPermissionError

from framework.admin.diagnosis import of_server
from framework.admin.diagnosis.diagnose import diagnose
from framework.admin.diagnosis.facts import DiagnosisScope, Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.store.connect import Endpoint, open_client
from framework.wire import keys
from framework.wire.job import DEATH_COUNT, INTERRUPTED_COUNT
from tests.harness import encoded, opened
from tests.servers.guarded import narrowed

IDENTITY = "host:7:aabbccddeeff"
LATE_S = 100


@pytest.fixture
def found(redis, redis_url, tmp_path, monkeypatch):
    """Return a function that returns the causes of the shard, which has no worker classes."""
    monkeypatch.setenv("FRAMEWORK_VAR_DIR", str(tmp_path))
    # A busy machine is no slow shard.
    monkeypatch.setattr(of_server, "_SLOW_S", 60.0)
    shard = opened(redis_url)

    def read(**scope):
        result = diagnose([shard], Installation(load({}), KnownClasses()), DiagnosisScope(**scope))
        assert result.notes == []
        return result.causes

    yield read
    shard.close()


def run_process(redis, *, slots=2, runs=(), started_s=3_600, queue="mail", **fields):
    """Write what a living process writes; ``runs`` are the class and the seconds of each running job."""
    now = time.time()
    info = {"queues": [queue], "concurrency": slots, "labels": ["python"], "started_at": now - started_s}
    redis.sadd(keys.PROCESSES, IDENTITY)
    record = {"info": json.dumps(info), "busy": len(runs), "concurrency": slots, "beat": now, "quiet": "false"}
    redis.hset(IDENTITY, mapping={**record, **fields})
    redis.set(keys.lease(IDENTITY), 1)
    redis.zadd(keys.REGISTRY, {IDENTITY: now})
    for number, (name, seconds) in enumerate(runs):
        job = {"queue": queue, "payload": encoded(name).decode(), "run_at": int(now - seconds)}
        redis.hset(f"{IDENTITY}:work", str(number), json.dumps(job))


def push(redis, name, count, *, waits_s=LATE_S, span_s=0.0, queue="mail", **fields):
    now = time.time() - waits_s
    redis.sadd(keys.QUEUES, queue)
    for number in range(count):
        at = now + span_s * number / count
        redis.lpush(keys.queue(queue), encoded(name, queue=queue, enqueued_at=at, **fields))


def note_runs(redis, name, minutes_ago, processed, seconds, failed=0):
    """Write the runs of a class in one minute."""
    at = time.gmtime(time.time() - 60 * minutes_ago)
    counts = {f"{name}|p": processed, f"{name}|f": failed, f"{name}|ms": int(processed * seconds * 1_000)}
    redis.hset(keys.metrics(8, at)[0][0], mapping=counts)


def codes(causes):
    return [one.code for one in causes]


def test_silent_shard_needs_no_settings_of_its_own():
    shard = opened("redis://127.0.0.1:1/0", "elsewhere")
    with closing(shard):
        (one,) = diagnose([shard], Installation(load({}), KnownClasses()), DiagnosisScope()).causes
    assert (one.code, one.remedy) == ("shard_away", "redis-cli -u redis://127.0.0.1:1/0 PING")


def test_queue_class_far_slower_than_usual_is_slow(found, redis):
    run_process(redis, runs=[("Slow", 90), ("Slow", 80)])
    note_runs(redis, "Slow", 10, 60, 2.0)
    push(redis, "Quick", 50)
    (one,) = found()
    assert one.code == "slow_class"
    assert "usually 2 s" in one.evidence[0]
    assert one.remedy == "application-worker jobs limits set Slow 1 --reason 'its runs are slow' --for 1h"
    assert one.effect.startswith("1 of 2 slots are free for the other 50 waiting jobs")


def test_queue_of_many_more_jobs_than_usual_is_flooded(found, redis):
    run_process(redis, runs=[("Mail", 0), ("Mail", 0)])
    for minute in range(5, 30):
        note_runs(redis, "Mail", minute, 60, 0.5)
    push(redis, "Mail", 400, waits_s=LATE_S, span_s=20, **{"meta.caller_id": "POST /orders"})
    (one,) = found()
    assert one.code == "flood"
    assert "usually 60.0 a minute" in one.evidence[0]
    assert one.evidence[-1] == "100 % of them pushed by POST /orders"


def test_queue_is_flooded_before_its_jobs_are_late(found, redis):
    run_process(redis, runs=[("Mail", 0), ("Mail", 0)])
    for minute in range(5, 30):
        note_runs(redis, "Mail", minute, 60, 0.5)
    push(redis, "Mail", 200, waits_s=3)
    assert found() == []
    push(redis, "Mail", 200, waits_s=2)
    assert codes(found()) == ["flood"]


def test_queue_behind_long_runs_of_another_class_is_slow(found, redis):
    run_process(redis, runs=[("Report", 80), ("Report", 70)])
    push(redis, "Mail", 50)
    assert codes(found()) == ["slow_class"]


def test_queue_without_any_process_needs_no_time(found, redis):
    push(redis, "Mail", 3, waits_s=0)
    assert codes(found()) == ["unserved"]
    run_process(redis, quiet="true")
    assert found() == []


def test_queue_with_usual_arrivals_has_too_few_slots(found, redis):
    run_process(redis, runs=[("Mail", 0), ("Mail", 0)])
    for minute in range(5, 30):
        note_runs(redis, "Mail", minute, 240, 0.5)
    push(redis, "Mail", 400, waits_s=LATE_S, span_s=LATE_S)
    assert codes(found()) == ["few_slots"]


def test_queue_with_free_slots_is_not_fetched(found, redis):
    run_process(redis)
    push(redis, "Mail", 3)
    (one,) = found()
    assert (one.code, one.remedy) == ("not_fetching", f"application-worker jobs stack {IDENTITY}")


@pytest.mark.parametrize(("waits_s", "expected"), [(50, []), (70, ["not_fetching"])])
def test_queue_within_its_target_has_no_cause(found, redis, waits_s, expected):
    run_process(redis)
    push(redis, "Mail", 3, waits_s=waits_s)
    assert codes(found()) == expected


def test_queue_that_is_asked_for_needs_no_target(found, redis):
    run_process(redis)
    push(redis, "Mail", 3, waits_s=20)
    assert codes(found(queue="mail")) == codes(found(cls="Mail")) == ["not_fetching"]
    assert found(queue="other") == []


@pytest.mark.parametrize(("skew_s", "expected"), [(1.9, []), (-2.5, ["clock_skew"]), (90, ["clock_skew"])])
def test_clock_of_a_process_is_compared_with_redis(found, redis, skew_s, expected):
    run_process(redis, aw_clock_s=skew_s)
    assert codes(found()) == expected


def test_heartbeat_that_is_late_is_named_before_its_queue(found, redis):
    run_process(redis)
    redis.zadd(keys.REGISTRY, {IDENTITY: time.time() - 12})
    push(redis, "Mail", 3)
    assert codes(found()) == ["process_silent"]


def test_class_that_fails_since_a_start_names_the_process(found, redis):
    run_process(redis, started_s=60)
    now = time.time()
    note_runs(redis, "Mail", 0, 20, 0.1, failed=20)
    note_runs(redis, "Mail", 10, 20, 0.1)
    for number in range(20):
        failed = {"error_class": "KeyError", "failed_at": now - 30, "jid": f"{number:024x}"}
        redis.zadd(keys.RETRY, {encoded("Mail", queue="mail", **failed): now + 500})
    (one,) = found()
    assert (one.code, one.classes) == ("failing", {"Mail"})
    assert f"shortly before, {IDENTITY} started (a deploy?)" in one.evidence[2]


def test_failing_class_that_is_paused_is_explained(found, redis):
    run_process(redis)
    note_runs(redis, "Mail", 0, 20, 0.1, failed=20)
    failed = {"error_class": "KeyError", "failed_at": time.time() - 30}
    redis.zadd(keys.RETRY, {encoded("Mail", queue="mail", **failed): time.time() + 500})
    assert found()[0].remedy.startswith("application-worker jobs pause Mail --reason")
    set_flag(redis, Flag(pause_flag("Mail"), 100, "incident 9", "ann"), 600)
    (one,) = found()
    assert (one.code, one.remedy) == ("failing", "application-worker jobs explain Mail")
    assert one.effect == "Mail is paused by ann: incident 9: shows how its jobs continue"


@pytest.mark.parametrize(("failed", "expected"), [(9, []), (10, ["failing"])])
def test_class_fails_from_half_of_its_runs_on(found, redis, failed, expected):
    run_process(redis)
    note_runs(redis, "Mail", 0, 20, 0.1, failed=failed)
    job = encoded("Mail", queue="mail", error_class="KeyError", failed_at=time.time())
    redis.zadd(keys.RETRY, {job: time.time() + 500})
    assert codes(found()) == expected


@pytest.mark.parametrize(("processed", "expected"), [(200_000, []), (100_000, ["deep_retry_set"])])
def test_retry_set_is_deep_by_the_runs_of_two_days(found, redis, processed, expected):
    run_process(redis)
    redis.set(f"stat:processed:{time.strftime('%Y-%m-%d', time.gmtime())}", processed)
    now = time.time()
    redis.zadd(
        keys.RETRY, {encoded("Mail", jid=f"{at:024x}", failed_at=now - 9_000): now + at + 60 for at in range(1_500)}
    )
    assert codes(found()) == expected


def test_set_with_due_jobs_is_stalled(found, redis):
    run_process(redis)
    redis.zadd(keys.SCHEDULE, {encoded("Mail", queue="mail"): time.time() - 40})
    assert codes(found()) == ["scheduler_stalled"]


def test_quiet_processes_serve_no_queue(found, redis):
    run_process(redis, quiet="true")
    push(redis, "Mail", 3)
    (one,) = found()
    assert (one.code, one.evidence[2]) == ("unserved", f"quiet, so without a fetch: {IDENTITY}")


@pytest.mark.parametrize(
    ("alert", "expected"), [(None, []), ("UnsafeRedisConfig", ["not_persistent"]), ("ShardAway", [])]
)
def test_configuration_is_a_cause_of_its_alert_only(found, redis, alert, expected):
    redis.config_set("appendonly", "no")
    try:
        assert codes(found(alert=alert)) == expected
    finally:
        # Later tests use the same server, and some need its file.
        redis.config_set("appendonly", "yes")


def test_set_aside_jobs_of_the_hour_are_named(found, redis):
    run_process(redis)
    now = time.time()
    redis.zadd(keys.DEAD, {encoded("aw.Malformed", error_message="no JSON"): now - 60})
    redis.zadd(keys.INTERRUPTED, {encoded("Long", interrupted_count=3, jid="c" * 24): now - 60})
    assert sorted(codes(found())) == ["cut_off", "malformed"]
    redis.zadd(keys.DEAD, {encoded("aw.Malformed", error_message="no JSON"): now - 4_000})
    redis.zadd(keys.INTERRUPTED, {encoded("Long", interrupted_count=3, jid="c" * 24): now - 4_000})
    assert found() == []


def test_job_deferred_by_a_policy_of_an_application_is_named(found, redis):
    run_process(redis)
    job = encoded("Mail", queue="mail", deferred=True, deferred_by="tenant_closed")
    redis.zadd(keys.SCHEDULE, {job: time.time() + 60})
    (one,) = found()
    assert (one.code, one.cause) == ("deferred", "jobs of Mail are deferred by tenant_closed")


@pytest.mark.parametrize(
    ("share", "alert", "expected"),
    [(0.6, None, []), (0.6, "RedisMemoryHigh", ["memory_full"]), (0.7, None, ["memory_budget"])],
)
def test_memory_is_a_cause_of_its_alert_from_half_on(found, redis, share, alert, expected):
    run_process(redis)
    redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] / share))
    try:
        assert codes(found(alert=alert)) == expected
    finally:
        redis.config_set("maxmemory", 0)


REFUSED = [
    ("blmove", "BLMOVE a b LEFT LEFT 1", ["rights"]),
    ("info", "INFO", []),
    ("client|setname", "CLIENT SETNAME x", []),
]


@pytest.mark.refused("default *")
@pytest.mark.parametrize(("right", "command", "expected"), REFUSED)
def test_refused_command_is_a_cause_unless_it_is_optional(found, redis, redis_url, right, command, expected):
    worker = opened(redis_url)
    with narrowed(redis, f"-{right}"):
        with pytest.raises(NoPermissionError):
            worker.client.execute_command(*command.split())
        causes = found()
    worker.close()
    assert codes(causes) == expected
    assert [one.remedy for one in causes] == ["application-worker acl worker --user default"] * len(expected)


@pytest.mark.refused("default *")
@pytest.mark.parametrize("name", ["framework:diagnose", "framework:client:boot"])
def test_refused_command_of_a_question_is_no_cause(found, redis, redis_url, name):
    """The command itself may lack a right, and a producer asks at its boot for what its role may not read."""
    with narrowed(redis, "-blmove"), open_client(Endpoint(redis_url), name=name) as client:
        with pytest.raises(NoPermissionError):
            client.execute_command("BLMOVE", "a", "b", "LEFT", "LEFT", 1)
        assert found() == []


def test_limit_says_what_its_remedy_does(found, redis):
    """Twice the limit, as many as the processes have slots for: 1,240 runs of a second each, 50 at a time."""
    run_process(redis, slots=60)
    note_runs(redis, "Mail", 1, 60, 1.0)
    now = time.time()
    base = keys.limit("Mail")
    redis.hset(base, "limit", 25)
    redis.zadd(f"{base}:running", {f"{IDENTITY} {number}": now + 100 for number in range(25)})
    redis.sadd(keys.LIMITS_WAITING, base)
    redis.zadd(f"{base}:turns", {"": 1})
    members = {b"%d\n" % at + encoded("Mail", queue="mail", jid=f"{at:024x}"): now - 100 for at in range(1_240)}
    redis.zadd(f"{base}:waiting:", members)
    push(redis, "Mail", 1, waits_s=0)
    (one,) = found()
    assert one.remedy == "application-worker jobs limits set Mail 50 --reason 'jobs wait' --for 1h"
    assert one.effect == "limit 50: 1,240 jobs of Mail resume, drained in about 25 s"


def test_lost_data_is_named_with_the_process_that_noticed(found, redis):
    run_process(redis, aw_lost_at=time.time() - 4_000)
    assert found() == []
    run_process(redis, aw_lost_at=time.time() - 60)
    (one,) = found()
    assert (one.code, one.remedy) == ("data_lost", "application-worker ledger diff")
    assert IDENTITY in one.evidence[0]


@pytest.mark.parametrize(
    ("alert", "expected"),
    [(None, []), ("MemoryLimitExceeded", ["large_process"]), ("FleetMetricsMissing", ["no_figures"])],
)
def test_alert_without_a_fault_in_redis_has_a_cause_if_asked(found, redis, alert, expected):
    run_process(redis, rss=600_000, runs=[("Hungry", 5)])
    causes = found(alert=alert)
    assert codes(causes) == expected
    assert [one.classes for one in causes if one.code == "large_process"] == [{"Hungry"}] * (
        expected == ["large_process"]
    )


def test_large_process_that_was_replaced_is_known_by_its_jobs(found, redis):
    run_process(redis, rss=100_000)
    redis.lpush(keys.working(IDENTITY), encoded("Hungry", jid="a" * 24, **{INTERRUPTED_COUNT: 1}))
    (one,) = [one for one in found(alert="MemoryLimitExceeded") if one.code == "large_process"]
    assert (one.classes, one.cause) == ({"Hungry"}, "jobs of Hungry were interrupted when their process was replaced")


@pytest.mark.parametrize(("deaths", "expected"), [(0, []), (1, ["process_died"]), (2, ["poison"])])
def test_jobs_of_a_dead_process_are_a_cause_of_its_alert(found, redis, deaths, expected):
    run_process(redis)
    redis.lpush(keys.working(IDENTITY), encoded("Long", jid="a" * 24, **{DEATH_COUNT: deaths}))
    assert codes(found(alert="RecoveredSpike")) == expected
    assert codes(found()) == [code for code in expected if code == "poison"]


@pytest.mark.parametrize(("ago_s", "expected"), [(10, ["poison"]), (600, ["poison", "process_silent"])])
def test_poison_explains_a_silent_process_of_the_same_minute(found, redis, ago_s, expected):
    redis.zadd(keys.INTERRUPTED, {encoded("Bomb", **{DEATH_COUNT: 3}): time.time() - ago_s})
    redis.zadd(keys.REGISTRY, {IDENTITY: time.time() - 30})
    assert codes(found()) == expected


def lock(redis, jid, **fields):
    redis.hset(
        keys.lock("one"), mapping={"jid": jid, "class": "Mail", "since": time.time() - 60, "duplicates": 3, **fields}
    )


def test_jobs_that_outlive_their_locks_are_a_cause(found, redis):
    run_process(redis)
    for number in range(6):
        key = keys.lock(str(number))
        push(redis, "Mail", 1, waits_s=700 - number, jid=f"{number:024x}", idempotency_key=key)
        if number < 2:
            redis.hset(key, mapping={"jid": f"{number or 99:024x}", "class": "Mail"})
    (one,) = [one for one in found() if one.code == "lock_outlived"]
    assert (one.jobs, one.classes, one.queues) == (5, {"Mail"}, {"mail"})
    assert one.evidence[:2] == [
        "5 of the next 6 jobs of Mail in the queue mail have no lock any more",
        "of 1 of these a later equal job has the lock, and waits too",
    ]


@pytest.mark.parametrize(
    "fields",
    [{"retry_count": 0}, {"duplicate-of": "a"}, {"enqueued_at": time.time() + 3_600}, {"idempotency_key": "x"}],
)
def test_jobs_that_need_no_lock_have_not_outlived_one(found, redis, fields):
    run_process(redis)
    job = encoded(
        "Mail", queue="mail", **{"idempotency_key": keys.lock("one"), "enqueued_at": time.time() - 700, **fields}
    )
    redis.sadd(keys.QUEUES, "mail")
    redis.lpush(keys.queue("mail"), *[job] * 5)
    assert "lock_outlived" not in codes(found())


@pytest.mark.parametrize("place", ["queue", "sub-queue", "retry", "working"])
def test_lock_whose_job_waits_is_not_left(found, redis, place):
    """A job that comes back from the retry set is younger in its queue than its lock."""
    run_process(redis)
    jid = "d" * 24
    lock(redis, jid)
    assert codes(found()) == ["lock_left"]
    job = encoded("Mail", queue="mail", jid=jid, enqueued_at=time.time())
    other = encoded("Mail", queue="mail", enqueued_at=time.time() - 1)
    redis.sadd(keys.QUEUES, "mail", "mail~low^")
    if place == "retry":
        redis.zadd(keys.RETRY, {job: time.time() + 600})
    elif place == "working":
        redis.rpush(keys.working(IDENTITY), *[other] * 30, job, *[other] * 30)
    else:
        redis.lpush(keys.queue("mail" if place == "queue" else "mail~low^"), other, job)
    assert found() == []


def test_lock_of_a_period_outlives_its_job(found, redis):
    run_process(redis)
    lock(redis, "e" * 24, begun="period")
    assert found() == []


@pytest.mark.parametrize(
    ("left_s", "lease", "expected"), [(100, 0, "slots_leaked"), (170, 0, "limit_reached"), (100, 1, "limit_reached")]
)
def test_slots_of_a_process_that_is_gone_are_leaked(found, redis, left_s, lease, expected):
    run_process(redis)
    now, base, gone = time.time(), keys.limit("Mail"), "gone:9:00000000000a"
    if lease:
        redis.set(keys.lease(gone), 1)
    redis.hset(base, "limit", 1)
    redis.zadd(f"{base}:running", {f"{gone} {'f' * 24}": now + left_s})
    redis.sadd(keys.LIMITS_WAITING, base)
    redis.zadd(f"{base}:turns", {"": 1})
    redis.zadd(f"{base}:waiting:", {b"1\n" + encoded("Mail", queue="mail"): now - 100})
    assert codes(found()) == [expected]


def test_held_jobs_are_named_to_their_alert_before_they_are_late(found, redis):
    run_process(redis)
    base = keys.limit("Mail")
    redis.hset(base, "limit", 1)
    redis.zadd(f"{base}:running", {f"{IDENTITY} {'f' * 24}": time.time() + 170})
    redis.sadd(keys.LIMITS_WAITING, base)
    redis.zadd(f"{base}:turns", {"": 1})
    redis.zadd(f"{base}:waiting:", {b"1\n" + encoded("Mail", queue="mail"): time.time() - 1})
    assert found() == []
    assert codes(found(alert="HeldJobsGrowing")) == ["limit_reached"]


def test_jobs_that_a_stop_cut_off_are_found_where_they_run_again(found, redis):
    run_process(redis)
    redis.lpush(keys.working(IDENTITY), encoded("Long", interrupted_count=1))
    assert found() == []
    assert codes(found(alert="ForcedShutdowns")) == ["cut_off"]


def test_failing_classes_share_the_facts_of_their_shard(found, redis):
    run_process(redis)
    sent = []
    for names in ("A", "BCDE"):
        for name in names:
            note_runs(redis, name, 0, 20, 0.1, failed=20)
            failed = {"error_class": f"{name}Error", "failed_at": time.time() - 30}
            redis.zadd(keys.RETRY, {encoded(name, queue="mail", **failed): time.time() + 500})
        before = redis.info("stats")["total_commands_processed"]
        causes = found()
        sent.append(redis.info("stats")["total_commands_processed"] - before)
    assert set(codes(causes)) == {"failing"}
    assert sent[1] - sent[0] <= 4 * 10, "its limit and its pause, but not the processes"
