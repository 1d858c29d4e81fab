"""Pushes by the name of the class: of this program, of another one, and of none."""

import asyncio
import json
from datetime import timedelta

import pytest

import framework
from framework.errors import ArgumentsError, ConfigurationError, ExceedLimitError, MisuseError
from framework.push.argument_checks import SizeLimits
from framework.route.router import Router
from framework.wire import keys
from tests.harness import opened
from tests.push.conftest import LetPass, Pusher, worker
from tests.tables import each_row

RUBY = "Mail::WelcomeJob"


def test_known_class_is_routed_and_checked(pusher, jobs):
    def perform(self, number: int): ...

    pusher.open(rules=[("*", "routed")])
    worker("Shop::OrderWorker", perform=perform, aliases=("Old::OrderWorker",))
    jid = framework.enqueue("Shop::OrderWorker", [7])
    other = framework.enqueue("Old::OrderWorker", (8,), queue="chosen", retry=3)
    assert [(job["jid"], job["class"], job["args"]) for job in jobs("routed")] == [(jid, "Shop::OrderWorker", [7])]
    assert [(job["jid"], job["class"], job["retry"]) for job in jobs("chosen")] == [(other, "Shop::OrderWorker", 3)]
    with pytest.raises(ArgumentsError, match="'number' does not fit"):
        framework.enqueue("Shop::OrderWorker", ["seven"])


def test_unknown_class_without_a_queue_names_the_nearest(pusher, redis):
    worker("Shop::OrderWorker")
    with pytest.raises(ArgumentsError, match=r"no class of this name \(did you mean 'Shop::OrderWorker'\?\).*queue="):
        framework.enqueue("Shop::OrdreWorker", [1])
    assert redis.dbsize() == 0


@pytest.mark.parametrize("middleware", [(), (LetPass,)], ids=("quick", "middleware"))
def test_unknown_class_with_a_queue_is_written_as_sidekiq_does(pusher, jobs, redis, middleware):
    # No rule decides about a class whose attributes are not known.
    pusher.open(*middleware, rules=[("*", "routed", "main")])
    jid = framework.enqueue(RUBY, [1, {"to": ["ann"]}], queue="mails")
    (job,) = jobs("mails")
    times = {job.pop("created_at"), job.pop("enqueued_at")}
    assert all(isinstance(one, float) for one in times)
    assert job == {
        "class": RUBY,
        "args": [1, {"to": ["ann"]}],
        "retry": True,
        "queue": "mails",
        "aw_queue": "mails",
        "jid": jid,
        "correlation_id": jid,
    }
    assert redis.smembers(keys.QUEUES) == {b"mails"}


def test_unknown_class_can_be_due_later_and_have_options(pusher, redis):
    before = redis.time()[0]
    framework.enqueue(RUBY, [1], queue="mails", at=timedelta(minutes=5), tags=("a",), retry=0)
    framework.enqueue(RUBY, [2], queue="mails", at=4_000_000_000)
    (first, at), (_, second) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert 300 <= at - before < 400
    assert second == 4_000_000_000
    assert (json.loads(first)["tags"], json.loads(first)["retry"]) == (["a"], 0)


def test_unknown_class_goes_to_the_chosen_shard(pusher, redis, second_redis, second_redis_url, redis_url):
    shards = {"main": opened(redis_url), "other": opened(second_redis_url)}
    Pusher(shards).open(rules=[("*", None, "other")])
    framework.enqueue(RUBY, [1], queue="mails")
    framework.enqueue(RUBY, [2], queue="mails", shard="other")
    assert [json.loads(one.lrange("queue:mails", 0, -1)[0])["args"] for one in (redis, second_redis)] == [[1], [2]]
    for shard in shards.values():
        shard.close()


def test_large_arguments_of_an_unknown_class_are_not_compressed(pusher, jobs):
    pusher.open(limits=SizeLimits(compression_threshold=100, limit=1_000))
    framework.enqueue(RUBY, ["x" * 200], queue="mails")
    assert jobs("mails")[0]["args"] == ["x" * 200]
    with pytest.raises(ExceedLimitError):
        framework.enqueue(RUBY, ["x" * 2_000], queue="mails")


@each_row(
    ("name", "args", "options", "reason"),
    [
        ("", [], {"queue": "q"}, "is no name of a class"),
        ("a b", [], {"queue": "q"}, "is no name of a class"),
        (None, [], {"queue": "q"}, "is no name of a class"),
        (RUBY, "text", {"queue": "q"}, "its arguments are a str"),
        (RUBY, {"a": 1}, {"queue": "q"}, "its arguments are a dict"),
        (RUBY, [b""], {"queue": "q"}, "bytes"),
        (RUBY, [float("nan")], {"queue": "q"}, "NaN|nan"),
        (RUBY, [], {"queue": "q", "at": "soon"}, "is due at a str"),
        (RUBY, [], {"queue": "q", "queu": "q"}, "did you mean 'queue'"),
        (RUBY, [], {"queue": "q", "shard": "mian"}, "did you mean 'main'"),
        (RUBY, [], {"queue": "q", "sync": True}, "no class of this name to run"),
    ],
)
def test_wrong_push_by_name_is_refused(pusher, redis, name, args, options, reason):
    with pytest.raises(ArgumentsError, match=reason):
        framework.enqueue(name, args, **options)
    assert redis.dbsize() == 0


def test_class_instead_of_its_name_is_refused_with_the_call(pusher):
    with pytest.raises(ArgumentsError, match=r"call .*Job\.perform_async"):
        framework.enqueue(worker("Job"), [1])


def test_retired_class_is_refused_by_name(pusher, redis):
    pusher.client._router = Router([], ["main"], retired=[RUBY])
    with pytest.raises(ConfigurationError, match="retired_workers"):
        framework.enqueue(RUBY, [1], queue="mails")
    assert redis.dbsize() == 0


def test_awaited_push_by_name_is_written(pusher, jobs, redis):
    worker("Shop::OrderWorker", queue="orders")

    async def act():
        return [
            await framework.aenqueue(RUBY, [1], queue="mails"),
            await framework.aenqueue("Shop::OrderWorker", [2]),
            await framework.aenqueue(RUBY, [3], queue="mails", at=60),
            await framework.aenqueue(RUBY, [4], queue="mails", at=timedelta(hours=1)),
        ]

    jids = asyncio.run(act())
    found = [*jobs("mails"), *jobs("orders"), *map(json.loads, redis.zrange(keys.SCHEDULE, 0, -1))]
    assert [job["jid"] for job in found] == jids


def test_awaited_enqueue_names_its_job_and_its_twin(pusher, redis):
    async def act():
        await framework.enqueue(RUBY, [1], queue="mails")

    with pytest.raises(MisuseError, match=r"await framework\.aenqueue\(\.\.\.\)") as raised:
        asyncio.run(act())
    assert json.loads(redis.lindex("queue:mails", 0))["jid"] in str(raised.value)
