"""Test the queues of ``framework.admin`` and their jobs, against a real Redis."""

import json

import pytest

from framework import admin
from framework.admin import queue_actions, queue_reader, search
from framework.admin.job_queue import matching_jobs
from framework.admin.job_record import JobFilter
from framework.admin.statistics import ignore_progress
from framework.all_settings import load
from framework.errors import JobRefusedError, QueueReplacedError, ReadOnlyError, ShardUnavailableError, UnknownNameError
from framework.store.connect import server_time
from framework.wire import keys
from framework.wire.json import loads
from framework.wire.sub_queues import level_of
from tests.harness import compressed, encoded, enqueue


def push(redis, count, queue="default", **fields):
    """Push jobs whose ids count up from 0."""
    for number in range(count):
        enqueue(redis, "Job", jid=f"j{number}", args=[number], queue=queue, **fields)


def test_queues_have_size_latency_and_pause(shard, redis):
    redis.sadd(keys.PAUSED, "mail")
    enqueue(redis, "Job", queue="default", enqueued_at=server_time(redis) - 60)
    enqueue(redis, "Job", queue="default")
    redis.sadd(keys.QUEUES, "odd")
    redis.set(keys.queue("odd"), "no list")
    found = {queue.name: queue for queue in admin.queues()}
    assert {name: (one.size, one.paused) for name, one in found.items()} == {
        "default": (2, False),
        "mail": (0, True),
        "odd": (0, False),
    }
    assert 60 <= found["default"].latency < 120
    assert (found["mail"].latency, found["odd"].latency) == (0, 0)


def test_queue_covers_all_shards_or_one(both_shards, redis, second_redis):
    push(redis, 2)
    push(second_redis, 3)
    assert (admin.Queue("default").size, admin.Queue("default", "second").size) == (5, 3)
    assert [(one.name, one.shard) for one in admin.queues()] == [("default", "main"), ("default", "second")]
    assert len(list(admin.Queue("default"))) == 5
    admin.Queue("default", shard="second").pause()
    assert (redis.exists(keys.PAUSED), second_redis.smembers(keys.PAUSED)) == (0, {b"default"})
    assert admin.Queue("default").clear() == 5


HALF = "\ud800"
"""Half of a surrogate pair, which no UTF-8 has: a name that was cut, or read with the wrong encoding."""


@pytest.mark.parametrize(
    "call",
    [
        lambda: admin.Queue(HALF),
        lambda: admin.dead().scan(HALF),
        lambda: admin.set_priority(HALF, "low"),
        lambda: admin.reset_iteration(HALF),
    ],
)
def test_name_that_is_no_text_is_refused(shard, call):
    with pytest.raises(ValueError, match=r"Unicode text|give a text") as raised:
        call()
    assert type(raised.value) is ValueError


def test_queue_has_no_job_with_an_id_that_is_no_text(shard, redis):
    push(redis, 1)
    assert admin.Queue("default").find(HALF) is None


def test_size_of_a_queue_is_no_part_of_it(silent_second, redis):
    push(redis, 2)
    with pytest.raises(ShardUnavailableError, match="shard 'second' is unavailable"):
        _ = admin.Queue("default").size
    admin_queue = admin.Queue("default")
    with pytest.raises(ShardUnavailableError, match="shard 'second' is unavailable"):
        admin_queue.pause()
    assert redis.smembers(keys.PAUSED) == {b"default"}
    assert admin.queues().unanswered.keys() == {"second"}


def test_pause_and_unpause_change_sidekiqs_set(shard, redis):
    push(redis, 1)
    queue = admin.Queue("default")
    queue.pause()
    assert (queue.paused, redis.smembers(keys.PAUSED)) == (True, {b"default"})
    queue.unpause()
    assert (queue.paused, redis.exists(keys.PAUSED)) == (False, 0)


@pytest.mark.parametrize("action", ["pause", "unpause", "clear"])
def test_action_on_an_unknown_queue_gets_the_nearest_name(shard, redis, action):
    push(redis, 1, queue="mailers")
    with pytest.raises(UnknownNameError, match=r"no queue is named 'mailer'.*did you mean 'mailers'"):
        getattr(admin.Queue("mailer"), action)()
    assert redis.exists(keys.PAUSED) == 0


