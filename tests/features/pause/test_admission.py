"""Check the pause policy with a real Redis: outdated pause state, lost replies and unusable keys."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.execute.admission import AdmissionRequest
from framework.execute.next_jobs import NextJobs
from framework.features.flags.flag import Flag, LayeredFlags, drop_flag, pause_flag, run_flag
from framework.features.flags.redis_flags import RedisFlags, set_flag, unset_flag
from framework.features.pause.admission import PausePolicy, PauseState
from framework.features.pause.store import HOLD_PAUSED
from framework.features.pause.strategies import PauseStrategies
from framework.finish.outcome import Held, Lost
from framework.process.signals import SWEEP
from framework.wire import keys
from framework.wire.job import decode
from tests.harness import IDENTITY, encoded, enqueue, full_memory, hold, payload, server_lines, until

WORKING = keys.working(IDENTITY)
HELD = keys.paused_jobs("CalmWorker")


@pytest.fixture
def entry(redis):
    with registry.isolated():

        class CalmWorker(ApplicationWorker):
            feature_category = "not_owned"
            wire_name = "CalmWorker"

            def perform(self):
                pass

        yield AdmissionRequest(
            hold(redis, encoded("CalmWorker")), payload("CalmWorker"), CalmWorker.declaration(), CalmWorker
        )


@pytest.fixture
def stored(redis, granted):
    set_flag(redis, Flag(pause_flag("CalmWorker"), 100, "why", "ops"), None)
    flags = RedisFlags(granted, "main")
    flags.read()
    return flags


def make_policy(client, stored, flags=None):
    known = flags or stored
    return PausePolicy(
        client,
        IDENTITY,
        PauseState(SimpleNamespace(all=known, stored=stored, refresh=known.read), PauseStrategies((), {})),
    )


def test_pause_policy_ended_pause_holds_no_job(redis, stored, entry):
    policy = make_policy(redis, stored)
    assert policy.applies_to(entry.declaration)
    unset_flag(redis, pause_flag("CalmWorker"))
    assert policy.admit(entry) is None
    assert redis.lrange(WORKING, 0, -1) == [entry.unit.data]
    assert not policy.applies_to(entry.declaration)
    set_flag(redis, Flag(pause_flag("CalmWorker"), 100), None)
    stored.read()
    set_flag(redis, Flag(pause_flag("CalmWorker"), 100, "another why"), None)
    assert policy.admit(entry) == Held("paused", {"pause_control.strategy": "manual", "pause_reason": "another why"})


def test_pause_policy_lost_reply_still_counts_as_held(redis, stored, entry):
    class LosesFirstReply:
        """A client that loses the first reply."""

        def execute_command(self, *command):
            reply = redis.execute_command(*command)
            if command[0] == "EVALSHA" and not lost_replies:
                lost_replies.append(reply)
                raise RedisConnectionError("lost")
            return reply

    lost_replies = []
    redis.script_load(HOLD_PAUSED.source)
    policy = make_policy(LosesFirstReply(), stored)
    with pytest.raises(RedisConnectionError):
        policy.admit(entry)
    assert redis.zcard(HELD) == 1
    assert policy.admit(entry).status == "paused"
    assert isinstance(policy.admit(entry), Lost)  # another process has it by now


def test_pause_policy_unusable_keys_delay_no_job(redis, stored, entry):
    redis.set(HELD, "x")
    policy = make_policy(redis, stored)
    with server_lines("info") as lines:
        assert policy.admit(entry) is None
        assert policy.admit(entry) is None
        assert [line["event_name"] for line in lines()] == ["pause.unusable"]
    assert redis.lrange(WORKING, 0, -1) == [entry.unit.data]


def test_pause_policy_holds_next_jobs_of_the_class_in_one_call(redis, stored, entry):
    def fetched(*jobs):
        return [hold(redis, encoded(name, jid=jid)) for name, jid in jobs]

    def ask(units):
        buffered = SimpleNamespace(take_next=lambda: units, put_back=lambda *_: None)
        small = SimpleNamespace(decode_small=lambda unit: decode(unit.data, None))
        entry.next_jobs = NextJobs(buffered, small)
        return make_policy(redis, stored).admit(entry)

    # Two jobs have the very same bytes.
    units = fetched(("CalmWorker", "b"), ("OtherWorker", "c"), ("CalmWorker", "d"), ("CalmWorker", "d"))
    with full_memory(redis):
        assert ask(units) == Held("paused", {"pause_control.strategy": "manual", "pause_reason": "why"})
    assert redis.lrange(WORKING, 0, -1) == [units[1].data]
    entries = [b'["default"]\n' + unit.data for unit in (entry.unit, units[0], units[2])]
    assert redis.zrange(HELD, 0, -1) == [*entries, b'["default",2]\n' + units[3].data]
    assert [unit.prepared is not None and unit.prepared.moved for unit in units] == [True, False, True, True]
    # Another process owns the first one, and one of the neighbours.
    units = fetched(("CalmWorker", "e"), ("CalmWorker", "f"), ("CalmWorker", "g"))
    redis.lrem(WORKING, 1, units[1].data)
    assert isinstance(ask(units), Lost)
    assert (redis.llen(WORKING), redis.zcard(HELD)) == (3, 4)
    assert not any(unit.prepared.moved for unit in units)
    # The process knows them in another order than they lie in its working list.
    redis.delete(WORKING)
    units = fetched(("CalmWorker", "h"), ("CalmWorker", "i"), ("CalmWorker", "j"), ("CalmWorker", "k"))
    ask([units[0], units[2], units[1], units[3]])
    assert redis.lrange(WORKING, 0, -1) == [unit.data for unit in reversed(units)]
    assert (redis.zcard(HELD), any(unit.prepared.moved for unit in units)) == (4, False)


def test_pause_policy_other_source_writes_strategy_marker(redis, granted, entry):
    class Provider(RedisFlags):
        def find(self, name):
            return Flag(name, 100) if name == pause_flag("CalmWorker") else None

    stored = RedisFlags(granted, "main")
    assert make_policy(redis, stored, LayeredFlags(stored, Provider(redis, "main"))).admit(entry).status == "paused"
    assert redis.get(keys.pause_strategy("CalmWorker")) == b"manual"


JOBS = Path(__file__).resolve().parent / "pause_jobs.py"

QUICK = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, record_period_s=0.2, sweep_period_s=0.2))
from framework.features.pause import admission
admission.PAGE = 25
from framework.features.flags import flag
flag.DEADLINE_S = 0.5
from framework.cli.worker import main
main()
"""
"""A worker that sweeps pauses five times a second, and resumes in small steps, between which it can be killed."""


