"""Compare the table of endings with the writes of a real job at each ending."""

import time
from types import SimpleNamespace
from typing import get_args

import pytest
from redis.exceptions import NoPermissionError

from framework.declare import registry
from framework.errors import Discard, OverLimit, RetryLater
from framework.execute.admission import LimitSlots
from framework.execute.outcomes import UnknownClassDelays
from framework.features.batches import keys as batch_keys
from framework.features.concurrency.admission import ClassLimit
from framework.features.concurrency.limits import FleetSlots, Limits
from framework.features.deferral.admission import DeferFlag, DropFlag, SkipTracker
from framework.features.flags.flag import Flag, drop_flag, pause_flag, run_flag
from framework.features.flags.redis_flags import RedisFlags, set_flag
from framework.features.pause.admission import PausePolicy, PauseState
from framework.features.pause.strategies import PauseStrategies
from framework.features.tasks.change import EVENT_ENDS
from framework.fetch.pipeline import FetchCall
from framework.fetch.state import InFlight
from framework.finish import endings
from framework.finish.endings import ENDINGS
from framework.finish.outcome import Discarded, RunOutcome, UnknownClass
from framework.process.events import ProcessEvents
from framework.process.push_back import PushBack
from framework.recover.reaper import FailureDetector, Reaper
from framework.recover.suspects import InterruptionLimit
from framework.store.channel import ChannelPool
from framework.store.script import Script
from framework.telemetry.counters import counters
from framework.telemetry.job_events import LIMITED_JOBS, SKIPPED_JOBS
from framework.types import Outcome
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.execute.processor_bench import WORKING, ProcessorBench, ScriptedPolicy, state, worker
from tests.features.iteration.iterable_jobs import iterable
from tests.features.tasks.task_bench import TaskBench
from tests.harness import IDENTITY, ROOT, encoded, enqueue, hold, server_lines, until

JID = "ab" * 12
BID = "aw-batch"

BATCHES = {
    "done": (1, 0, 0, 0),
    "failed": (2, 0, 1, 0),
    "dead": (2, 0, 0, 1),
    "removed": (2, 1, 0, 0),
    "": (2, 0, 0, 0),
}
"""The counts of the batch of two jobs after the end of one: pending, removed, failed, dead."""

NO_MOVES = {
    "iteration/start",
    "iteration/save",
    "set_status",
    "note_start",
    "register_orphan",
    "inspect_dead",
    "unregister",
    "write",
}
"""Scripts that move no job."""

COUNTERS = {
    *(SKIPPED_JOBS, LIMITED_JOBS, endings.EXPIRED_JOBS, endings.CANCELLED_JOBS),
    *(endings.YIELDED_JOBS, endings.UNREADABLE_JOBS, endings.WAITING_FOR_STORE, endings.OVER_LIMIT_JOBS),
}


def name_of(ending):
    return f"{ending.outcome} {ending.how}".strip()