def test_action_on_a_queue_in_a_read_only_block_is_refused(shard, redis):
    push(redis, 1)
    job = next(iter(admin.Queue("default")))
    with admin.read_only():
        for act in (admin.Queue("default").clear, admin.Queue("default").pause, job.delete):
            with pytest.raises(ReadOnlyError):
                act()
    assert redis.llen(keys.queue("default")) == 1


def test_peek_shows_the_next_jobs_to_run(shard, redis):
    push(redis, 5)
    assert [job.jid for job in admin.Queue("default").peek(3)] == ["j0", "j1", "j2"]
    assert [job.jid for job in admin.Queue("default").peek()] == ["j0", "j1", "j2", "j3", "j4"]


def test_loop_over_a_queue_shows_every_job_of_any_writer(shard, redis):
    big = compressed([["x" * 200_000]], jid="big")
    wrapper = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
    rails = encoded(wrapper, wrapped="MailJob", args=[{"job_class": "MailJob", "arguments": [7]}])
    broken = {**compressed(["x" * 1_000]), "args": ["!"]}
    for data in (json.dumps(big), rails, b"\xff no JSON", b"[1]", json.dumps(broken)):
        redis.lpush(keys.queue("default"), data)
    damaged, number, bytes_, wrapped, large = admin.Queue("default")
    assert large.args == [["x" * 200_000]]
    assert large.payload["args"] == big["args"]
    assert (wrapped.worker, wrapped.display_class, wrapped.display_args) == (wrapper, "MailJob", [7])
    assert (bytes_.jid, bytes_.worker, bytes_.args, bytes_.text) == ("", "", [], "\\xff no JSON")
    assert "not an object" in number.problem
    assert (damaged.args, "damaged" in damaged.problem) == (["!"], True)
    assert (large.problem, wrapped.problem) == (None, None)


def test_loop_misses_no_job_while_the_queue_changes(shard, redis, monkeypatch):
    monkeypatch.setattr(queue_reader, "PAGE", 10)
    push(redis, 60)
    seen = []
    for number, job in enumerate(admin.Queue("default")):
        seen.append(job.jid)
        if number % 10 == 4 and number < 50:
            enqueue(redis, "Job", jid=f"new{number}")
            redis.rpop(keys.queue("default"))
    left = {json.loads(data)["jid"] for data in redis.lrange(keys.queue("default"), 0, -1)}
    assert {jid for jid in left if jid.startswith("j")} <= {*seen}
    assert len(seen) == len({*seen})


def test_loop_that_deletes_each_job_reaches_the_end(shard, redis, monkeypatch):
    monkeypatch.setattr(queue_reader, "PAGE", 10)
    push(redis, 35)
    assert sum(job.delete() for job in admin.Queue("default")) == 35
    assert redis.llen(keys.queue("default")) == 0


def test_filtered_jobs_come_once_while_the_queue_changes(shard, redis, monkeypatch):
    """Redis filters by the class: pushes move jobs of a step into the next one."""
    monkeypatch.setattr(search, "LIST_STEP", (10, 10))
    push(redis, 60)
    sizes, seen = load().size_limit, []
    for number, job in enumerate(matching_jobs(shard, "default", JobFilter(cls="Job"), sizes, ignore_progress)):
        seen.append(job.jid)
        if number % 10 == 4 and number < 50:
            enqueue(redis, "Job", jid=f"new{number}")
            enqueue(redis, "Other", jid=f"other{number}")
    assert seen == [f"j{number}" for number in reversed(range(60))]


def test_find_searches_the_queue_for_an_id(shard, redis):
    push(redis, 20)
    enqueue(redis, "Job", jid="other", args=["j99"])
    assert admin.Queue("default").find("j7").args == [7]
    assert admin.Queue("default").find("j99") is None


