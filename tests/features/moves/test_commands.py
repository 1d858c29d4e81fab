"""Move jobs with the command, on two real servers: what it prints, its statuses, and where pushes go."""

import json
import signal
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from framework import all_settings
from framework.declare import registry
from framework.features.moves import moves as moves_module
from framework.features.moves import worker as worker_module
from framework.features.moves.commands import shards
from framework.features.moves.keys import MOVES
from framework.features.moves.worker import Forwarding
from framework.route.router import open_router
from framework.store.absent_keys import AbsentKeys
from framework.wire import keys
from framework.wiring.client import ProcessClient, override
from tests.harness import encoded, full_memory, until

JOBS = """
from framework import ApplicationWorker

class ReportWorker(ApplicationWorker):
    feature_category = "not_owned"
    aliases = ("OldReportWorker",)

    def perform(self, number: int) -> None: ...

class MailWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue_namespace = "mail"

    def perform(self) -> None: ...
"""


@pytest.fixture
def office(two_shards, monkeypatch):
    two_shards.write("routing.yml", {"routing_rules": [["*", "default"]]})
    (two_shards.folder / "moved_office.py").write_text(JOBS)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(two_shards.folder / "config"))
    monkeypatch.syspath_prepend(str(two_shards.folder))
    monkeypatch.setattr(moves_module, "SETTLED_S", 0.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with registry.isolated():
        yield two_shards
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(*words, status=0):
    ended = CliRunner().invoke(shards, [*words, *([] if words[0] == "status" else ["-r", "moved_office"])])
    assert ended.exit_code == status, ended.output
    return json.loads(ended.stdout) if "--json" in words and status == 0 else ended.stdout + ended.stderr


def fill(redis):
    redis.lpush("queue:default", *[encoded("ReportWorker", jid=f"r{n}", args=[n]) for n in range(3)])
    redis.lpush("queue:default", encoded("MailWorker", jid="m"), encoded("Ruby::Job", jid="x"), b"\xff")
    redis.zadd(keys.RETRY, {encoded("OldReportWorker", jid="o", queue="default", args=[9]): 2_000_000_000})


def jids(redis, key="queue:default"):
    return [json.loads(data)["jid"] for data in redis.lrange(key, 0, -1)[::-1] if data != b"\xff"]


def test_move_status_and_undo_of_a_class(office, redis, second_redis):
    fill(redis)
    before = redis.dump("queue:default")
    dry = run("move", "--class", "ReportWorker", "--to", "second", "--dry-run", "--json")
    assert [(one["what"], one["from"], one["to"], one["left"]) for one in dry["moves"]] == [
        ("class ReportWorker", "main", "second", 4)
    ]
    assert (redis.dump("queue:default"), redis.exists(MOVES), second_redis.dbsize()) == (before, 0, 0)
    (done,) = run("move", "--class", "OldReportWorker", "--to", "second", "--json")["moves"]
    assert (done["state"], done["moved"], done["left"], done["stay"]) == ("moved", 4, 0, [])
    assert (jids(redis), jids(second_redis)) == (["m", "x"], ["r0", "r1", "r2"])
    assert second_redis.zcard(keys.RETRY) == 1
    # The same command forwards what has arrived since.
    redis.lpush("queue:default", encoded("ReportWorker", jid="r3", args=[3]))
    (again,) = run("move", "--class", "ReportWorker", "--to", "second", "--json")["moves"]
    assert (again["id"], again["moved"]) == (done["id"], 5)
    (status,) = run("status", "--json")["moves"]
    assert {"id", "what", "to", "state", "moved", "left"} <= status.keys()
    assert (status["id"], status["state"]) == (done["id"], "moved")
    (undone,) = run("undo", done["id"], "--json")["moves"]
    assert (undone["from"], undone["to"], undone["state"], undone["moved"]) == ("second", "main", "undone", 5)
    assert jids(redis) == ["m", "x", "r0", "r1", "r2", "r3"]
    assert not second_redis.exists("queue:default", keys.RETRY)
    assert "did you mean" not in run("undo", "nothing", status=1)


def test_move_of_a_shard_lists_what_stays(office, redis, second_redis):
    fill(redis)
    shown = run("move", "--shard", "main", "--to", "second")
    assert [line.split()[3:6] for line in shown.splitlines() if line.startswith("main  ")] == [
        ["1", "unknown", "class"],
        ["1", "unreadable"],
    ]
    assert "unknown class: no worker of this name is registered here" in shown
    assert jids(second_redis) == ["r0", "r1", "r2", "m"]
    assert "shard main  main  second  moved  5      0" in shown
    second_redis.flushall()
    fill(redis)
    (part,) = run("move", "--namespace", "mail", "--to", "second", "--percent", "1", "--dry-run", "--json")["moves"]
    assert part["what"] == "namespace mail (1 %)"


def test_status_names_a_dead_shard_and_shows_the_others(office, redis, second_redis):
    fill(redis)
    (done,) = run("move", "--class", "ReportWorker", "--to", "second", "--json")["moves"]
    shards = json.loads((office.folder / "config" / "redis.yml").read_text())["shards"]
    office.write("redis.yml", {"shards": {**shards, "third": {"url": "redis://127.0.0.1:1/0"}}})
    shown = run("status", status=1)
    assert "shard 'third' is unavailable" in shown
    assert done["id"] in shown
    # The third one has not heard of the move.
    assert "class MailWorker  main  second  moved" in run("move", "--class", "MailWorker", "--to", "second", status=75)


def test_drain_moves_jobs_where_the_rules_send_them(office, redis, second_redis):
    fill(redis)
    assert "the rules still send jobs to main: of MailWorker, ReportWorker" in run("drain", "main", status=1)
    office.write("routing.yml", {"routing_rules": [["*", "default", "second"]]})
    drained = run("drain", "main", "--json")["moves"]
    assert [(one["what"], one["moved"]) for one in drained] == [("class MailWorker", 1), ("class ReportWorker", 4)]
    assert jids(second_redis) == ["m", "r0", "r1", "r2"]
    assert jids(redis) == ["x"]


PUSH_BATCH = """
from framework.batches import Batch
from moved_office import MailWorker, ReportWorker
batch = Batch()
batch.on_success(MailWorker)
with batch.jobs():
    ReportWorker.perform_bulk([(1,), (2,)])
"""


def test_drain_waits_for_batches_and_loses_no_callback(office, redis, second_redis):
    pushed = office.run("-c", PUSH_BATCH)
    assert pushed.returncode == 0, pushed.stderr
    office.write("routing.yml", {"routing_rules": [["*", "default", "second"]]})
    (stays,) = run("drain", "main", "--json")["moves"]
    assert [(one["reason"], one["class"], one["jobs"]) for one in stays["stay"]] == [("awaited", "ReportWorker", 2)]
    drain = office.start("-m", "framework", "shards", "drain", "main", "--wait", "-r", "moved_office")
    until(lambda: "main: 1 open batch; waiting until they have ended" in drain.output, "the drain waits")
    worker = office.hurried_worker("-r", "moved_office", "-q", "default").ready()
    assert drain.wait() == 0, drain.output
    assert not redis.exists("queue:default")
    worker.end()
    # The callback ran here, or has moved.
    assert int(redis.get(keys.STAT_PROCESSED) or 0) + second_redis.llen("queue:default") == 3


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--to", "second"], 2, "Give what moves: one of"),
        (["--class", "A", "--queue", "b", "--to", "second"], 2, "Give what moves: one of"),
        (["--class", "ReportWorker", "--to", "secnod"], 2, "no shard is named 'secnod' (did you mean 'second'?)"),
        (["--shard", "main", "--to", "main"], 2, "are the same shard"),
        (["--class", "ReportWroker", "--to", "second"], 2, "(did you mean 'ReportWorker'?)"),
        (["--queue", "none", "--to", "second"], 0, "no shard but second has jobs of the queue none"),
    ],
)
def test_move_of_wrong_words_is_refused(office, redis, second_redis, words, status, message):
    assert message in run("move", *words, status=status)
    assert not redis.exists(MOVES)