class EndingBench:
    """Run one job to one ending, and collect its writes."""

    def __init__(self, redis, url, client, monkeypatch):
        self.redis, self.url, self.client = redis, url, client
        self.moves = []
        self.processor = None
        self.tasks = TaskBench("sqlite://")
        opened_events = ProcessEvents.__init__

        def open_events(events, *facts):
            opened_events(events, *facts)
            events.moved_jobs.recorder = self.tasks.recorder

        monkeypatch.setattr(ProcessEvents, "__init__", open_events)
        for method in ("__call__", "each"):
            monkeypatch.setattr(Script, method, self._recording(getattr(Script, method)))
        monkeypatch.setattr(ChannelPool, "run_script", self._admitting(ChannelPool.run_script))
        monkeypatch.setattr(FetchCall, "send", self._moving(FetchCall.send))

    def _recording(self, original):
        def run(script, *arguments):
            if script.name not in NO_MOVES and script.name not in self.moves:
                self.moves.append(script.name)
            return original(script, *arguments)

        return run

    def _moving(self, original):
        def send(call, ended, *arguments, **named):
            self.moves += [unit.move.script.name for unit in ended if unit.move is not None]
            return original(call, ended, *arguments, **named)

        return send

    def _admitting(self, original):
        def run(channels, script, *arguments):
            reply = original(channels, script, *arguments)
            if reply != 1 and any(
                answer != 1 and answer[0] == 0 for answer in reply
            ):  # it has held a job, so it has moved one
                self.moves.append(script.name)
            return reply

        return run

    def run(
        self,
        perform=lambda self: None,
        *,
        name="Job",
        policies=(),
        attributes=None,
        executor=None,
        setup=None,
        declare=worker,
        **fields,
    ):
        """Push a tracked job of a batch and wait until the processor has settled it."""
        declare(perform, **(attributes or {}), track=True)
        self.redis.set(keys.status(JID), "queued")
        given = {"recorder": self.tasks.recorder, **(executor or {})}
        self.processor = one = ProcessorBench(self.redis, self.url, 1, (), policies, **given)
        one.events = []
        one.foreign_class = lambda name: one.fetcher.quiet()
        enqueue(self.redis, name, **{"jid": JID, "bid": BID, "status_expiration": 60, "track": True, **fields})
        if setup is not None:
            setup()
        one.start()
        until(self._is_settled)

    def _is_settled(self):
        # In this order: a fetch moves the job from its queue to the working list in one step, so one of the two reads sees it.
        if self.redis.llen("queue:default") and not self.moves:
            return False
        return not self.redis.llen(WORKING) and not self.processor.fetcher.in_flight.payloads()

    def flags(self, name):
        set_flag(self.redis, Flag(name, 100, "why", "ops"), None)
        flags = RedisFlags(self.client, "main")
        flags.read()
        return flags


