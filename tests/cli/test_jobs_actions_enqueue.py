"""Test scripts/jobs enqueue: push one job by the name of its class, with statuses for scripts."""

import json

import pytest

from framework.wire import keys
from tests.harness import ROOT

COMMAND = str(ROOT / "scripts" / "jobs")
EMPTY = """
from framework import ApplicationWorker


class ShopWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "shop"
    idempotent = True

    def perform(self, number: int) -> None: ...
"""


@pytest.fixture
def enqueue(site):
    """Return a function that runs the command and returns its output and errors."""
    (site.folder / "shop.py").write_text(EMPTY)

    def run(*words, status=0):
        done = site.run(COMMAND, "enqueue", *words)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


def test_enqueue_prints_the_id_of_the_job(enqueue, redis):
    out, error = enqueue("ShopWorker", "[7]", "-r", "shop")
    (job,) = map(json.loads, redis.lrange("queue:shop", 0, -1))
    assert out == f"{job['jid']}\n"
    assert (job["class"], job["args"]) == ("ShopWorker", [7])
    assert "no running process of main serves the queue shop" in error
    out, error = enqueue("ShopWorker", "[7]", "-r", "shop")
    assert (out, "it is a duplicate" in error) == ("", True)


def test_each_shard_of_a_spread_class_must_be_served(enqueue, site, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    wide = EMPTY.replace("import ApplicationWorker", "import ApplicationWorker, spread")
    (site.folder / "wide.py").write_text(
        wide.replace('queue = "shop"', 'queue = "shop"\n    shard = spread("main", "second")')
    )
    _, error = enqueue("ShopWorker", "[7]", "-r", "wide")
    assert [f"no running process of {name} serves" in error for name in ("main", "second")] == [True, True]


def test_enqueue_with_a_queue_needs_no_workers(enqueue, redis):
    (out, _) = enqueue("Ruby::MailJob", '[1, {"a": "é"}]', "--queue", "mails", "--in", "60", "--json")
    ((data, at),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert json.loads(out) == {"jid": json.loads(data)["jid"]}
    assert json.loads(data)["args"] == [1, {"a": "é"}]
    assert 0 < at - redis.time()[0] < 61
    enqueue("Reports::BuildJob", "[3]", "--queue", "mails", "--active-job")
    (job,) = map(json.loads, redis.lrange("queue:mails", 0, -1))
    assert (job["wrapped"], job["args"][0]["arguments"]) == ("Reports::BuildJob", [3])


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["ShpoWorker", "[1]", "-r", "shop"], 1, "there is no worker 'ShpoWorker' (did you mean 'ShopWorker'?)"),
        (["ShopWorker", '["x"]', "-r", "shop"], 1, "does not fit"),
        (["ShopWorker", "[", "--queue", "q"], 2, "JSON_ARGS is no JSON"),
        (["ShopWorker", '{"a": 1}', "--queue", "q"], 2, "is no JSON array"),
        (["ShopWorker", "[]", "--queue", "q", "--shard", "mian"], 2, "did you mean 'main'"),
        (["ShopWorker", "[]", "--active-job"], 2, "--active-job needs --queue"),
        (["ShopWorker", "[]", "--queue", "q", "--in", "soon"], 2, "is not a duration"),
        (["no name", "[]", "--queue", "q"], 1, "is no name of a class"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_enqueue_says_what_is_wrong(enqueue, redis, words, status, message):
    _, error = enqueue(*words, status=status)
    assert message in error
    assert redis.dbsize() == 0


def test_enqueue_without_redis_ends_with_75(site, enqueue):
    done = site.run(COMMAND, "enqueue", "X", "--queue", "q", REDIS_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 75
    assert "is unavailable" in done.stderr
