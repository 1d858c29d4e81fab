"""The breaker of a class: its scripts, and processes whose jobs fail or kill them."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis.exceptions import RedisError

from framework.breaker import BreakAfter
from framework.errors import BusinessError, DeclarationError, JobStoppedError
from framework.features.batches import keys as batch_keys
from framework.features.breaker.admission import BreakerPolicy, BreakerTasks
from framework.features.breaker.attributes import BreakerAttributes
from framework.features.breaker.ended_runs import EndedRuns
from framework.features.breaker.keys import BREAKERS, breaker
from framework.features.breaker.observer import BreakerObserver, broken_runs
from framework.features.breaker.store import (
    ask_start,
    close_breaker,
    encode_rule,
    open_breaker,
    read_breaker,
    read_breakers,
    tend,
)
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag, unset_flag
from framework.features.pause.admission import ResumeResult, resume
from framework.finish.outcome import SUCCEEDED, Cancelled, Deferred, Discarded, Failed, Held, Interrupted
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import Endpoint, open_client
from framework.wire import keys
from tests.harness import enqueue, until
from tests.servers.proxy import Proxy

C = "PoisonWorker"


def rule(**fields):
    return encode_rule(BreakAfter(**fields), 18.0)


def start(redis, process="p1", jid="j", chosen=None, **ended):
    answer, news = ask_start(redis, C, process, jid, chosen or rule(deaths=2), EndedRuns(**ended))
    return answer, news.change


def keep(redis, process="p1", chosen=None, *, runs=False, **ended):
    releases, _, news = tend(redis, C, process, chosen or rule(deaths=2), EndedRuns(**ended), runs=runs)
    return releases, news.change


def live(redis, *processes):
    for one in processes:
        redis.set(keys.lease(one), 1)
        redis.zadd(keys.REGISTRY, {one: 1.0})


def die(redis, process):
    """As a parent does that saw its child end."""
    redis.delete(keys.lease(process))
    redis.zadd(keys.REGISTRY, {process: -1.0})


def due(redis):
    redis.hset(breaker(C), "until", 1)


def test_attribute_takes_a_number_of_deaths_or_a_rule():
    class Worker(BreakerAttributes):
        pass

    assert BreakAfter(3) == BreakAfter(deaths=3)
    with pytest.raises(DeclarationError, match="needs deaths or failures"):
        BreakAfter()
    with pytest.raises(DeclarationError, match=r"failures = 2 is not allowed. Allowed: a number from 0 to 1"):
        BreakAfter(failures=2)
    with pytest.raises(DeclarationError, match="did you mean 'deaths'"):
        BreakAfter(death=2)


def test_deaths_of_processes_open_the_breaker(redis):
    live(redis, "p1", "p2", "p3")
    assert start(redis, "p1") == ("starts", "")
    die(redis, "p1")
    # As long as no run has succeeded, no more processes run the class than may still die.
    assert start(redis, "p2") == ("starts", "")
    assert start(redis, "p2") == ("starts", "")
    assert start(redis, "p3") == ("later", "")
    die(redis, "p2")
    assert start(redis, "p3") == ("held", "opened")
    assert start(redis, "p3") == ("held", "")
    found = read_breaker(redis, C)
    assert (found.state, found.cause, found.reason) == ("open", "deaths", "2 processes died that ran it")
    assert [one.worker for one in read_breakers(redis)] == [C]


def test_success_after_a_death_lets_all_processes_run_again(redis):
    live(redis, "p1", "p2", "p3")
    start(redis, "p1")
    die(redis, "p1")
    assert start(redis, "p2") == ("starts", "")
    assert start(redis, "p3") == ("later", "")
    assert start(redis, "p3", runs=1) == ("starts", "")


def test_lapsed_lease_after_an_outage_is_no_death(redis):
    """Every lease has expired then; the heartbeats have come without a gap for a moment only."""
    live(redis, "p1", "p2")
    start(redis, "p1")
    redis.delete(keys.lease("p1"))
    redis.set(keys.STEADY_SINCE, redis.time()[0])
    assert start(redis, "p2", chosen=rule(deaths=1)) == ("starts", "")
    redis.set(keys.STEADY_SINCE, redis.time()[0] - 60)
    assert start(redis, "p2", chosen=rule(deaths=1)) == ("held", "opened")


def test_process_that_ends_in_order_is_no_death(redis):
    live(redis, "p1", "p2")
    start(redis, "p1", chosen=rule(deaths=1))
    keep(redis, "p1", rule(deaths=1))
    die(redis, "p1")
    assert start(redis, "p2", chosen=rule(deaths=1)) == ("starts", "")


def test_share_of_failures_opens_the_breaker(redis):
    chosen = rule(failures=0.5, runs=10)
    live(redis, "p1")
    assert start(redis, chosen=chosen, runs=8, failures=8) == ("starts", "")
    assert start(redis, chosen=chosen, runs=12, failures=1) == ("starts", "")
    assert start(redis, chosen=chosen, runs=2, failures=2) == ("held", "opened")
    assert read_breaker(redis, C).reason == "11 of 22 runs failed"


def test_probe_closes_the_breaker_or_opens_it_for_longer(redis):
    chosen = rule(failures=0.5, runs=1)
    live(redis, "p1", "p2")
    start(redis, chosen=chosen, runs=1, failures=1)
    redis.zadd(keys.paused_jobs(C), {'["q"]\nx': 1})
    assert keep(redis, chosen=chosen) == (False, "")
    assert redis.get(keys.pause_strategy(C)) == b"=breaker: 1 of 1 runs failed"
    due(redis)
    assert keep(redis, chosen=chosen) == (True, "")
    assert start(redis, "p1", "probe", chosen) == ("probe", "")
    assert start(redis, "p2", "other", chosen) == ("held", "")
    assert keep(redis, "p1", chosen, probe="probe", probe_end="failed", runs=True) == (False, "opened")
    assert redis.hget(breaker(C), "wait") == b"120"
    due(redis)
    assert start(redis, "p2", "again", chosen) == ("probe", "")
    assert keep(redis, "p2", chosen, probe="again") == (False, "closed")
    assert (redis.exists(keys.pause_strategy(C)), read_breaker(redis, C).state) == (0, "closed")
    assert start(redis, "p2", "next", chosen) == ("starts", "")


def test_death_of_the_probe_doubles_the_wait_up_to_the_longest(redis):
    chosen = rule(deaths=1, longest_wait=100)
    live(redis, "p0", "p1", "p2", "p3")
    start(redis, "p0", chosen=chosen)
    die(redis, "p0")
    assert start(redis, "p1", chosen=chosen) == ("held", "opened")
    for process, after in (("p1", "p2"), ("p2", "p3")):
        due(redis)
        assert start(redis, process, "probe", chosen) == ("probe", "")
        die(redis, process)
        assert start(redis, after, chosen=chosen) == ("held", "opened")
        assert redis.hget(breaker(C), "wait") == b"100"
    assert read_breaker(redis, C).reason == "the process of its probe died"


def test_operator_opens_and_closes(redis):
    live(redis, "p1")
    assert not close_breaker(redis, C)
    open_breaker(redis, C, "bad deploy", 60.0)
    assert start(redis) == ("held", "")
    assert read_breaker(redis, C).cause == "operator"
    assert close_breaker(redis, C)
    assert start(redis) == ("starts", "")
    keep(redis)
    assert read_breakers(redis) == []
    assert redis.keys("aw:break*") in ([], [BREAKERS.encode()])


def open_with_held_jobs(redis, count=1):
    """Open the breaker for an operator, due for its probe, with jobs held."""
    open_breaker(redis, C, "bad", 0.0)
    redis.zadd(keys.paused_jobs(C), {f'["q"]\nx{number}': number for number in range(count)})
    redis.sadd(keys.PAUSED_CLASSES, C)


def release_probe(redis):
    tasks = BreakerTasks(SimpleNamespace(), [], 18.0)
    tasks._release_probe(redis, C, "bad")
    return redis.llen(keys.queue("q"))


def test_each_shard_has_its_own_state(redis, second_redis):
    open_breaker(redis, C, "bad", 60.0)
    for shard in (redis, second_redis):
        live(shard, "p1")
    assert start(redis) == ("held", "")
    assert start(second_redis) == ("starts", "")
    assert not close_breaker(second_redis, C)
    assert read_breaker(redis, C).state == "open"


def test_operator_resumes_no_jobs_that_a_breaker_holds(redis):
    open_with_held_jobs(redis)
    assert keep(redis) == (True, "")
    for class_known in (True, False):
        assert resume(redis, C, b"", class_known=class_known) == ResumeResult(0, 0, True)
    assert release_probe(redis) == 1


def test_breaker_ends_no_pause_of_an_operator(redis):
    open_with_held_jobs(redis)
    set_flag(redis, Flag(pause_flag(C), 100, "why", "ops"), None)
    keep(redis)
    assert release_probe(redis) == 0
    assert close_breaker(redis, C)
    # As a process whose flags are old, and as the command: the flag still keeps the jobs.
    assert resume(redis, C, b"", class_known=True).paused
    assert unset_flag(redis, pause_flag(C))
    assert resume(redis, C, b"", class_known=False).moved == 1


@pytest.mark.parametrize("has_died", [False, True])
def test_probe_without_an_end_gives_way_to_a_held_job(redis, has_died):
    """It was deleted, or its process died: no job of the class comes that could ask."""
    live(redis, "p1", "p2")
    open_with_held_jobs(redis)
    assert start(redis, "p1", "probe") == ("probe", "")
    assert keep(redis, "p2") == (False, "")
    if has_died:
        die(redis, "p1")
        assert keep(redis, "p2") == (False, "opened")
        assert redis.hget(breaker(C), "wait") == b"60"
    else:
        keep(redis, "p1")
        assert keep(redis, "p2") == (False, "")
    redis.hset(breaker(C), "until", redis.time()[0] - 61)
    assert keep(redis, "p2") == (True, "")
    assert start(redis, "p2", "next") == ("probe", "")
    assert keep(redis, "p2", probe="probe", runs=True) == (False, "")


def test_undecided_probe_neither_closes_nor_waits_longer(redis):
    live(redis, "p1")
    open_with_held_jobs(redis)
    start(redis, "p1", "probe")
    assert keep(redis, "p1", probe="probe", probe_end="undecided") == (True, "")
    assert start(redis, "p1", "next") == ("probe", "")


@pytest.mark.parametrize(
    ("outcome", "admitted", "end"),
    [
        (SUCCEEDED, True, "succeeded"),
        (Failed(ValueError()), True, "failed"),
        (Failed(BusinessError("no")), True, "succeeded"),
        # An operator has stopped or cancelled it; a policy after the breaker has sent it away or dropped it.
        (Failed(JobStoppedError()), True, "undecided"),
        (Cancelled("probe", ran=True), True, "undecided"),
        (Cancelled("probe", ran=False), False, "undecided"),
        (Deferred(5.0, "replica"), False, "undecided"),
        (Discarded("duplicate"), False, "undecided"),
        # It comes back as the probe.
        (Interrupted(), True, None),
        (Held("concurrency_limit"), False, None),
    ],
)
def test_end_of_a_probe_by_its_outcome(outcome, admitted, end):
    declaration = SimpleNamespace(wire_name=C, facts={"break_after": BreakAfter(3)})
    run = SimpleNamespace(
        declaration=declaration,
        payload={"jid": "probe"},
        outcome=outcome,
        admitted=admitted,
        error=getattr(outcome, "error", None),
    )
    broken_runs.note_probe("probe")
    BreakerObserver().ended(run)
    found = broken_runs.take_all(C)
    assert (found.probe, found.runs) == ("probe" if end else "", int(end in ("succeeded", "failed")))
    assert found.probe_end == (end or "succeeded")
    # Of other jobs, these say nothing.
    broken_runs.add(C, "probe", "undecided")
    broken_runs.take_all(C)
    BreakerObserver().ended(run)
    assert broken_runs.take_all(C).runs == int(end in ("succeeded", "failed"))


@pytest.fixture
def process(redis, redis_url):
    """A process behind a proxy, as the policy and the periodic work see it; the server knows the scripts."""
    broken_runs.take_all(C)
    live(redis, "p1")
    start(redis)
    keep(redis)
    redis.flushall()
    absent = AbsentKeys([BREAKERS], 600.0)
    absent.note(BREAKERS, found=False)
    absent.check(redis)
    live(redis, "p1")
    with Proxy(redis_url) as proxy, open_client(Endpoint(proxy.url), name="tested") as client:
        yield SimpleNamespace(
            identity="p1",
            proxy=proxy,
            upkeep=client,
            shard=SimpleNamespace(client=client),
            runs=SimpleNamespace(running=dict),
            absent=absent,
        )
    broken_runs.take_all(C)


def declared(**fields):
    return SimpleNamespace(wire_name=C, facts={"break_after": BreakAfter(**fields)})


@pytest.mark.proves("I19")
@pytest.mark.parametrize("caller", ["policy", "tasks"])
def test_runs_of_a_lost_reply_count_once(redis, process, caller):
    """Six failed runs of at least ten: counted twice, they would open the breaker."""
    declaration = declared(failures=0.5, runs=10)
    request = SimpleNamespace(declaration=declaration, payload={"jid": "j"}, unit=object())
    policy, tasks = BreakerPolicy(process, None, 18.0), BreakerTasks(process, [declaration], 18.0)
    call = tasks.step if caller == "tasks" else lambda: policy.admit(request)
    for number in range(6):
        broken_runs.add(C, f"j{number}", "failed")
    process.proxy.lose_replies(b"aw:breaker:", {1})
    with pytest.raises(RedisError):
        call()
    assert len(process.proxy.lost) == 1
    call()
    assert read_breaker(redis, C).state == "closed"
    assert sum(int(count) for field, count in redis.hgetall(breaker(C)).items() if field.startswith(b"f:")) == 6


@pytest.mark.parametrize("arrives", [True, False])
def test_end_of_a_probe_is_told_until_it_is_answered(redis, process, arrives):
    tasks = BreakerTasks(process, [declared(failures=0.5)], 18.0)
    open_with_held_jobs(redis)
    start(redis, "p1", "probe")
    broken_runs.note_probe("probe")
    broken_runs.add(C, "probe", "succeeded")
    if arrives:
        process.proxy.lose_replies(b"aw:breaker:", {1})
    else:
        process.proxy.refusal = b"-LOADING it starts\r\n"
    with pytest.raises(RedisError):
        tasks.step()
    assert read_breaker(redis, C).state == ("closed" if arrives else "probing")
    process.proxy.heal()
    tasks.step()
    assert read_breaker(redis, C).state == "closed"


@pytest.fixture
def copied(site):
    shutil.copy(Path(__file__).parent / "breaker_jobs.py", site.folder)
    return site


def run(site, *words):
    done = site.run("-m", "framework", *words, role="operator")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_class_without_breaker_is_not_opened(site, redis):
    done = site.run("-m", "framework", "breakers", "open", "NoopWorker", "-r", "jobs", "--reason", "bad deploy")
    assert done.returncode == 1
    assert "jobs pause NoopWorker --reason 'bad deploy'" in done.stderr
    assert redis.keys("aw:break*") == []


def test_diagnose_names_an_open_breaker_before_other_causes(site, redis):
    open_breaker(redis, "BombWorker", "2 processes died that ran it", 60.0)
    pushed = {"class": "BombWorker", "jid": "j", "queue": "default", "args": []}
    redis.zadd(keys.paused_jobs("BombWorker"), {f'["default"]\n{json.dumps(pushed)}': 1.0})
    redis.set(keys.pause_strategy("BombWorker"), "breaker")
    redis.sadd(keys.PAUSED_CLASSES, "BombWorker")
    done = site.run("-m", "framework", "diagnose", "-r", "jobs", "--alert", "ProcessesFlapping", "--json")
    assert done.returncode == 1, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["code"], found["jobs"]) == ("breaker_open", 1)
    assert found["remedy"].endswith("breakers close BombWorker")


def test_failing_class_is_held_until_its_probe_succeeds(copied, redis):
    redis.set("broken", 1)
    process = copied.hurried_worker("-r", "breaker_jobs", "-q", "default", "-c", "1").ready()
    for number in range(8):
        enqueue(redis, "ShakyWorker", jid=f"j{number}", retry=0)
    line = process.line(event_name="breaker.opened")
    assert (line["class"], line["cause"]) == ("ShakyWorker", "failures")
    until(lambda: redis.zcard(keys.paused_jobs("ShakyWorker")) and not redis.llen(keys.queue("default")))
    assert process.line(job_status="paused")["pause_control.strategy"] == "breaker"
    (shown,) = json.loads(run(copied, "breakers", "show", "--json"))["breakers"]
    assert shown["state"] in ("open", "probing")
    notice = r"the breaker of ShakyWorker is (open|probing): (.+ runs failed|its probe failed)"
    (told,) = json.loads(run(copied, "jobs", "stats", "--json"))["notices"]
    assert re.fullmatch(notice, told["notice"])
    assert re.search(f"^main: {notice}$", run(copied, "jobs", "stats"), re.MULTILINE)
    (paused,) = json.loads(run(copied, "jobs", "paused", "--json"))["paused"]
    assert (paused["by"], "runs failed" in paused["reason"] or "probe failed" in paused["reason"]) == ("breaker", True)
    assert "breakers close ShakyWorker" in run(copied, "jobs", "explain", "ShakyWorker", "-r", "breaker_jobs")
    redis.delete("broken")
    process.line(event_name="breaker.closed")
    assert json.loads(run(copied, "jobs", "stats", "--json"))["notices"] == []
    until(lambda: not redis.exists(keys.paused_jobs("ShakyWorker")))
    until(lambda: redis.zcard(keys.DEAD) + redis.llen("proof:done") == 8, "all jobs")
    assert process.end() == 0


def test_cron_job_of_an_open_breaker_is_held_and_returns(copied, redis):
    """Each tick has its job, as while a class is paused; an entry that skips overlaps has one job, which waits."""
    entries = {
        name: {"cron": "* * * * * *", "class": "ShakyWorker", "overlap": overlap}
        for name, overlap in (("all", "run"), ("one", "skip"))
    }
    copied.write("schedule.yml", {"schedule": entries})
    open_breaker(redis, "ShakyWorker", "bad deploy", 3600.0)
    process = copied.hurried_worker("-r", "breaker_jobs", "-q", "default", "-c", "1").ready()
    process.line(event_name="cron.skipped", entry="one")
    until(lambda: redis.zcard(keys.paused_jobs("ShakyWorker")) >= 3, "held jobs")
    held = [json.loads(data.split(b"\n", 1)[1]) for data in redis.zrange(keys.paused_jobs("ShakyWorker"), 0, -1)]
    assert [one["cron"]["name"] for one in held].count("one") == 1
    assert redis.llen("proof:runs") == 0
    run(copied, "breakers", "close", "ShakyWorker")
    for one in held:
        process.line(jid=one["jid"], job_status="done")
    until(lambda: len(process.find(event_name="cron.pushed", entry="one")) > 1, "the next tick")
    assert process.end() == 0


def test_held_jobs_keep_their_batch_and_no_slot(copied, redis):
    redis.set("broken", 1)
    pushed = copied.run(
        "-c",
        "import breaker_jobs; from framework.batches import Batch; batch = Batch()\n"
        "with batch.jobs(): breaker_jobs.NarrowWorker.perform_bulk([()] * 6)\n"
        "print(batch.bid)",
    )
    assert pushed.returncode == 0, pushed.stderr
    process = copied.hurried_worker("-r", "breaker_jobs", "-q", "default", "-c", "3").ready()
    process.line(event_name="breaker.opened")
    until(lambda: redis.zcard(keys.paused_jobs("NarrowWorker")) >= 3)
    until(lambda: not redis.zcard(f"{keys.limit('NarrowWorker')}:running"), "no slot is taken")
    assert int(redis.hget(batch_keys.batch(pushed.stdout.strip()), "pending")) >= 3
    redis.delete("broken")
    process.line(event_name="breaker.closed")
    resume(redis, "NarrowWorker", b"", class_known=False)
    until(lambda: redis.zcard(keys.DEAD) + redis.llen("proof:done") == 6, "all jobs")
    until(lambda: process.find(event_name="batch.finished"))
    assert not redis.zcard(f"{keys.limit('NarrowWorker')}:running")
    assert process.end() == 0


@pytest.mark.campaign
def test_poison_class_kills_no_more_processes_than_its_rule(copied, redis):
    """A fleet of three processes, restarted by their supervisor, and twenty jobs that kill."""
    redis.set("poisonous", 1)
    for number in range(20):
        enqueue(redis, "PoisonWorker", jid=f"poison{number}")
    fleet = copied.start(
        "-m",
        "framework",
        "cluster",
        "default",
        "-r",
        "jobs",
        "-r",
        "breaker_jobs",
        "--processes",
        "3",
        "--max-concurrency",
        "2",
    )
    opened = fleet.line(event_name="breaker.opened")
    assert opened["cause"] == "deaths"
    deaths = len(fleet.find(event_name="child.died"))
    begun_at_first = redis.llen("proof:begun")
    enqueue(redis, "NoopWorker", jid="healthy")
    fleet.line(jid="healthy", job_status="done")
    assert deaths <= 3
    assert begun_at_first <= 6
    redis.delete("poisonous")
    fleet.line(event_name="breaker.closed")
    until(lambda: len(set(redis.lrange("proof:done", 0, -1))) == 20, "all jobs")
    assert redis.zcard(keys.DEAD) + redis.zcard(keys.INTERRUPTED) == 0
    assert fleet.end() == 0