def test_deleted_job_releases_what_it_held(shard, redis):
    """Its lock, the slot that was reserved for it, which the next waiting job gets, and its status."""
    mine = enqueue(redis, "Job", jid="mine", idempotency_key="aw:lock:1", status_expiration=60, queue="default")
    redis.hset("aw:lock:1", mapping={"v": 1, "jid": "mine", "class": "Job"})
    redis.hset("aw:limit:Job", "limit", 1)
    redis.sadd(keys.LIMITS, "aw:limit:Job")
    redis.sadd(keys.LIMITS_WAITING, "aw:limit:Job")
    redis.zadd("aw:limit:Job:running", {" mine": server_time(redis) + 60})
    waiting = encoded("Job", jid="waiting")
    redis.zadd("aw:limit:Job:waiting:", {b'["default","waiting"]\n' + waiting: 1})
    redis.zadd("aw:limit:Job:turns", {"": 1})
    job = admin.Queue("default").find("mine")
    assert job.data == mine
    assert job.delete()
    assert redis.exists("aw:lock:1") == 0
    assert redis.get(keys.status("mine")) == b"discarded"
    assert redis.zrange("aw:limit:Job:running", 0, -1) == [b" waiting"]
    assert redis.lrange(keys.queue("default"), 0, -1) == [waiting]
    (counted,) = redis.hgetall(keys.COUNTERS).items()
    assert counted == (b'sidekiq_jobs_skipped_total{action="dropped",reason="operator",worker="Job"}', b"1")
    assert not job.delete()


def test_clear_drops_the_jobs_of_that_moment_and_releases_theirs(shard, redis):
    push(redis, 250, status_expiration=60)
    for number in range(250):
        redis.hset(f"aw:lock:{number}", mapping={"v": 1, "jid": f"k{number}", "class": "Job"})
        enqueue(redis, "Job", jid=f"k{number}", idempotency_key=f"aw:lock:{number}")
    seen = []
    assert admin.Queue("default").clear(seen.append) == 500
    assert seen[-1] == 500
    assert len(seen) >= 3
    assert sorted(redis.keys("*")) == sorted(
        [
            *(keys.status(f"j{number}").encode() for number in range(250)),
            b"aw:audit",
            b"aw:counters",
            b"aw:steady_since",
        ]
    )
    assert redis.get(keys.status("j7")) == b"discarded"


def test_clear_keeps_jobs_that_are_pushed_meanwhile(shard, redis):
    push(redis, 300)

    def push_one(_dropped):
        if redis.llen(keys.queue("default")) == 0:
            enqueue(redis, "Job", jid="later")

    assert admin.Queue("default").clear(push_one) == 300
    assert [job.jid for job in admin.Queue("default")] == ["later"]
    assert redis.smembers(keys.QUEUES) == {b"default"}


def test_clear_that_died_is_continued_or_put_back(shard, redis, monkeypatch):
    """Its list is a working list with a lease: a reaper puts the rest back; a second call drops it."""
    push(redis, 250)

    def die(dropped):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        admin.Queue("default").clear(die)
    aside = keys.working(keys.migration_identity("default"))
    left = redis.llen(aside)
    assert (0 < left < 250, redis.llen(keys.queue("default"))) == (True, 0)
    assert redis.zscore(keys.REGISTRY, keys.migration_identity("default"))
    enqueue(redis, "Job", jid="new")
    assert admin.Queue("default").clear() == left + 1
    assert (redis.exists(aside), redis.exists(keys.queue("default"))) == (0, 0)


def test_clear_of_a_class_keeps_the_others_in_their_order(shard, redis):
    for number in range(450):
        other, lock = number % 3, f"aw:lock:{number}"
        enqueue(redis, "Other" if other else "Job", jid=f"j{number}", idempotency_key=lock, status_expiration=60)
        redis.hset(lock, mapping={"v": 1, "jid": f"j{number}", "class": "Job"})
    queue, seen = admin.Queue("default"), []
    assert queue.count(cls="Job") == 150
    assert queue.clear(seen.append, cls="Job") == 150
    assert [job.jid for job in reversed(list(queue))] == [f"j{number}" for number in range(450) if number % 3]
    assert len(redis.keys("aw:lock:*")) == 300
    assert (redis.get(keys.status("j3")), redis.exists(keys.status("j1"))) == (b"discarded", 0)
    assert (seen[-1], len(seen) >= 3) == (150, True)
    assert not redis.exists(keys.working(keys.migration_identity("default")))


