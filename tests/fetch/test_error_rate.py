"""Framework errors in fetching: wherever one is raised, no unit or acknowledgement is lost, and no lock stays held."""

from types import SimpleNamespace

import pytest

from framework.fetch import pipeline
from framework.fetch.pipeline import MAX_ERRORS, WINDOW_S, ErrorRateLimit
from tests.harness import encoded, until

QUEUE = "queue:default"

PLACES = {
    "in_flight": ("take_done", "confirm", "add", "take_buffer", "remove", "note_returned"),
    "state": (
        "fetch_begins",
        "fetch_ended",
        "note_queues",
        "note_lease",
        "recover",
        "poll_begins",
        "poll_ended",
    ),
    "pipeline.prefetch": ("wanted", "ended", "arrived"),
    "pipeline._rotation": ("next", "record_found"),
    "pipeline._process_limits": (
        "quotas",
        "fetch_ended",
        "queues_with_room",
        "reserve_for_blocking",
        "keep_blocking_only",
    ),
    "pipeline._call": ("send", "read", "close"),
    "pipeline._call._channel": ("send", "replies", "close"),
    "pipeline": ("_read_reply", "_send", "_apply_reply", "drain_reply", "probe", "fetch_and_wait"),
    "blocking": ("arm", "wait", "cancel_all", "_open", "_read_reply", "_unblock", "_check_overdue"),
    "leader": ("_step", "_arm_queues", "_wait_for_jobs", "_receive", "_wait_timeout_s", "_return_buffer", "_stalled"),
    "reconciler": ("reconcile_idle",),
}
"""The methods that worker threads call on the way to Redis and back."""

ONLY_BEFORE = {"take_buffer"}
"""Methods that hand over the only reference to units: an error after their end cannot be, and inside they put the units back."""

CASES = [(owner, name) for owner, names in PLACES.items() for name in names]


def raise_at(monkeypatch, owner, name, numbers):
    """Make the calls of these numbers (from 1) raise: odd ones before the original runs, even ones after (``ONLY_BEFORE``)."""
    calls, original = [], getattr(owner, name)

    def broken(*args, **options):
        calls.append(len(calls) + 1)
        number = calls[-1]
        if number in numbers and (number % 2 or name in ONLY_BEFORE):
            raise RuntimeError(f"a bug before {name}")
        found = original(*args, **options)
        if number in numbers:
            raise RuntimeError(f"a bug after {name}")
        return found

    monkeypatch.setattr(owner, name, broken)
    return calls


def owner_of(one, path):
    found = one
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.proves("R4")
@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{path}.{name}" for path, name in CASES])
def test_pipeline_error_anywhere_loses_no_unit_and_no_lock(bench, redis, monkeypatch, path, name):
    one = bench(slots=3, job=lambda unit: False, queues=(("default", 0), ("other", 0)), limits={"other": 1})
    raised = raise_at(monkeypatch, owner_of(one, path), name, {1, 2, 5, 8})
    jobs = [encoded(queue=queue, jid=f"{queue}-{number}") for queue in ("default", "other") for number in range(80)]
    redis.lpush(QUEUE, *jobs[:80])
    one.start()
    until(lambda: len(one.units) >= 60 or one.died)
    redis.client_kill_filter(_type="normal", skipme=True)  # the recovery after a failure runs too
    redis.lpush("queue:other", *jobs[80:])
    until(lambda: len(one.units) >= 100 or one.died)
    one.fetcher.pause(["a queue that is not served"])
    until(lambda: ({unit.data for unit in one.units} == set(jobs) and not one.working()) or one.died)
    until(lambda: (raised and one.faults) or one.died)
    assert one.died == []
    until(lambda: not one.in_flight.payloads() and one.state.failures == 0)
    assert not one.in_flight.running()
    assert one.in_flight.free_capacity == one.slots


@pytest.mark.proves("R4")
def test_pipeline_error_that_repeats_ends_its_thread(bench, redis, monkeypatch):
    one = bench(slots=1, job=lambda unit: False)
    raise_at(monkeypatch, one.pipeline, "_send", range(1, 1_000, 2))
    redis.lpush(QUEUE, encoded())
    one.start()
    until(lambda: one.died)
    one.pool.stop()
    one.join()
    assert [count for _, count in one.faults][:MAX_ERRORS] == list(range(1, MAX_ERRORS + 1))
    assert str(one.died[0]) == "a bug before _send"
    assert not one.leader.lock.locked()
    assert not one.pipeline._lock.locked()
    assert (one.in_flight.sent, one.pipeline._call.pending) == (0, False)
    one.died.clear()  # the expected error


def noted(one, number, where=0):
    """Record an error raised at one of two locations; return whether it was raised again."""
    try:
        try:
            if where:
                raise ValueError(f"there {number}")
            raise ValueError(f"here {number}")
        except ValueError as error:
            one.record(error)
    except ValueError:
        return True
    return False


def test_error_rate_counts_by_type_location_and_time(monkeypatch):
    now, counts = [100.0], []
    monkeypatch.setattr(pipeline.time, "monotonic", lambda: now[0])
    one = ErrorRateLimit(SimpleNamespace(pipeline_failed=lambda error, count: counts.append(count)))
    assert not any(noted(one, number, number % 2) for number in range(2 * MAX_ERRORS - 2))  # nine at each of two places
    assert counts[-2:] == [MAX_ERRORS - 1, MAX_ERRORS - 1]
    now[0] += WINDOW_S + 0.1
    assert not noted(one, 0)  # the other errors are too old
    assert counts[-1] == 1
    assert [noted(one, number) for number in range(1, MAX_ERRORS)] == [False] * (MAX_ERRORS - 2) + [True]


def test_error_rate_forgets_ever_new_locations():
    one = ErrorRateLimit(SimpleNamespace(pipeline_failed=lambda error, count: None))
    for number in range(1_000):
        try:
            exec("\n" * number + "raise ValueError(1)")  # at another line each time
        except ValueError as error:
            one.record(error)
    assert len(one._seen) <= 100