@pytest.fixture
def site(site):
    shutil.copy(JOBS, site.folder / "jobs.py")
    return site


@pytest.fixture
def worker(site):
    return lambda *options, **env: site.start("-c", QUICK, "-r", "jobs", *(options or ("-c", "3")), **env).ready()


def pause(redis, name, lasts_s=None):
    set_flag(redis, Flag(pause_flag(name), 100, "index rebuild", "ops"), lasts_s)


def held_jobs(redis, name):
    return redis.zrange(keys.paused_jobs(name), 0, -1)


def checked_pauses(redis, times):
    """Wait until every process has checked its pauses."""

    def checks():
        return redis.info("commandstats")["cmdstat_smembers"]["calls"]

    before = checks()
    until(lambda: checks() >= before + times, "the processes have checked")


def jobs(count, name="OrderWorker", **fields):
    made = [{"args": [number], "jid": f"{number:024x}", "odd": "ä/\\ \n", **fields} for number in range(count)]
    return [(name, one) for one in made]


def push(redis, made):
    return [enqueue(redis, name, **fields) for name, fields in made]


def test_pause_held_jobs_keep_bytes_and_order(site, worker, redis):
    pause(redis, "OrderWorker")
    pushed = push(redis, jobs(120, retry_count=3, version=2, correlation_id="c", retry=5))
    process = worker("-c", "1")
    enqueue(redis, "AsyncWorker", args=[7])
    until(lambda: redis.lrange("async", 0, -1) == [b"7"], "another class, which is not paused")
    until(lambda: len(held_jobs(redis, "OrderWorker")) == 120, "all held")
    assert held_jobs(redis, "OrderWorker") == [b'["default"]\n' + data for data in pushed]
    line = process.line(job_status="paused")
    assert (line["pause_control.strategy"], line["pause_reason"], line["class"]) == (
        "manual",
        "index rebuild",
        "OrderWorker",
    )
    assert process.find(job_status="start", **{"class": "OrderWorker"}) == []
    checked_pauses(redis, 6)
    assert (redis.exists("ran"), process.find(job_status="resumed")) == (0, [])
    process.end()
    unset_flag(redis, pause_flag("OrderWorker"))
    process = worker("-c", "1")
    until(lambda: redis.llen("ran") == 120, "all have run")
    assert [int(number) for number in redis.lrange("ran", 0, -1)][-25:] == list(range(95, 120))
    assert sorted(map(int, redis.lrange("ran", 0, -1))) == list(range(120))
    until(
        lambda: sum(line["resumed_job_count"] for line in process.find(job_status="resumed")) == 120, "all are logged"
    )
    assert redis.exists(keys.PAUSED_CLASSES, keys.paused_jobs("OrderWorker")) == 0
    enqueue(redis, "OrderWorker", args=[0])
    until(lambda: redis.llen("ran") == 121, "one more")


