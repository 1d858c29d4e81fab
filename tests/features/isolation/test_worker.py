"""Isolated jobs: every way to end, with a real process for each job, on a processor with real parts."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework import ApplicationWorker
from framework.declare import port, registry
from framework.errors import JobMemoryError, JobProcessError, JobTimeoutError
from framework.features.isolation.worker import LOST_PROCESSES, ServerProcess, wait_until_ready
from framework.features.limiters.store import LimiterStore
from framework.telemetry.counters import counters
from framework.telemetry.usage import usage_records
from framework.wire import keys
from tests.execute.processor_bench import WORKING, ProcessorBench
from tests.features.isolation import isolated_jobs as jobs
from tests.harness import IDENTITY, enqueue, opened, until

CLASSES = (
    *(jobs.TalkWorker, jobs.AsyncWorker, jobs.EndWorker, jobs.GreedyWorker, jobs.TinyWorker),
    *(jobs.HangWorker, jobs.LeaveWorker, jobs.PatientWorker, jobs.ForkWorker, jobs.LimitedWorker),
    *(jobs.StatementWorker, jobs.ForgeWorker),
)


@pytest.fixture(scope="module")
def job_server(nothing_left_running):
    """One server for all tests: each would start a Python that imports the framework. It starts again when a test has ended it."""
    made = ServerProcess()
    yield made
    made.close()


@pytest.fixture
def bench(redis, redis_url, monkeypatch, job_server):
    monkeypatch.setattr(counters, "_counts", {})
    # The modules that other tests have loaded are not those of these jobs, and some exist no more.
    monkeypatch.setattr(registry._registry, "loaded", {jobs.__name__})
    with registry.isolated(CLASSES):
        made = ProcessorBench(redis, redis_url, 4, ())
        made.isolated = made.processor._executor.detached
        made.isolated.grace_s = 0.1
        made.isolated._server = job_server
        yield made.start()
        made.stop()
        if made.isolated._server is job_server:
            made.isolated._server = ServerProcess()
        made.processor.close()


def push(redis, worker, *args, **fields):
    return enqueue(redis, worker.declaration().wire_name, args=list(args), **fields)


def end_line(bench, jid):
    return until(lambda: [line for line in bench.lines(jid=jid) if "duration_s" in line], f"the end of {jid}")[0]


def lost(worker):
    return sum(amount for series, amount in counters._counts.items() if LOST_PROCESSES in series and worker in series)


def alive(pid):
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_isolated_job_runs_as_one_in_a_thread(bench, redis):
    push(redis, jobs.TalkWorker, 2**70, jid="talk", version=1, correlation_id="cafe")
    push(redis, jobs.AsyncWorker, jid="async")
    push(redis, jobs.ForkWorker, jid="fork")
    done = end_line(bench, "talk")
    assert done["job_status"] == "done", str(done)
    assert (done["job_status"], done["correlation_id"], done["shard"]) == ("done", "cafe", "main")
    assert (done["extra.features_isolation_talk_worker.rows"], done["extra.features_isolation_talk_worker.odd"]) == (
        2**70 + 1,
        "?",
    )
    assert done["process_pid"] != os.getpid()
    assert done["process_peak_bytes"] > 1_000_000
    assert done["cpu_s"] > 0
    (line,) = bench.lines(message="half way")
    assert (line["number"], line["version"], line["jid"], line["correlation_id"]) == (2**70, 1, "talk", "cafe")
    assert line["pid"] == done["process_pid"]
    assert end_line(bench, "async")["extra.features_isolation_async_worker.awaited"] is True
    forked = end_line(bench, "fork")
    assert (forked["job_status"], forked["extra.features_isolation_fork_worker.from_child"]) == ("done", False)
    until(bench.done, "all acknowledged")
    assert not bench.died
    assert children(bench.isolated._server.popen.pid) == []


@pytest.mark.invented_lines
def test_isolated_job_forges_no_line(bench, redis):
    push(redis, jobs.ForgeWorker, jid="forger")
    line = end_line(bench, "forger")
    (forged,) = bench.lines(jid="other")
    assert (forged["job_status"], forged["shard"], forged["pid"]) == ("running", "main", line["process_pid"])
    assert not bench.lines(severity="ERROR")


def test_end_line_has_what_an_isolated_job_has_used(bench, redis, tmp_path, monkeypatch):
    monkeypatch.setattr(usage_records, "enabled", True)
    push(redis, jobs.StatementWorker, f"sqlite:///{tmp_path}/one.sqlite3", jid="used")
    line = end_line(bench, "used")
    assert (line["job_status"], line["db_count"]) == ("fail", 1)
    assert line["db_duration_s"] > 0
    until(bench.done, "settled")
    assert not usage_records.running


def test_each_end_of_a_process_is_that_of_its_job(bench, redis):
    ends = ("kill", "fault", "exit", "garbage", "leave", "fail", "bare", "snooze", "discard")
    for how in ends:
        push(redis, jobs.EndWorker, how, jid=how)
    found = {how: end_line(bench, how) for how in ends}
    until(bench.done, "all settled")
    process, own = "framework.errors.JobProcessError", f"{jobs.__name__}.InputError"
    assert {
        how: (line["job_status"], line.get("error_kind"), line.get("exception.class")) for how, line in found.items()
    } == {
        "kill": ("fail", "process", process),
        "fault": ("fail", "process", process),
        "exit": ("fail", "process", process),
        "garbage": ("fail", "process", process),
        "leave": ("fail", None, "SystemExit"),
        "fail": ("fail", None, own),
        "bare": ("fail", None, f"{jobs.__name__}.BareLimit"),
        "snooze": ("snoozed", None, None),
        "discard": ("dropped", None, None),
    }
    assert all(line["extra.features_isolation_end_worker.how"] == how for how, line in found.items())
    statuses = {error.status for error in bench.failed if isinstance(error, JobProcessError)}
    assert statuses == {-signal.SIGKILL, -signal.SIGSEGV, 3}
    (error,) = [one for one in bench.failed if isinstance(one, jobs.InputError)]
    assert (error.field, str(error), type(error.__cause__)) == ("name", "name is missing in line 5", KeyError)
    first, *_ = lines = found["fail"]["exception.backtrace"]
    assert first.endswith(':in `_fail\': raise InputError("name", 5) from error')
    assert "caused by KeyError: 'x'" in lines
    assert found["snooze"]["retry_in_s"] == 60
    assert lost("EndWorker") == 4
    assert redis.zcard(keys.RETRY) == 7


def test_backoff_of_a_limiter_counts_for_an_isolated_job(bench, redis):
    push(redis, jobs.EndWorker, "limit", jid="limit", overrated=1)
    line = end_line(bench, "limit")
    assert (line["job_status"], line["over_limit_count"], line["retry_in_s"]) == ("snoozed", 2, 140)


def test_limiter_has_the_lock_of_a_killed_job_back(bench, redis, redis_url, tmp_path):
    shard, limit = opened(redis_url), jobs.LimitedWorker.limiter
    with port.override(
        SimpleNamespace(
            service=lambda _: LimiterStore(
                SimpleNamespace(shards={"main": shard}, settings=SimpleNamespace(fleet_shard="main"))
            )
        )
    ):
        push(redis, jobs.LimitedWorker, str(tmp_path / "end"), jid="first")
        until(limit.used)
        push(redis, jobs.LimitedWorker, str(tmp_path / "end"), jid="second")
        assert end_line(bench, "second")["limiter"] == "isolated"
        (tmp_path / "end").touch()
        assert end_line(bench, "first")["error_kind"] == "process"
        assert limit.used() == 0
    shard.close()


def test_memory_limit_fails_the_job_that_exceeds_it(bench, redis):
    push(redis, jobs.GreedyWorker, 1_000, jid="small")
    push(redis, jobs.GreedyWorker, 2 << 30, jid="large")
    push(redis, jobs.TinyWorker, jid="tiny")
    assert end_line(bench, "small")["job_status"] == "done"
    assert end_line(bench, "large")["error_kind"] == "memory"
    assert "before the job begins" in end_line(bench, "tiny")["exception.message"]
    (error,) = until(lambda: [one for one in bench.failed if isinstance(one, JobMemoryError)])
    assert error.limit == 1 << 30
    assert lost("GreedyWorker") == 1


@pytest.mark.proves("F27")
def test_timeout_kills_what_hangs_and_its_processes(bench, redis, tmp_path):
    push(redis, jobs.HangWorker, str(tmp_path / "pids"), jid="hang", timeout=0.1)
    line = end_line(bench, "hang")
    assert (line["job_status"], line["error_kind"]) == ("fail", "timeout")
    until(lambda: bench.failed)
    assert type(bench.failed[0]) is JobTimeoutError
    if (tmp_path / "pids").exists():
        assert not any(alive(pid) for pid in (tmp_path / "pids").read_text().split())
    until(lambda: children(bench.isolated._server.popen.pid) == [], "no zombie")


def test_cancellation_asks_the_job_and_then_kills_it(bench, redis, tmp_path):
    push(redis, jobs.HangWorker, str(tmp_path / "pids"), jid="hangs")
    push(redis, jobs.PatientWorker, str(tmp_path / "runs"), jid="asks")
    until(lambda: (tmp_path / "pids").exists() and (tmp_path / "runs").exists())
    redis.zadd(keys.CANCELLED, {"hangs": 1, "asks": 1})
    bench.cancellations.refresh()
    assert end_line(bench, "asks")["job_status"] == end_line(bench, "hangs")["job_status"] == "cancelled"
    assert not any(alive(pid) for pid in (tmp_path / "pids").read_text().split())
    until(bench.done, "both acknowledged")
    assert not bench.failed


def test_cancelled_batch_asks_its_isolated_jobs_and_kills_them(bench, redis, tmp_path):
    push(redis, jobs.HangWorker, str(tmp_path / "pids"), jid="hangs", bid="aw-1")
    push(redis, jobs.PatientWorker, str(tmp_path / "runs"), jid="asks", bid="aw-1")
    until(lambda: (tmp_path / "pids").exists() and (tmp_path / "runs").exists())
    redis.zadd(keys.CANCELLED, {"aw-1": 1})
    bench.cancellations.refresh()
    assert end_line(bench, "asks")["job_status"] == end_line(bench, "hangs")["job_status"] == "cancelled"


@pytest.mark.parametrize("how", ["return", "exit"])
def test_processes_that_a_job_leaves_behind_end_with_it(bench, redis, tmp_path, how):
    push(redis, jobs.LeaveWorker, how, str(tmp_path / "pids"), jid=how)
    assert end_line(bench, how)["job_status"] == ("done" if how == "return" else "fail")
    left = (tmp_path / "pids").read_text().split()
    assert [pid for pid in left if alive(pid)] == [], "a daemon has survived its job"
    assert not (tmp_path / "pids.atexit").exists(), "the guide says that exit handlers do not run"


def test_shutdown_kills_the_processes_and_keeps_the_jobs(bench, redis, tmp_path):
    push(redis, jobs.HangWorker, str(tmp_path / "pids"), jid="hangs")
    until((tmp_path / "pids").exists)
    push(redis, jobs.PatientWorker, str(tmp_path / "runs"), jid="asks")
    until((tmp_path / "runs").exists)
    bench.runs.interrupted = True
    assert end_line(bench, "asks")["job_status"] == "done"
    until(lambda: redis.llen(WORKING) == 1, "its end is acknowledged")
    bench.runs.stopping = bench.runs.deadline_passed = True
    bench.processor.stop()
    bench.processor.cancel_async(30)
    assert not any(alive(pid) for pid in (tmp_path / "pids").read_text().split())
    until(lambda: bench.processor.join(0.1))
    assert redis.llen(WORKING) == 1
    server = bench.isolated._server.popen.pid
    bench.processor.close()
    assert not alive(server)


def test_death_of_the_server_fails_its_jobs_only(bench, redis, tmp_path):
    push(redis, jobs.HangWorker, str(tmp_path / "pids"), jid="hangs")
    until((tmp_path / "pids").exists)
    os.kill(bench.isolated._server.popen.pid, signal.SIGKILL)
    assert end_line(bench, "hangs")["error_kind"] == "process"
    pids = (tmp_path / "pids").read_text().split()
    until(lambda: not any(alive(pid) for pid in pids), "the job's processes end with the server")
    push(redis, jobs.AsyncWorker, jid="next")
    assert end_line(bench, "next")["job_status"] == "done"


@pytest.mark.proves("R25")
def test_turn_of_a_suspect_begins_when_its_process_can(bench, redis, tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'free')!r}):\n    time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry._registry, "loaded", {"slow_module"})
    bench.isolated._server = ServerProcess()

    class PlainWorker(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self) -> None: ...

    # After two deaths a turn lasts up to 5 s.
    push(redis, jobs.AsyncWorker, jid="isolated", aw_suspect=True, aw_death_count=2)
    until(lambda: bench.isolated._server.popen, "the modules are loading")
    push(redis, PlainWorker, jid="plain", aw_suspect=True)
    assert end_line(bench, "plain")["job_status"] == "done"
    assert len(redis.hkeys(keys.process(IDENTITY))) == 1, "only the start of the other suspect is noted"
    (tmp_path / "free").touch()
    assert end_line(bench, "isolated")["job_status"] == "done"


def test_server_process_ends_with_its_socket_and_writes_nothing(capfd):
    server = ServerProcess()
    # The byte that says that it is ready stays unread, so the end of the socket is an error (ECONNRESET) at the other end.
    wait_until_ready(os.dup(server.open().fileno()), 60.0, lambda: False)
    process = server.popen
    server.close()
    assert process.wait(60) == 0
    assert capfd.readouterr() == ("", "")


def test_signals_at_the_end_of_the_server_write_nothing(capfd):
    server = ServerProcess()
    wait_until_ready(os.dup(server.open().fileno()), 60.0, lambda: False)
    process = server.popen
    server.forget()
    # As the system does when the thread that started it ends, and a supervisor to the whole group.
    with suppress(ProcessLookupError):
        while process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0
    assert capfd.readouterr() == ("", "")
