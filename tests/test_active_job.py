"""Jobs in the format of Active Job's Sidekiq adapter, written and read."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from framework import active_job
from framework.active_job import GlobalID
from framework.errors import ArgumentsError
from framework.wire import keys
from tests.push.conftest import jobs, pusher

__all__ = ["jobs", "pusher"]

NAME = "Reports::BuildJob"


def test_active_job_is_written_in_the_format_of_its_adapter(pusher, jobs):
    jid = active_job.enqueue(
        NAME, [7, "é", [None, {"a": 1}], GlobalID("gid://shop/Order/1")], {"mode": "fast"}, queue="reports"
    )
    (job,) = jobs("reports")
    assert (job["jid"], job["class"], job["wrapped"], job["queue"]) == (jid, active_job.WRAPPER, NAME, "reports")
    (wrapped,) = job["args"]
    assert len(wrapped.pop("job_id")) == 36
    assert abs(datetime.fromisoformat(wrapped.pop("enqueued_at")) - datetime.now(UTC)) < timedelta(minutes=1)
    assert wrapped == {
        "job_class": NAME,
        "provider_job_id": None,
        "queue_name": "reports",
        "priority": None,
        "arguments": [
            7,
            "é",
            [None, {"a": 1, "_aj_symbol_keys": []}],
            {"_aj_globalid": "gid://shop/Order/1"},
            {"mode": "fast", "_aj_ruby2_keywords": ["mode"]},
        ],
        "executions": 0,
        "exception_executions": {},
        "locale": "en",
        "timezone": "UTC",
        "scheduled_at": None,
    }
    read = active_job.unwrap({**wrapped, "job_id": "j-1", "executions": 2})
    assert read == active_job.WrappedJob(
        NAME,
        "j-1",
        "reports",
        [7, "é", [None, {"a": 1}], GlobalID("gid://shop/Order/1")],
        {"mode": "fast"},
        2,
    )


def test_scheduled_active_job_has_its_time(pusher, redis):
    async def act():
        await active_job.aenqueue(NAME, queue="reports", at=4_000_000_000)
        await active_job.aenqueue(NAME, queue="reports", at=timedelta(hours=1))
        await active_job.aenqueue(NAME, queue="reports")

    asyncio.run(act())
    assert active_job.enqueue(NAME, queue="reports", at=timedelta(hours=1))
    found = redis.zrange(keys.SCHEDULE, 0, -1)
    assert len(found) == 3
    assert b'"scheduled_at":"2096-10-02T07:06:40Z"' in found[-1]
    assert redis.llen("queue:reports") == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "options", "reason"),
    [
        ([], {}, {}, "give the queue"),
        ([], {}, {"queue": "q", "sync": True}, "leave out sync"),
        ([{"_aj_symbol_keys": []}], {}, {"queue": "q"}, "Active Job reserves keys"),
        ([], {"_aj_serialized": 1}, {"queue": "q"}, "Active Job reserves keys"),
        ([b""], {}, {"queue": "q"}, "bytes"),
        ("text", {}, {"queue": "q"}, "its arguments are a str"),
    ],
)
def test_wrong_active_job_is_refused(pusher, redis, args, kwargs, options, reason):
    with pytest.raises(ArgumentsError, match=reason):
        active_job.enqueue(NAME, args, kwargs, **options)
    assert redis.dbsize() == 0


@pytest.mark.parametrize("job", [{}, {"job_class": NAME}, {"job_class": 1, "arguments": []}])
def test_other_object_is_no_active_job(job):
    with pytest.raises(ValueError, match="no job of Active Job"):
        active_job.unwrap(job)


def test_objects_of_rubys_serializers_are_kept():
    time = {"_aj_serialized": "ActiveJob::Serializers::TimeSerializer", "value": "2026-01-01T00:00:00Z"}
    indifferent = {"a": 1, "_aj_hash_with_indifferent_access": True}
    symbol = {"_aj_serialized": "ActiveJob::Serializers::SymbolSerializer", "value": "fast"}
    symbols = {"b": symbol, "_aj_symbol_keys": ["b"]}
    read = active_job.unwrap({"job_class": NAME, "arguments": [time, indifferent, symbols]})
    assert read.args == [time, {"a": 1}, {"b": "fast"}]
    assert (read.kwargs, read.executions) == ({}, 0)