def test_pause_ended_by_itself_holds_no_job(worker, redis):
    pause(redis, "AsyncWorker", 600)
    process = worker()
    push(redis, jobs(10, "AsyncWorker"))
    until(lambda: len(held_jobs(redis, "AsyncWorker")) == 10, "held")
    pause(redis, "AsyncWorker", 0.5)
    until(lambda: redis.llen("async") == 10, "the end of the pause")
    process.line(event_name="pause.resumed", resumed_job_count=10)


def test_pause_kills_during_hold_and_resume_lose_no_job(worker, redis):
    pause(redis, "OrderWorker")
    push(redis, jobs(400))

    def kill(process):
        process.kill()
        redis.delete(keys.lease(process.identity))
        redis.zadd(keys.REGISTRY, {process.identity: -1})  # as a parent writes that saw its child die

    processes = [worker() for _ in range(2)]
    for at in (60, 160):
        until(lambda at=at: len(held_jobs(redis, "OrderWorker")) > at, "some are held")
        kill(processes.pop(0))
        processes.append(worker())

    def all_held():
        for process in processes:
            process.send(SWEEP)
        return len(held_jobs(redis, "OrderWorker")) == 400

    until(all_held, "all are held, each once")
    unset_flag(redis, pause_flag("OrderWorker"))
    for at in (40, 200):
        until(lambda at=at: redis.llen("ran") > at, "some have run")
        kill(processes.pop(0))
        processes.append(worker())

    def all_ran():
        for process in processes:
            process.send(SWEEP)
        return len(set(redis.lrange("ran", 0, -1))) == 400

    until(all_ran, "each has run")
    assert redis.llen("ran") <= 400 + 2 * 3 * 5, "what a killed process had in flight ran again, no more"
    until(lambda: not redis.exists(keys.PAUSED_CLASSES, keys.paused_jobs("OrderWorker")), "nothing is held")


def test_pause_failing_strategy_keeps_last_result(worker, redis):
    redis.mset({"strategy": "on", "slow": 1})
    push(redis, jobs(3, "SwitchedWorker"))
    process = worker()
    until(lambda: len(held_jobs(redis, "SwitchedWorker")) == 3, "held: no job runs before the first answer")
    assert process.line(job_status="paused")["pause_control.strategy"] == "switched"
    assert redis.get(keys.pause_strategy("SwitchedWorker")) == b"switched"
    for word, event in (("raises", "callback.failed"), ("hangs", "callback.timeout")):
        redis.set("strategy", word)
        process.line(event_name=event)
    enqueue(redis, "SwitchedWorker", args=[3], jid="d")
    enqueue(redis, "OrderWorker", args=[1])
    until(lambda: redis.llen("ran") == 1, "jobs run")
    until(lambda: len(held_jobs(redis, "SwitchedWorker")) == 4, "the pause goes on")
    redis.set("strategy", "off")
    until(lambda: redis.llen("switched") == 4, "resumed")
    redis.set("strategy", "raises")
    enqueue(redis, "SwitchedWorker", args=[4], jid="e")
    until(lambda: redis.llen("switched") == 5, "not paused is its last result")


