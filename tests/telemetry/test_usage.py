"""The records of what jobs use: which job a call belongs to, and what stays when a job has ended."""

import asyncio
import threading
from contextvars import copy_context

import pytest

from framework.telemetry import context
from framework.telemetry.usage import MAX_DATABASES, Usage, UsageRecords


@pytest.fixture
def records():
    made = UsageRecords()
    made.enabled = True
    return made


def count(records):
    used = records.of_job_here()
    if used is not None:
        used.count_http(0.5)
    return used


def in_job(payload, call, *args):
    def run():
        context.enter_job(payload)
        return call(*args)

    return copy_context().run(run)


def test_first_call_makes_the_record_of_a_job(records):
    assert count(records) is None
    job, other = {"jid": "a"}, {"jid": "b"}
    in_job(job, count, records)
    in_job(job, count, records)
    in_job(other, count, records)
    assert (records.find("a").external_http_count, records.find("b").external_http_count) == (2, 1)
    assert records.take(job).external_http_count == 2
    assert (records.take(job), records.find("a"), len(records.running)) == (None, None, 1)


def test_nothing_is_counted_until_something_reads_it(records):
    records.enabled = False
    assert in_job({"jid": "a"}, count, records) is None
    assert not records.running


def test_bound_facts_tasks_and_threads_count_into_the_job(records):
    job = {"jid": "a"}

    async def use():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(count, records))
            group.create_task(asyncio.to_thread(count, records))

    def run():
        with context.bound(user=5):
            count(records)
        asyncio.run(use())

    in_job(job, run)
    assert records.take(job).external_http_count == 3
    with context.bound(user=5):
        assert count(records) is None


def test_late_thread_counts_into_no_other_job(records):
    job, go_on = {"jid": "late"}, threading.Event()

    def late():
        go_on.wait()
        count(records)

    thread = in_job(job, lambda: threading.Thread(target=copy_context().run, args=(late,)))
    thread.start()
    in_job(job, count, records)
    assert records.take(job).external_http_count == 1
    go_on.set()
    thread.join()
    key = id(job)
    (record,) = records.running.values()
    assert (record.payload["jid"], key in records.running) == ("late", True)
    # Its payload is kept until a sweep, so that no other job has its id.
    del record, thread, job
    records._swept_at = float("-inf")
    running = {"jid": "next"}
    in_job(running, count, records)
    assert [one.payload["jid"] for one in records.running.values()] == ["next"]
    records._swept_at = float("-inf")
    in_job({"jid": "third"}, count, records)
    assert records.take(running).external_http_count == 1


def test_caller_has_what_an_inline_job_has_used(records):
    outer, inner = {"jid": "outer"}, {"jid": "inner"}

    def run():
        in_job(inner, count, records)
        records.pass_to_caller(inner)

    in_job(outer, run)
    assert records.take(outer).external_http_count == 1
    run()
    assert not records.running


def test_fields_name_only_what_was_used():
    used = Usage()
    assert used.fields() == {}
    used.count_redis(2, 0.25, 10, 20)
    assert used.fields() == {
        "redis_calls": 2,
        "redis_duration_s": 0.25,
        "redis_read_bytes": 20,
        "redis_write_bytes": 10,
    }
    used = Usage()
    used.count_sql(0.5)
    used.count_sql(1.0, "main")
    assert used.fields() == {"db_count": 2, "db_duration_s": 1.5, "db_main_count": 1, "db_main_duration_s": 1.0}
    used.count_sql(0.25, "main_replica")
    assert {name: value for name, value in used.fields().items() if name.endswith("count")} == {
        "db_count": 3,
        "db_main_count": 1,
        "db_main_replica_count": 1,
        "db_primary_count": 1,
        "db_replica_count": 1,
    }
    for number in range(MAX_DATABASES + 5):
        used.count_sql(0.0, f"tenant_{number}")
    assert (len(used.databases), used.db_count) == (MAX_DATABASES, MAX_DATABASES + 8)


def test_usage_travels_as_json():
    used, more = Usage(), Usage()
    used.count_redis(1, 0.5, 3, 4)
    used.count_sql(2.0, "main")
    more.add(Usage.from_json(used.to_json()))
    assert more.to_json() == used.to_json()
    for wrong in ({}, {**used.to_json(), "databases": {"main": 5}}, {**used.to_json(), "db_count": "many"}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Usage.from_json(wrong)
