"""Count the commands of an idle process over simulated time, and check how soon it sees keys that it does not read.

The periodic tasks of a real process take their steps in this thread, at the times of a simulated clock. So the counts do not
depend on the machine.
"""

import json
import time

import pytest

from framework.all_settings import load
from framework.declare import registry
from framework.execute.job_log import JobLog
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.process import components
from framework.process.launcher import Launcher
from framework.process.signals import SignalQueue
from framework.process.worker_options import WorkerOptions
from framework.process_clock import process_clock
from framework.route.router import open_router
from framework.shard.shard import Shard
from framework.store.embedded import endpoint_of
from framework.telemetry import logs
from framework.wire import keys
from framework.wiring.worker_process import build_worker
from tests.harness import IDENTITY, encoded
from tests.proofs.machine.worker import close_components

QUEUES = tuple(f"idle-{number}" for number in range(10))
NOT_COUNTED = ("info", "client", "hello", "auth", "select", "config", "command", "ping", "acl", "script")


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class IdleProcess:
    """The periodic tasks of one process that serves ten queues, and their next steps."""

    jitter = 1.0
    """The factor of the periods that are random in production."""

    def __init__(self, settings, clock):
        self._clock = clock
        shard = self._shard = Shard("main", endpoint_of(settings, "main"), role="states")
        options = WorkerOptions("main", tuple((name, 0) for name in QUEUES), 10, 5.0)
        log = JobLog(logs.open_server_log("error", {}), jobs=False)
        self.parts = build_worker(
            settings,
            open_router(settings),
            options,
            shard,
            IDENTITY,
            log,
            supervisor=None,
        )
        launcher = Launcher(self.parts, SignalQueue())
        self.signals = launcher._signals
        launcher._tasks.read_pauses()
        self.parts.parts.refresh()
        # As they start: the lease first.
        self._due = dict.fromkeys((launcher._tasks.lease, *launcher._tasks.others), clock.now)

    def run(self, seconds):
        """Let the tasks take every step of the next ``seconds``."""
        end = self._clock.now + seconds
        while self._step_before(end):
            pass
        self._clock.now = end

    def seconds_until(self, condition):
        """Let the tasks take steps until the condition holds; return the seconds that it took."""
        began = self._clock.now
        while not condition():
            assert self._step_before(began + 60), "a minute has passed"
        return self._clock.now - began

    def close(self):
        close_components(self.parts, self._shard)
        self.signals._reader.close()
        self.signals._writer.close()

    def _step_before(self, end):
        woken = [task for task in self._due if task._wake.is_set()]
        task = woken[0] if woken else min(self._due, key=self._due.__getitem__)
        if not woken and self._due[task] >= end:
            return False
        if not woken:
            self._clock.now = self._due[task]
        task._wake.clear()
        pause_s = task._run_step()
        assert not task._failures
        self._due[task] = self._clock.now + pause_s
        # The leader, which does not run here, would poll now.
        self.parts.capsules.first.fetcher._state.poll_begins()
        self.parts.capsules.first.fetcher._state.poll_ended()
        return True


@pytest.fixture
def idle(redis, redis_url, short_path, monkeypatch):
    """An idle process that runs for half a minute before the test."""
    (short_path / "config").mkdir()
    (short_path / "config" / "redis.yml").write_text(json.dumps({"shards": {"main": {"url": redis_url}}}))
    settings = load({"FRAMEWORK_CONFIG_DIR": str(short_path / "config")}, short_path)
    clock = Clock()
    with monkeypatch.context() as patch, registry.isolated():
        patch.setattr(time, "monotonic", clock)
        patch.setattr(process_clock, "monotonic", clock)
        patch.setattr(components, "jittered", lambda period_s: period_s * process.jitter)
        process = IdleProcess(settings, clock)
        process.run(30)
        yield process
    process.close()
    logs.close_server_log()


def commands(client):
    """Return the number of commands so far, those inside scripts too."""
    rows = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_").partition("|")[0]: row["calls"] for name, row in rows.items()}
    return sum(count for name, count in calls.items() if name not in NOT_COUNTED)


@pytest.mark.proves("R57")
def test_idle_process_ten_queues_sends_few_commands(redis, idle):
    before = commands(redis)
    idle.run(600)
    periodic = (commands(redis) - before) / 600
    moves = len(QUEUES) / idle.parts.timings.block_timeout_s
    # One of them, in the script of the heartbeat, reads the time of the last one: it shows a Redis that came back from a snapshot.
    assert periodic + moves <= 5.0


def test_idle_process_with_limits_reads_only_their_set(redis, idle):
    redis.sadd(keys.LIMITS, keys.limit("Job"))
    idle.run(60)
    before = commands(redis)
    idle.run(600)
    # The set, and its limit's override. To read everything would be 5.9.
    assert (commands(redis) - before) / 600 <= 4.5


def test_idle_process_flag_changed_in_redis_is_read_at_once(redis, idle):
    """A script that finds another flag than the process knows makes it read the flags, even if it had found none."""
    pauses = idle.parts.parts.periodic[0].__self__._state
    set_flag(redis, Flag(pause_flag("Job"), 100.0), None)
    idle.parts.parts.refresh()
    assert pauses.pause_of("Job", None) is None
    pauses.refresh()
    assert pauses.pause_of("Job", None)


def test_idle_process_own_retry_is_checked_at_once(redis, idle):
    redis.zadd(keys.RETRY, {encoded(queue="idle-1"): 1.0})
    idle.parts.poller._timing.expect_retry()
    idle.parts.poller.step()
    assert was_queued(idle, redis)


def held_job(redis):
    job = encoded(queue="idle-1")
    redis.zadd(keys.paused_jobs("Job"), {b'["idle-1"]\n' + job: 1.0})
    redis.sadd(keys.PAUSED_CLASSES, "Job")


def was_queued(process, redis):
    return redis.llen("queue:idle-1")


@pytest.mark.parametrize(
    ("write", "seen", "limit_s"),
    [
        (
            lambda redis: redis.rpush(keys.signals(IDENTITY), "TSTP"),
            lambda process, _: list(process.signals.wait(0)),
            5,
        ),
        (
            lambda redis: redis.sadd(keys.PAUSED, "idle-3"),
            lambda process, _: process.parts.capsules.first.fetcher._pipeline._rotation._paused,
            5,
        ),
        (lambda redis: redis.zadd(keys.RETRY, {encoded(queue="idle-1"): 1.0}), was_queued, 5),
        (held_job, was_queued, 6),
        (lambda redis: redis.lpush(keys.working(IDENTITY), encoded(queue="idle-1")), was_queued, 12),
    ],
    ids=["signal", "paused queue", "due retry", "ended pause", "lost reply"],
)
@pytest.mark.parametrize("later_s", [0.0, 0.1, 2.5, 4.9, 5.1])
def test_idle_process_sees_a_new_key_in_time(redis, idle, write, seen, limit_s, later_s):
    """The limits are the longest periods of reads that skip no key: 5 s, a sweep of 6 s, and two sweeps."""
    idle.jitter = 1.2
    idle.run(later_s)
    write(redis)
    assert idle.seconds_until(lambda: seen(idle, redis)) <= limit_s