def test_clear_of_a_class_loses_no_job_to_a_process(shard, redis):
    """A process fetches while the queue is cleared: each other job is fetched once or stays, and none of the class is left."""
    push(redis, 400)
    for number in range(0, 400, 4):
        enqueue(redis, "Other", jid=f"o{number}", args=[number])
    fetched = []

    def fetch(_dropped):
        fetched.extend(filter(None, (redis.rpop(keys.queue("default")) for _ in range(7))))

    dropped = admin.Queue("default").clear(fetch, cls="Job")
    taken = [json.loads(data) for data in fetched]
    assert dropped + sum(one["class"] == "Job" for one in taken) == 400
    left = [job.jid for job in admin.Queue("default")]
    assert sorted([*left, *(one["jid"] for one in taken if one["class"] == "Other")]) == sorted(
        f"o{number}" for number in range(0, 400, 4)
    )


def test_clear_that_selects_nothing_sets_no_job_aside(shard, redis, monkeypatch):
    push(redis, 3)
    monkeypatch.setattr(queue_actions.QueueAside, "take", None)
    assert admin.Queue("default").clear(cls="Other") == 0


def test_clear_takes_a_number_of_jobs_over_all_shards(both_shards, redis, second_redis):
    push(redis, 30)
    push(second_redis, 300)
    assert admin.Queue("default").clear(count=120, not_cls="Other") == 120
    assert [admin.Queue("default", name).size for name in ("main", "second")] == [0, 210]
    assert [job.args for job in admin.Queue("default", "second").peek(1)] == [[90]]


def test_clear_of_a_class_that_died_is_continued(shard, redis):
    push(redis, 250)
    enqueue(redis, "Other", jid="other")

    def die(dropped):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        admin.Queue("default").clear(die, cls="Job")
    enqueue(redis, "Job", jid="new")
    assert admin.Queue("default").clear(cls="Job") == 251 - queue_actions.PAGE[0]
    assert [job.jid for job in admin.Queue("default")] == ["other"]


def test_clear_of_a_class_includes_sub_queues(shard, redis):
    for number, name in enumerate(["default~a", "default~a", "default~b"]):
        worker = "Job" if number else "Other"
        redis.lpush(keys.queue(name), encoded(worker, jid=f"j{number}", queue="default", aw_sub_queue=name))
        redis.sadd(keys.QUEUES, name)
    redis.zadd(keys.turns("default"), {"a": 1, "b": 2})
    assert admin.Queue("default").clear(cls="Job") == 2
    assert [job.jid for job in admin.Queue("default")] == ["j0"]


def test_clear_of_a_queue_that_becomes_another_type_stops(shard, redis):
    push(redis, 150)
    enqueue(redis, "Other", jid="other")

    def replace(_dropped):
        redis.set(keys.queue("default"), "text")

    with pytest.raises(QueueReplacedError):
        admin.Queue("default").clear(replace, cls="Job")
    assert redis.llen(keys.working(keys.migration_identity("default"))) == 151 - queue_actions.PAGE[0]


def test_clear_of_a_key_that_is_no_list_changes_nothing(shard, redis):
    redis.set(keys.queue("odd"), "text")
    with pytest.raises(ShardUnavailableError, match="the key of the queue is not a list"):
        admin.Queue("odd").clear()
    assert redis.get(keys.queue("odd")) == b"text"


def test_job_that_was_fetched_is_not_dropped(shard, redis):
    data = encoded("Job", jid="gone")
    assert not queue_actions.drop_job(shard.client, "default", data, from_left=True)
    assert redis.dbsize() == 0