def test_move_to_a_shard_in_trouble_says_so(office, redis, second_redis, redis_url):
    fill(redis)
    with full_memory(second_redis):
        shown = run("move", "--class", "ReportWorker", "--to", "second", status=1)
    assert "second does not take the jobs, and they are back in their places: its memory is full (maxmemory)" in shown
    assert sorted(jids(redis)) == ["m", "r0", "r1", "r2", "x"]
    office.write("redis.yml", {"shards": {"main": {"url": redis_url}, "second": {"url": redis_url}}})
    assert "are two names of one Redis" in run("move", "--class", "MailWorker", "--to", "second", status=1)
    office.write("redis.yml", {"shards": {"main": {"url": redis_url}, "second": {"url": "redis://127.0.0.1:1"}}})
    assert "Run the command again" in run("move", "--class", "MailWorker", "--to", "second", status=75)


def test_push_of_a_moved_class_goes_to_its_shard(office, redis, second_redis):
    run("move", "--class", "ReportWorker", "--to", "second")
    worker = registry.find("ReportWorker")
    client = ProcessClient(all_settings.load())
    with override(client):
        # A process that has not read the moves pushes by the rules, and reads them once in a period.
        worker.perform_async(1)
        for shard in client.shards.values():
            shard.moves_valid_until = 0.0
        worker.perform_async(2)
        worker.perform_bulk([(3,)])
        worker.set(shard="main").perform_async(4)
        assert client.route(worker.declaration()).shard == "second"
        assert (redis.llen("queue:default"), second_redis.llen("queue:default")) == (1, 3)
        moved = json.loads(redis.hvals(MOVES)[0])["id"]
        run("undo", moved)
        for shard in client.shards.values():
            shard.moves_valid_until = 0.0
        worker.perform_async(5)
    client.shards.close()
    assert (redis.llen("queue:default"), second_redis.llen("queue:default")) == (5, 0)


def test_leader_forwards_what_arrives_later(office, redis, second_redis):
    run("move", "--class", "ReportWorker", "--to", "second")
    fill(redis)
    router = open_router(all_settings.load())
    process = SimpleNamespace(
        leads=lambda: True,
        quiet=False,
        absent=AbsentKeys((MOVES,)),
        upkeep=redis,
        router=router,
        shard=SimpleNamespace(name="main"),
        settings=all_settings.load(),
    )
    forwarder = Forwarding(process)
    forwarder.step()
    assert jids(second_redis) == ["r0", "r1", "r2"]
    forwarder.step()
    # Nothing has moved, so the queues are not read again for a while.
    redis.lpush("queue:default", encoded("ReportWorker", jid="late", args=[9]))
    forwarder.step()
    assert jids(redis) == ["m", "x", "late"]
    worker_module.MoveFollower(process).refresh()
    assert router.route(registry.find("ReportWorker").declaration()).shard == "second"
    forwarder.end()
