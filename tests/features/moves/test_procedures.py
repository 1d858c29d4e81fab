"""Execute the procedures of the guide of moves, command by command, on two real servers."""

import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from framework import all_settings
from framework.declare import registry
from framework.devtools.commands.route import route
from framework.features.moves.keys import MOVES
from framework.features.moves.worker import Forwarding
from framework.route.router import open_router
from framework.store.absent_keys import AbsentKeys
from framework.wire import keys
from framework.wire.json import loads
from framework.wiring.client import ProcessClient, override
from tests.conftest import ROOT
from tests.features.moves.test_commands import JOBS, jids, office, run
from tests.harness import encoded

__all__ = ["office"]

GUIDE = (ROOT / "docs" / "guides" / "moves.md").read_text()
COUNT = 200


def commands(heading):
    """Return the words behind ``shards`` of each command of a section of the guide."""
    section = GUIDE.partition(f"### {heading}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    found = re.findall(r"^application-worker shards (.+)$", section, re.MULTILINE)
    return [line.replace("queues_shard_a", "second").split() for line in found]


def fill(redis):
    redis.lpush("queue:default", *[encoded("ReportWorker", jid=f"{n:024x}", args=[n]) for n in range(COUNT)])


def pushing(client, worker, numbers):
    """Push jobs as a process that knows the moves."""
    for shard in client.shards.values():
        shard.moves_valid_until = 0.0
    return [worker.perform_async(number) for number in numbers]


@pytest.fixture
def client(office):
    made = ProcessClient(all_settings.load())
    with override(made):
        yield made
    made.shards.close()


def forwarding(redis, shard):
    settings = all_settings.load()
    process = SimpleNamespace(
        leads=lambda: True,
        quiet=False,
        absent=AbsentKeys((MOVES,)),
        upkeep=redis,
        router=open_router(settings),
        shard=SimpleNamespace(name=shard),
        settings=settings,
    )
    return Forwarding(process)


def test_rollout_in_parts_moves_more_at_each_step(office, redis, second_redis):
    fill(redis)
    steps = commands("Roll out in parts")
    assert [words[-1] for words in steps] == ["10", "25", "50", "100"]
    before, ids = set(), set()
    for words in steps:
        (done,) = run(*words, "--json")["moves"]
        there = set(jids(second_redis))
        # The part of each step contains that of the step before; no job moves twice.
        assert before <= there
        assert abs(len(there) / COUNT - int(words[-1]) / 100) < 0.12
        assert len(there) + len(jids(redis)) == COUNT
        before = there
        ids.add(done["id"])
        assert done["moved"] == len(there)
    assert len(ids) == 1
    assert not jids(redis)
    (undone,) = run("undo", ids.pop(), "--json")["moves"]
    assert (undone["state"], len(jids(redis))) == ("undone", COUNT)


def test_rollout_sends_pushes_of_its_part(client, office, redis, second_redis):
    fill(redis)
    worker = None
    for words in commands("Roll out in parts")[1:3]:
        run(*words)
        worker = worker or registry.find("ReportWorker")
        here = len(jids(second_redis))
        pushing(client, worker, range(40))
        assert 0 < len(jids(second_redis)) - here < 40


def test_added_shard_takes_a_class(client, office, redis, second_redis):
    fill(redis)
    dry, move, status = commands("Add a shard")
    assert "dry run" in run(*dry, "--json")["moves"][0]["state"]
    assert not second_redis.dbsize()
    run(*move)
    assert "moved" in run(*status)
    pushing(client, registry.find("ReportWorker"), [1])
    assert len(jids(second_redis)) == COUNT + 1


def test_process_that_does_not_know_the_added_shard_pushes_to_the_old_one(office, redis, second_redis, redis_url):
    fill(redis)
    run("move", "--class", "ReportWorker", "--to", "second")
    new = (office.folder / "config" / "redis.yml").read_text()
    office.write("redis.yml", {"shards": {"main": {"url": redis_url}}})
    older = ProcessClient(all_settings.load())
    with override(older):
        (jid,) = pushing(older, registry.find("ReportWorker"), [7])
    older.shards.close()
    assert jids(redis) == [jid]
    office.write("redis.yml", new)
    leader = forwarding(second_redis, "second")
    leader.step()
    leader.end()
    assert jids(second_redis)[-1] == jid


def test_producer_with_the_rules_of_yesterday_loses_no_job(office, redis, second_redis):
    """The rules name the new shard since yesterday, and the move is in force; the producer has not been deployed."""
    fill(redis)
    run("move", "--class", "ReportWorker", "--to", "second")
    old = ProcessClient(all_settings.load())
    office.write("routing.yml", {"routing_rules": [["*", "default", "second"]]})
    worker = registry.find("ReportWorker")
    with override(old):
        # It has not read the moves yet: its first push, and one that it had kept in a file.
        first = worker.perform_async(1)
        assert jids(redis) == [first]
        (second,) = pushing(old, worker, [2])
    old.shards.close()
    # A process of the new shard carries it there. The rules of that process send nothing to the old one.
    leader = forwarding(second_redis, "second")
    leader.step()
    leader.end()
    assert not jids(redis)
    assert jids(second_redis)[-2:] == [second, first]


def test_split_class_uses_both_shards(office, redis, second_redis):
    (office.folder / "spread_office.py").write_text(
        JOBS.replace("class ReportWorker", "from framework import spread\n\nclass ReportWorker").replace(
            'aliases = ("OldReportWorker",)', 'queue = "reports"\n    shard = spread("main", "second")'
        )
    )
    shown = CliRunner().invoke(route, ["ReportWorker", "-r", "spread_office"])
    assert "main, second" in shown.output
    client = ProcessClient(all_settings.load())
    with override(client):
        pushed = registry.find("ReportWorker").perform_bulk([(number,) for number in range(40)])
    client.shards.close()
    found = [[loads(data, None)["jid"] for data in one.lrange("queue:reports", 0, -1)] for one in (redis, second_redis)]
    assert min(map(len, found)) > 5
    assert sorted(found[0] + found[1]) == sorted(pushed)
    assert redis.sismember(keys.QUEUES, "reports")
