import json

import pytest

from framework.declare import registry
from framework.declare.worker import ApplicationWorker
from framework.fetch.custody import Custody
from framework.fetch.reaper import FORGET_AFTER_S, Reaper, Reconciler, retire
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import BEAT
from framework.wire import keys
from tests.harness import IDENTITY, encoded, full_memory, hold

OTHER = "host:2:def"


def beat(redis, identity):
    BEAT(redis, [keys.lease(identity), keys.REGISTRY], [identity, 60_000])


def die(redis, identity, since_s=0):
    redis.delete(keys.lease(identity))
    redis.zadd(keys.REGISTRY, {identity: redis.time()[0] - since_s})


@pytest.fixture
def recovered():
    return []


@pytest.fixture
def reaper(redis, recovered):
    with registry.isolated():
        yield Reaper(redis, recovered.append)


def queued(redis, name="default"):
    """Next to run first."""
    return [json.loads(data) for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


def test_jobs_are_taken_back_from_the_dead_only(reaper, redis, recovered):
    beat(redis, IDENTITY)
    die(redis, OTHER)
    hold(redis, encoded(jid="alive"), IDENTITY)
    hold(redis, encoded(jid="orphan", bid="x"), OTHER)
    assert reaper.sweep() == 1
    (job,) = queued(redis)
    assert job == {**json.loads(encoded(jid="orphan", bid="x")), "interrupted_count": 1}
    assert redis.lrange(keys.working(IDENTITY), 0, -1) == [encoded(jid="alive")]
    assert redis.smembers(keys.QUEUES) == {b"default"}
    ((owner, back, destination, quarantined),) = [(r.owner, r.job.jid, r.destination, r.quarantined) for r in recovered]
    assert (owner, back, destination, quarantined) == (OTHER, "orphan", "queue:default", False)
    assert reaper.sweep() == 0


def test_a_sweep_leaves_the_sweeper_alone(reaper, redis):
    die(redis, IDENTITY)
    hold(redis, encoded(), IDENTITY)
    assert reaper.sweep(own=IDENTITY) == 0
    assert redis.llen(keys.working(IDENTITY)) == 1


def test_a_process_that_comes_back_to_life_keeps_the_rest(redis, recovered):
    die(redis, OTHER)
    for number in range(3):
        hold(redis, encoded(jid=str(number)), OTHER)

    def revive(one):
        recovered.append(one)
        beat(redis, OTHER)

    with registry.isolated():
        assert Reaper(redis, revive).sweep() == 1
    assert redis.llen(keys.working(OTHER)) == 2


def test_order_is_kept_over_many_pages(reaper, redis):
    redis.lpush("queue:default", encoded(jid="waiting"))
    die(redis, OTHER)
    for number in range(450):
        hold(redis, encoded(jid=f"{number}"), OTHER)
    assert reaper.sweep() == 450
    assert [job["jid"] for job in queued(redis)] == [*map(str, range(450)), "waiting"]


def test_each_job_goes_to_its_own_queue(reaper, redis):
    die(redis, OTHER)
    hold(redis, encoded(jid="a", queue="one"), OTHER)
    hold(redis, encoded(jid="b", queue="two"), OTHER)
    assert reaper.sweep() == 2
    assert [[job["jid"] for job in queued(redis, name)] for name in ("one", "two")] == [["a"], ["b"]]


def limited(limit):
    body = {"feature_category": "not_owned", "wire_name": "Limited", "perform": lambda self: None}
    return type("Limited", (ApplicationWorker,), {**body, "max_retries_after_interruption": limit})


@pytest.mark.parametrize(
    ("name", "before", "destination"),
    [
        ("Unknown", None, "queue:default"),
        ("Unknown", 2, "queue:default"),
        ("Unknown", 3, "interrupted"),
        ("Unknown", "odd", "queue:default"),
        ("One", 0, "queue:default"),
        ("One", 1, "interrupted"),
        ("Zero", None, "interrupted"),
        ("Never", 1_000, "queue:default"),
    ],
)
def test_jobs_interrupted_too_often_are_quarantined(reaper, redis, recovered, name, before, destination):
    for wire_name, limit in (("One", 1), ("Zero", 0), ("Never", -1)):
        type(wire_name, (limited(limit),), {"wire_name": wire_name})
    die(redis, OTHER)
    data = encoded(name) if before is None else encoded(name, interrupted_count=before)
    hold(redis, data, OTHER)
    reaper.sweep()
    (one,) = recovered
    assert (one.destination, one.quarantined) == (destination, destination == "interrupted")
    stored = redis.zrange(keys.INTERRUPTED, 0, -1) if one.quarantined else redis.lrange("queue:default", 0, -1)
    count = before + 1 if isinstance(before, int) else 1
    assert [json.loads(member) for member in stored] == [{**json.loads(data), "interrupted_count": count}]
    assert redis.llen(keys.working(OTHER)) == 0


@pytest.mark.parametrize("data", [b"\x00\xff not json", b'{"class":"A","args":[],"jid":"no queue"}', b"[]"])
def test_what_cannot_be_given_back_goes_to_the_dead_set_byte_for_byte(reaper, redis, recovered, data):
    die(redis, OTHER)
    hold(redis, data, OTHER)
    hold(redis, encoded(jid="good"), OTHER)
    assert reaper.sweep() == 2
    assert redis.zrange(keys.DEAD, 0, -1) == [data]
    assert [job["jid"] for job in queued(redis)] == ["good"]
    assert {one.destination for one in recovered} == {"dead", "queue:default"}


def test_recovery_works_on_a_full_server(reaper, redis):
    die(redis, OTHER)
    hold(redis, encoded(), OTHER)
    with full_memory(redis):
        assert reaper.sweep() == 1
    assert len(queued(redis)) == 1


def test_the_dead_are_forgotten_once_no_parked_call_can_be_alive(reaper, redis):
    die(redis, OTHER, since_s=FORGET_AFTER_S - 2)
    reaper.sweep()
    assert redis.zscore(keys.REGISTRY, OTHER) is not None
    hold(redis, encoded(), OTHER)  # a call left parked on the server moved it
    assert reaper.sweep() == 1
    die(redis, OTHER, since_s=FORGET_AFTER_S + 2)
    reaper.sweep()
    assert redis.zscore(keys.REGISTRY, OTHER) is None


def test_retiring_makes_a_process_dead_at_once(reaper, redis):
    beat(redis, OTHER)
    redis.sadd(keys.PROCESSES, OTHER, IDENTITY)
    for key in (OTHER, *keys.work(OTHER)):
        redis.hset(key, "a", "b")
    hold(redis, encoded(), OTHER)
    assert reaper.sweep() == 0
    retire(redis, OTHER)
    assert redis.smembers(keys.PROCESSES) == {IDENTITY.encode()}
    assert not redis.exists(OTHER, *keys.work(OTHER))
    assert reaper.sweep() == 1


# --- our own list ---------------------------------------------------------------------------------------------------


def test_what_two_looks_do_not_know_is_given_back(redis):
    custody = Custody()
    known = hold(redis, encoded(jid="known"))
    custody.take(known)
    lost = hold(redis, encoded(jid="lost"))
    reconciler = Reconciler(redis, IDENTITY, custody)
    assert reconciler.look() == 0  # its reply may be on the way
    assert reconciler.look() == 1
    assert redis.lrange(keys.working(IDENTITY), 0, -1) == [known.data]
    assert redis.lrange("queue:default", 0, -1) == [lost.data]
    assert [reconciler.look() for _ in range(3)] == [0, 0, 0]


def test_a_reply_that_arrives_between_two_looks_is_no_loss(redis):
    custody = Custody()
    late = hold(redis, encoded())
    reconciler = Reconciler(redis, IDENTITY, custody)
    reconciler.look()
    custody.take(late)
    assert reconciler.look() == 0
    custody.finish(late, settled=False)  # its acknowledgement is under way
    assert [reconciler.look() for _ in range(2)] == [0, 0]
    assert redis.llen(keys.working(IDENTITY)) == 1


def test_what_names_no_queue_stays_for_the_reaper(redis):
    hold(redis, b"not json")
    reconciler = Reconciler(redis, IDENTITY, Custody())
    assert [reconciler.look() for _ in range(4)] == [0, 0, 0, 0]
    assert redis.lrange(keys.working(IDENTITY), 0, -1) == [b"not json"]


def test_units_are_told_apart_by_identity_not_by_bytes():
    assert UnitOfWork("q", b"x") != UnitOfWork("q", b"x")
