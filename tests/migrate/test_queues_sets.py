"""Migrate a sorted set: each job keeps its time and exists once, while other clients take or add jobs."""

import threading
from collections import Counter

import pytest

from framework.migrate import queues
from framework.migrate.plan import FixedTarget, MigrationPlan, MigrationReport, Quota
from framework.migrate.queues import SetMigrator
from framework.store.connect import Endpoint, open_client
from framework.wire import keys
from tests.harness import encoded, forked, full_memory
from tests.migrate.ways import EACH_WAY
from tests.proofs.crash_points.wire import Fault, Line, install

SET = keys.RETRY


def job(serial, name="MoveWorker", queue="old"):
    return encoded(name, queue=queue, jid=f"{serial:024x}", args=[serial])


def fill(redis, count):
    """Return the members of the set: every third stays, every seventh is no job."""
    members = {}
    for serial in range(count):
        data = (
            b"\xff no job %d" % serial
            if serial % 7 == 3
            else job(serial, "StayWorker" if serial % 3 == 0 else "MoveWorker")
        )
        members[data] = 1_750_000_000.123456 + serial
    redis.zadd(SET, members)
    return members


def arrived(data):
    return data.replace(b'"queue":"old"', b'"queue":"new"') if b"MoveWorker" in data else data


def migration(redis, limit=None, report=lambda _: None, sources=("old",)):
    plan = MigrationPlan(FixedTarget("new", ["MoveWorker"], ()), sources, ["MoveWorker"])
    account, allowance = MigrationReport(), Quota(limit)
    return SetMigrator(redis, plan, account, allowance, report), account, allowance


def there(redis):
    return dict(redis.zrange(SET, 0, -1, withscores=True))


@pytest.mark.parametrize("memory", ["room", "full"])
def test_migrate_set_jobs_keep_their_time(redis, granted, monkeypatch, memory):
    monkeypatch.setattr(queues, "PAGE", (10, 10))
    members = fill(redis, 300)
    counts = []
    mover, account, _ = migration(granted, report=counts.append)
    moving = sum(b"MoveWorker" in data for data in members)
    mover.preview(SET)
    assert account.moved == {("old", "new"): moving}
    assert there(redis) == members
    mover, account, _ = migration(granted, report=counts.append)
    if memory == "full":
        with full_memory(redis):
            mover.migrate(SET)
    else:
        mover.migrate(SET)
    assert there(redis) == {arrived(data): score for data, score in members.items()}
    assert account.moved == {("old", "new"): moving}
    assert sum(counts) >= 2 * 300
    again, account, _ = migration(granted)
    again.migrate(SET)
    assert not account.moved
    assert mover.length(SET) == 300


def test_migrate_set_quota_and_source_limit_the_moves(redis, granted):
    fill(redis, 60)
    redis.zadd(SET, {job(1000, queue="other"): 5})
    mover, account, _ = migration(granted, 7)
    mover.preview(SET)
    assert account.moved.total() == 7
    mover, account, _ = migration(granted, 7)
    mover.migrate(SET)
    assert account.moved == {("old", "new"): 7}
    assert sum(b'"queue":"new"' in data for data in there(redis)) == 7
    assert job(1000, queue="other") in there(redis)


def test_migrate_set_equal_jobs_keep_the_earlier_time(redis, granted):
    redis.zadd(SET, {job(1): 5, job(1, queue="new"): 9, job(2): 9, job(2, queue="new"): 5})
    migration(granted)[0].migrate(SET)
    assert there(redis) == {job(1, queue="new"): 5, job(2, queue="new"): 5}


def test_migrate_set_concurrent_clients_lose_no_job(redis, granted, redis_url):
    """A member is taken as it was or as it is, never both, and none is lost."""
    members = fill(redis, 5_000)
    done, taken, added = threading.Event(), [], []

    def take():
        with open_client(Endpoint(redis_url), name="poller") as client:
            while not done.is_set():
                taken.extend(data for data in client.zrange(SET, 0, 4) if client.zrem(SET, data))

    def add():
        with open_client(Endpoint(redis_url), name="adder") as client:
            for serial in range(10_000, 200_000):
                if done.is_set():
                    return
                added.append(job(serial, queue="new"))
                client.zadd(SET, {added[-1]: serial})

    threads = [threading.Thread(target=take), threading.Thread(target=add)]
    for thread in threads:
        thread.start()
    try:
        migration(granted)[0].migrate(SET)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    found = Counter(map(arrived, [*taken, *there(redis)]))
    assert found == Counter(map(arrived, [*members, *added]))
    assert not [data for data in there(redis) if data != arrived(data)]


def interrupted(url, fault, folder, status):
    sent = folder / "sent"

    def act():
        with sent.open("w", buffering=1) as file:
            install(Line(fault, lambda _number, name: file.write(f"{name}\n"), lambda: False, greetings=False))
            with open_client(Endpoint(url), name="interrupted") as client:
                migration(client)[0].migrate(SET)

    assert forked(act) == status
    return sent.read_text().split()


@pytest.mark.proves("I1", "I2", "F1")
@pytest.mark.parametrize("way", EACH_WAY)
def test_migrate_set_fault_anywhere_next_run_completes(redis, granted, redis_url, tmp_path, way, monkeypatch):
    monkeypatch.setattr(queues, "PAGE", (10, 10))
    for _ in range(2):  # the first run also sends the source of each script that the server does not know yet
        redis.flushall()
        fill(redis, 25)
        names = interrupted(redis_url, None, tmp_path, 0)
    assert names.count("replace") > 1
    for at in range(1, len(names) + 1):
        redis.flushall()
        members = fill(redis, 25)
        interrupted(redis_url, Fault(at, way), tmp_path, -9 if way.startswith("die") else 1)
        moved = {arrived(data): score for data, score in members.items()}
        assert {arrived(data): score for data, score in there(redis).items()} == moved
        assert redis.zcard(SET) == 25
        migration(granted)[0].migrate(SET)
        assert there(redis) == moved