def test_queue_includes_the_jobs_of_its_sub_queues(shard, redis):
    for number, name in enumerate(["default", "default~a", "default~a", "default~b"]):
        payload = encoded(jid=f"j{number}", args=[number], queue="default", aw_sub_queue=name)
        redis.lpush(keys.queue(name), payload)
        redis.sadd(keys.QUEUES, name)
    redis.zadd(keys.turns("default"), {"a": 1, "b": 2})
    (queue,) = admin.queues()
    assert (queue.name, queue.size) == ("default", 4)
    assert [job.args for job in queue.peek(3)] == [[0], [1], [2]]
    assert (queue.find("j3").waits_in, queue.find("j9")) == ("default~b", None)
    assert [(job.args, job.waits_in) for job in queue][-1] == ([3], "default~b")
    assert [job.delete() for job in queue if job.args == [2]] == [True]
    assert [job.args for job in admin.Queue("default~a")] == [[1]]
    assert queue_reader.read_queues(shard, ["default"])[0].keys == 2
    assert queue.clear() == 3
    assert redis.keys("queue:*") == []
    assert redis.smembers(keys.QUEUES) == set()


def test_operator_changes_the_priority_of_a_waiting_job(shard, redis):
    def waits(jid, place, sub_queue="default~low^", **more):
        data = encoded(jid=jid, queue="default", aw_sub_queue=sub_queue, priority=level_of(sub_queue), **more)
        if place in (keys.SCHEDULE, keys.RETRY, keys.paused_jobs("Job")):
            redis.zadd(place, {(b'["default"]\n' if b"paused" in place.encode() else b"") + data: 7})
        else:
            redis.lpush(keys.queue(place), data)
            redis.sadd(keys.QUEUES, place)

    for jid in ("first", "a", "b"):
        waits(jid, "default" if jid == "first" else "default~low^")
    redis.zadd(keys.turns("default"), {"low^": 2.0**44 + 1})
    waits("keyed", "default~low^k", "default~low^k")
    waits("later", keys.SCHEDULE)
    waits("again", keys.RETRY, "default~normal^")
    waits("held", keys.paused_jobs("Job"))
    redis.lpush("queue:default", encoded(jid="plain", queue="default"))
    with admin.read_only(), pytest.raises(ReadOnlyError):
        admin.set_priority("a", "high")
    assert [admin.set_priority(jid, "high") for jid in ("b", "a", "keyed", "later", "again", "unknown", "a")] == [
        *[True] * 5,
        *(False, True),
    ]
    assert [(job.jid, job.waits_in) for job in admin.Queue("default").peek()] == [
        *(("b", "default~high^"), ("a", "default~high^"), ("keyed", "default~high^k")),
        *(("first", "default"), ("plain", "default")),
    ]
    assert redis.zrange(keys.turns("default"), 0, -1) == [b"high^", b"high^k"]
    for place in (keys.SCHEDULE, keys.RETRY):
        ((data, score),) = redis.zrange(place, 0, -1, withscores=True)
        assert (loads(data)["priority"], loads(data)["aw_sub_queue"], score) == ("high", "default~high^", 7)
    # The only job of the queue's own list: the next one takes its place at once.
    redis.lrem("queue:default", 1, encoded(jid="plain", queue="default"))
    assert admin.set_priority("first", "critical")
    assert [job.waits_in for job in admin.Queue("default")].count("default") == 1
    assert admin.Queue("default").peek(1)[0].jid == "first"
    redis.lpush("queue:default", encoded(jid="plain", queue="default"))
    for jid, reason in (("held", "it is held at a limit or by a pause"), ("plain", "declare the attribute priority")):
        with pytest.raises(JobRefusedError, match=reason):
            admin.set_priority(jid, "high")
    with pytest.raises(
        ValueError, match=r"'hihg' is no priority \(did you mean 'high'\?\): give one of critical, high, normal, low"
    ):
        admin.set_priority("a", "hihg")
    redis.set("queue:default~low^", "text")
    with pytest.raises(JobRefusedError, match="the key of the new level is not a list"):
        admin.set_priority("a", "low")
    assert admin.Queue("default").find("a") is not None
    # A job deleted by hand was the only one of the queue's own list: idle processes wait there.
    redis.delete("queue:default")
    (job,) = [job for job in admin.Queue("default") if job.jid == "b"]
    assert job.delete()
    assert redis.llen("queue:default") == 1