@pytest.fixture
def bench(redis, redis_url, granted, monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    with registry.isolated():
        one = EndingBench(redis, redis_url, granted, monkeypatch)
        redis.hset(batch_keys.batch(BID), mapping={"total": 2, "pending": 2, "ttl_s": 60})
        yield one
        if one.processor is not None:
            one.processor.stop()
        one.tasks.close()


def raising(error):
    def perform(self):
        raise error

    return perform


# --- one function per ending, which brings a job there ----------------------------------------------------------------


def hold_by_limit(bench):
    bench.redis.zadd(f"{keys.limit('Job')}:running", {"another job": time.time() + 1_000})
    policy = ClassLimit(LimitSlots(bench.client, IDENTITY), Limits(FleetSlots(bench.client), {}))
    bench.run(policies=[policy], attributes={"concurrency_limit": 1})


def hold_by_pause(bench):
    flags = bench.flags(pause_flag("Job"))
    state_of_pauses = PauseState(SimpleNamespace(all=flags, stored=flags, refresh=flags.read), PauseStrategies((), {}))
    bench.run(policies=[PausePolicy(bench.client, IDENTITY, state_of_pauses)])


def drop_by_flag(bench):
    flags = bench.flags(drop_flag("Job"))
    bench.run(policies=[DropFlag(flags, SkipTracker(flags))])


def defer_by_flag(bench):
    flags = bench.flags(run_flag("Job"))
    set_flag(bench.redis, Flag(run_flag("Job"), 0, "why", "ops"), None)
    flags.read()
    bench.run(policies=[DeferFlag(flags, SkipTracker(flags), 300.0)])


def lose_before_run(bench):
    take_over = ScriptedPolicy(lambda request: bench.redis.delete(WORKING) and None)
    policy = ClassLimit(LimitSlots(bench.client, IDENTITY), Limits(FleetSlots(bench.client), {}))
    bench.run(policies=[take_over, policy], attributes={"concurrency_limit": 1})


def lose_at_end(bench):
    bench.run(lambda self: bench.redis.delete(WORKING) and None, status_expiration=0)
    until(lambda: bench.processor.fenced_units, "the acknowledgement is fenced")


def cut_off(limit):
    """A job still runs at the deadline of its process."""

    def act(bench):
        worker(lambda self: None, track=True)
        in_flight = InFlight(1)
        in_flight.add([hold(bench.redis, encoded(jid=JID, bid=BID, status_expiration=60))])
        in_flight.start(0.0).performing_since = time.perf_counter()
        bench.redis.set(keys.status(JID), "running")
        PushBack(bench.client, {IDENTITY: in_flight}, ProcessEvents("main"), InterruptionLimit(limit)).return_jobs(0.0)

    return act


def die(limit):
    """The process of a running job dies."""

    def act(bench):
        worker(lambda self: None, track=True)
        detector = FailureDetector(15.0, 3.0)
        seconds, _ = bench.redis.time()
        bench.redis.set(keys.STEADY_SINCE, seconds - 1_000)
        detector.record_heartbeat(float(seconds), lease_held=True)
        other = "host:2:" + "ff" * 6
        bench.redis.zadd(keys.REGISTRY, {other: 1})
        hold(bench.redis, encoded(jid=JID, bid=BID, status_expiration=60), other)
        bench.redis.hset(keys.process(other), "slots", 1)
        bench.redis.set(keys.status(JID), "running")
        limits = SetLimits(100, 3600.0)
        recovered = ProcessEvents("main").recovered
        assert (
            Reaper(bench.client, recovered, detector, limits, interruption_limit=InterruptionLimit(limit)).sweep() == 1
        )

    return act


def cancel(bench):
    bench.redis.zadd(keys.CANCELLED, {JID: time.time()})
    bench.processor.cancellations.refresh()


def yields(bench):
    """An iterating job stops, as its process is quiet."""

    def stop(self, item):
        bench.processor.runs.quiet = True
        bench.processor.fetcher.quiet()

    bench.run(stop, declare=lambda act, **more: iterable(2, act, **more))


def malformed(bench):
    bench.run(compressed=True, args=["no compressed text"])


ACTS = {
    endings.SUCCEEDED: lambda bench: bench.run(),
    endings.RETRIED: lambda bench: bench.run(raising(ValueError("no")), retry=3),
    endings.KILLED: lambda bench: bench.run(raising(ValueError("no")), retry=0),
    endings.DELETED: lambda bench: bench.run(raising(ValueError("no")), retry=False),
    endings.SNOOZED: lambda bench: bench.run(raising(RetryLater(60))),
    endings.YIELDED: yields,
    endings.SNOOZED_BY_LIMITER: lambda bench: bench.run(raising(OverLimit("api", "", 1))),
    endings.DISCARDED: lambda bench: bench.run(raising(Discard("enough"))),
    endings.DROPPED_BY_FLAG: drop_by_flag,
    endings.DROPPED_BY_CAPACITY: lambda bench: bench.run(
        policies=[ScriptedPolicy(Discarded("full", "max_running_jobs"))]
    ),
    endings.EXPIRED: lambda bench: bench.run(expires_in=60, enqueued_at=time.time() - 61),
    endings.CANCELLED: lambda bench: bench.run(setup=lambda: cancel(bench)),
    endings.CANCELLED_RUN: lambda bench: bench.run(lambda self: cancel(bench) or self.cancelled),
    endings.RETIRED: lambda bench: bench.run(name="Gone", executor={"retired": {"Gone": "x"}}),
    endings.MALFORMED: malformed,
    endings.DEFERRED: defer_by_flag,
    endings.DEFERRED_NO_KEY: lambda bench: bench.run(
        compressed=True, encrypt=True, aw_encryption_key="1.aa", args=["AA=="]
    ),
    endings.DEFERRED_NO_STORE: lambda bench: bench.run(
        compressed=True, aw_offloaded=9, args=["a"], original_job_size_bytes=9
    ),
    endings.DEFERRED_REFUSED: lambda bench: bench.run(policies=[ScriptedPolicy(NoPermissionError("no right"))]),
    endings.UNKNOWN_CLASS: lambda bench: bench.run(name="Nowhere"),
    endings.FOREIGN_RETURNED: lambda bench: bench.run(name="Foreign", executor={"unknown": UnknownClassDelays(("*",))}),
    endings.FOREIGN_DELAYED: lambda bench: bench.run(
        name="Foreign", executor={"unknown": UnknownClassDelays(("*",))}, aw_unknown_class_count=1
    ),
    endings.HELD_BY_LIMIT: hold_by_limit,
    endings.HELD_BY_PAUSE: hold_by_pause,
    endings.RETURNED: cut_off(limit=3),
    endings.INTERRUPTED_TOO_OFTEN: cut_off(limit=1),
    endings.RECOVERED: die(limit=3),
    endings.QUARANTINED: die(limit=1),
    endings.CLASS_NOT_FOUND: lambda bench: bench.run(
        name="Nowhere", executor={"unknown": UnknownClassDelays(max_wait_s=0.0)}
    ),
    endings.LOST_AT_END: lose_at_end,
    endings.LOST_BEFORE_RUN: lose_before_run,
}


def test_endings_cover_every_outcome_and_are_all_tested():
    assert {ending.outcome for ending in ENDINGS} == {*Outcome, None}
    assert set(ACTS) == set(ENDINGS)
    assert len({name_of(ending) for ending in ENDINGS}) == len(ENDINGS)
    assert {ending.counter for ending in ENDINGS} <= {"", *COUNTERS}
    named = {one.outcome for one in get_args(RunOutcome) if one is not UnknownClass}
    assert named == set(Outcome)


@pytest.mark.parametrize("ending", ENDINGS, ids=name_of)
def test_ending_of_a_real_job_writes_its_row(bench, redis, ending):
    with server_lines("info") as lines:
        ACTS[ending](bench)
        events = lines()
    assert batch_counts(redis) == BATCHES[ending.told]
    # A job of a batch without a confirmed acknowledgement ends by `finish`.
    written = {state(redis, JID), *bench.moves} - ({"finish"} if ending.script == "fetch" else set())
    assert written == {ending.state or unchanged(ending), *([] if ending.script == "fetch" else [ending.script])}
    assert event_of(bench) == EXPECTED_EVENTS.get(ending, EVENT_ENDS[ending])
    counted = {series.split("{")[0] for series in counters._counts} & COUNTERS
    assert counted == ({ending.counter} if ending.counter else set())
    if bench.processor is None:
        assert (ending.line, [line["job_status"] for line in events][-1]) == ("event", ending.log_status)
        return
    if ending is endings.LOST_AT_END:
        return  # it has the line and the counts of its own outcome, then an event
    assert totals(bench.processor) == expected_totals(ending)
    job_lines = [line["job_status"] for line in bench.processor.lines(jid=JID)]
    if ending.line == "end":
        assert job_lines[-1] == ending.log_status
    else:
        assert job_lines == ([ending.log_status] if ending.line == "single" else [])


def batch_counts(redis):
    key = batch_keys.batch(BID)
    pending, removed = redis.hmget(key, "pending", "removed")
    return int(pending), int(removed or 0), redis.scard(f"{key}:failed"), redis.scard(f"{key}:dead")


EXPECTED_EVENTS = {
    # The run ended here and was recorded; the process that owns the job records its own run.
    endings.LOST_AT_END: EVENT_ENDS[endings.SUCCEEDED]
}


def event_of(bench):
    """The status and the state of the job's event, ``None`` if there is none."""
    found = bench.tasks.event(JID)
    return None if found is None else (found.status, found.state)


def unchanged(ending):
    """The state of a job that its ending leaves as it is."""
    return "running" if ending.outcome is Outcome.INTERRUPTED else "queued"


def totals(one):
    found = one.runs.totals()
    return found.processed, found.uncounted, found.failed


def expected_totals(ending):
    processed, uncounted = {"script": (1, 0), "record": (1, 1), "no": (0, 0)}[ending.processed]
    return processed, uncounted, int(ending.failed)


def test_endings_have_log_statuses_of_the_reference():
    page = (ROOT / "docs" / "reference" / "log_fields.md").read_text()
    assert [ending.log_status for ending in ENDINGS if ending.log_status and f"`{ending.log_status}`" not in page] == []


def test_fenced_acknowledgement_writes_no_last_state(bench, redis):
    """The process that owns the job now runs it again and writes its states."""

    def perform(self):
        until(lambda: state(redis, JID) == "running")
        redis.delete(WORKING)

    bench.run(perform)
    assert state(redis, JID) == "running"
    (line,) = bench.processor.lines(job_status="done")
    assert line["jid"] == JID