def test_pause_removed_class_is_resumed_without_marker(worker, redis):
    pause(redis, "GoneWorker")
    process = worker()
    push(redis, jobs(5, "GoneWorker"))
    until(lambda: len(held_jobs(redis, "GoneWorker")) == 5, "held")
    process.end()
    redis.set(keys.pause_strategy("GoneWorker"), "a strategy of the last release", px=60_000)
    process = worker(GONE="1")
    unset_flag(redis, pause_flag("GoneWorker"))
    enqueue(redis, "OrderWorker", args=[1])
    until(lambda: redis.llen("ran") == 1, "a job")
    checked_pauses(redis, 6)
    assert len(held_jobs(redis, "GoneWorker")) == 5
    redis.delete(keys.pause_strategy("GoneWorker"))
    waiting = until(
        lambda: len(found := redis.zrange(keys.SCHEDULE, 0, -1)) == 5 and found, "unknown, so they wait for a process"
    )
    assert sorted(json.loads(one)["args"] for one in waiting) == [[0], [1], [2], [3], [4]]
    assert process.line(event_name="pause.resumed")["unknown"] is True


def test_pause_dropped_job_is_not_held_first(worker, redis):
    set_flag(redis, Flag(drop_flag("OrderWorker"), 100, "it floods us", "ops"), 60)
    set_flag(redis, Flag(run_flag("OrderWorker"), 0, "later", "ops"), None)
    set_flag(redis, Flag(run_flag("AsyncWorker"), 0, "later", "ops"), None)
    pause(redis, "OrderWorker")
    process = worker()
    push(redis, jobs(3))
    enqueue(redis, "AsyncWorker", args=[1], jid="keep", deferred_count=2)
    lines = until(lambda: len(found := process.find(job_status="dropped")) == 3 and found, "dropped")
    assert lines[0]["dropped_reason"] == "the flag drop_jobs_OrderWorker: it floods us"
    line = process.line(job_status="deferred")
    assert (line["job_deferred_by"], line["deferred_count"]) == ("feature_flag", 3)
    assert (line["feature_flag"], line["feature_flag_reason"]) == ("run_jobs_AsyncWorker", "later")
    assert 150 <= line["deferred_for_s"] <= 450
    ((data, due),) = until(lambda: redis.zrange(keys.SCHEDULE, 0, -1, withscores=True), "the deferred job")
    assert (json.loads(data)["jid"], json.loads(data)["deferred_by"]) == ("keep", "feature_flag")
    assert abs(due - redis.time()[0] - line["deferred_for_s"]) < 30
    assert redis.zcard(keys.paused_jobs("OrderWorker")) == 0
    unset_flag(redis, drop_flag("OrderWorker"))
    unset_flag(redis, run_flag("OrderWorker"))
    unset_flag(redis, pause_flag("OrderWorker"))
    until(lambda: enqueue(redis, "OrderWorker", args=[5]) and redis.llen("ran"), "the class runs again")
    until(lambda: enqueue(redis, "SwitchedWorker", args=[1]) and redis.llen("switched"), "a class without flags")
    set_flag(redis, Flag(drop_flag("SwitchedWorker"), 100, "from now on", "ops"), 60)
    dropped = {"job_status": "dropped", "class": "SwitchedWorker"}
    until(lambda: enqueue(redis, "SwitchedWorker", args=[1]) and process.find(**dropped), "it has one")
    process.end()
    skipped = {name.decode(): int(count) for name, count in redis.hgetall(keys.COUNTERS).items()}
    series = "sidekiq_jobs_skipped_total"
    assert skipped[f'{series}{{action="dropped",reason="feature_flag",worker="OrderWorker"}}'] >= 3
    assert skipped[f'{series}{{action="deferred",reason="feature_flag",worker="AsyncWorker"}}'] == 1
