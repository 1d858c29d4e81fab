"""Define the contestants, and how each one's worker is started."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = Path(__file__).resolve().parent / "jobs"
SHARDS = ("main", "shard_2", "shard_3", "shard_4")
GUIDELINE = "guideline"
"""The kind of a mix of jobs whose classes are in a module of their own."""


@dataclass(frozen=True)
class Launch:
    """The start of a worker."""

    kind: str
    concurrency: int = 10
    queues: tuple[str, ...] = ("default",)
    """The names; those of the framework and of Sidekiq may have a weight behind a comma."""
    shard: str = "main"
    module: str = "framework_jobs"
    """The module with the framework's classes."""


@dataclass(frozen=True)
class Contestant:
    """One framework in one setting. ``worker`` makes the command from its interpreter and the launch."""

    name: str
    about: str
    client: tuple[str, ...]
    """Command after the interpreter; action and arguments follow."""
    worker: Callable[[str, Launch], list[str]]
    pace: int
    """The no-op jobs it runs in a second, roughly: how many jobs a run of a few seconds needs."""
    kinds: frozenset[str]
    lock: str | None = None
    """Its environment is made from ``locks/NAME.lock``; without one it runs in the project's."""
    ruby: bool = False
    bulk: bool = False
    many_queues: bool = False
    is_framework: bool = False
    lines: bool = False
    """Whether start and done lines of each job are written and counted."""
    safe: bool = False
    """Whether by its design a killed worker's jobs return, with the measured settings."""
    same_client: bool = False
    """Another contestant pushes with the same client."""
    queueless: frozenset[str] = frozenset()
    """Kinds that it runs over and over without any queue."""
    env: Mapping[str, str] = field(default_factory=dict)

    def environment(
        self, port: int, folder: Path, ports: Mapping[str, int] | None = None, *, recorded: bool = True
    ) -> dict[str, str]:
        """Return the variables of its processes: the Redis at ``port``, for the framework one Redis per shard of
        ``ports``; with a database of tasks if jobs are ``recorded``, which a worker loads during its first jobs.
        """
        url = f"redis://127.0.0.1:{port}/0"
        common = {
            "BENCH_REDIS_PORT": str(port),
            "PYTHONPATH": str(JOBS),
            "PYTHONUNBUFFERED": "1",
            "RQ_REDIS_URL": url,
            **self.env,
        }
        if not self.is_framework:
            return common | {"REDIS_URL": url}
        shards = {name: {"url": f"redis://127.0.0.1:{at}/0"} for name, at in (ports or {}).items()}
        config = folder / f"config-{port}-{len(shards)}"
        config.mkdir(exist_ok=True)
        (config / "redis.yml").write_text(json.dumps({"shards": {"main": {"url": url}} | shards}))
        path = os.pathsep.join([str(JOBS), str(ROOT)])
        sharded = {"BENCH_SHARDS": str(len(shards))} if shards else {}
        # For the class whose jobs are recorded: on SQLite, in the process itself.
        tasks = {"FRAMEWORK_TASKS__URL": f"sqlite:///{config}/tasks.db"} if recorded else {}
        return common | {"PYTHONPATH": path, "FRAMEWORK_CONFIG_DIR": str(config)} | sharded | tasks


def _framework(python: str, launch: Launch) -> list[str]:
    queues = [part for queue in launch.queues for part in ("-q", queue)]
    module = "guideline_jobs" if launch.kind == GUIDELINE else launch.module
    command = [python, str(ROOT / "scripts" / "worker"), "-r", module, "-c", str(launch.concurrency), *queues]
    return [*command, "--shard", launch.shard]


def _sidekiq(_ruby: str, launch: Launch) -> list[str]:
    queues = [part for queue in launch.queues for part in ("-q", queue)]
    jobs = str(JOBS / "sidekiq_jobs.rb")
    return ["sidekiq", "-e", "production", "-r", jobs, "-c", str(launch.concurrency), *queues]


def _bare(python: str, launch: Launch) -> list[str]:
    return [python, str(JOBS / "bare.py"), launch.kind, str(launch.concurrency)]


def _celery(python: str, launch: Launch) -> list[str]:
    options = ["--pool", "threads", "-c", str(launch.concurrency), "-l", "WARNING"]
    return [python, "-m", "celery", "-A", "celery_jobs", "worker", *options]


def _dramatiq(python: str, launch: Launch) -> list[str]:
    return [python, "-m", "dramatiq", "dramatiq_jobs", "--processes", "1", "--threads", str(launch.concurrency)]


def _rq(python: str, launch: Launch) -> list[str]:
    # One job at a time: it has no threads.
    return [python, "-m", "rq.cli", "worker", "-q", "-w", "rq.worker.SimpleWorker", *launch.queues]


def _huey(python: str, launch: Launch) -> list[str]:
    options = ["-w", str(launch.concurrency), "-k", "thread", "-q"]
    return [python, "-m", "huey.bin.huey_consumer", "huey_jobs.huey", *options]


def _taskiq(python: str, launch: Launch) -> list[str]:
    options = ["--workers", "1", "--max-async-tasks", str(launch.concurrency), "--log-level", "WARNING"]
    return [python, "-m", "taskiq", "worker", "taskiq_jobs:broker", *options]


def _saq(python: str, _launch: Launch) -> list[str]:
    return [python, "-m", "saq", "saq_jobs.settings"]


def _arq(python: str, _launch: Launch) -> list[str]:
    return [python, "-m", "arq", "arq_jobs.WorkerSettings", "--custom-log-dict", "arq_jobs.LOGGING"]


def _client(module: str) -> tuple[str, ...]:
    return (str(JOBS / "client.py"), module)


_SIDEKIQ_CLIENT = (str(JOBS / "sidekiq_client.rb"),)
_PLAIN = frozenset({"noop", "cpu", "io", "payload", "latency"})
_FRAMEWORK_KINDS = _PLAIN | {"async", "async25", "mixed", GUIDELINE}

CONTESTANTS: tuple[Contestant, ...] = (
    Contestant(
        "framework", "scripts/worker, default middlewares, reliable fetch, no job lines", _client("framework_jobs"), _framework,
        pace=100_000, kinds=_FRAMEWORK_KINDS, bulk=True, many_queues=True, is_framework=True, safe=True,
        env={"FRAMEWORK_LOGGING__JOBS": "false"},
    ),
    Contestant(
        "framework-lines", "scripts/worker, start and done line of each job written to a file", _client("framework_jobs"), _framework,
        pace=40_000, kinds=frozenset({"noop", "cpu", "payload", "latency", GUIDELINE}), is_framework=True, lines=True, safe=True,
        env={"FRAMEWORK_LOGGING__JOBS": "true"},
    ),
    Contestant(
        "framework-metrics", "the first one, and it counts for /metrics", _client("framework_jobs"), _framework,
        pace=90_000, kinds=frozenset({"noop"}), is_framework=True, safe=True,
        env={"FRAMEWORK_LOGGING__JOBS": "false", "FRAMEWORK_HEALTH__PORT": "0"},
    ),
    Contestant(
        "framework-all", "both lines of each job in a file, and it counts for /metrics", _client("framework_jobs"), _framework,
        pace=40_000, kinds=frozenset({"noop"}), is_framework=True, lines=True, safe=True,
        env={"FRAMEWORK_LOGGING__JOBS": "true", "FRAMEWORK_HEALTH__PORT": "0"},
    ),
    Contestant(
        "sidekiq", "Debian's Ruby Sidekiq (BRPOP: loses what a killed process had fetched)",
        _SIDEKIQ_CLIENT, _sidekiq, pace=15_000, kinds=_PLAIN | {GUIDELINE}, ruby=True, bulk=True, many_queues=True,
    ),
    Contestant(
        "sidekiq-lines", "the same, start and done line of each job written to a file by its own JSON logger",
        _SIDEKIQ_CLIENT, _sidekiq, pace=8_000, kinds=frozenset({"noop", GUIDELINE}), ruby=True, lines=True,
        env={"BENCH_LINES": "true"},
    ),
    Contestant(
        "huey", "Huey, 10 threads (BRPOP: loses what a killed process had)", _client("huey_jobs"), _huey,
        pace=9_000, kinds=_PLAIN, lock="huey",
    ),
    Contestant(
        "taskiq-stream", "Taskiq on a Redis stream, 10 tasks", _client("taskiq_jobs"), _taskiq,
        pace=4_500, kinds=_PLAIN, lock="taskiq", safe=True, env={"BENCH_BROKER": "stream"},
    ),
    Contestant(
        "taskiq-list", "Taskiq on a Redis list, 10 tasks (loses what a killed process had)", _client("taskiq_jobs"),
        _taskiq, pace=4_000, kinds=_PLAIN, lock="taskiq", env={"BENCH_BROKER": "list"},
    ),
    Contestant(
        "dramatiq", "Dramatiq, 1 process, 10 threads", _client("dramatiq_jobs"), _dramatiq,
        pace=2_500, kinds=_PLAIN, lock="dramatiq", safe=True,
    ),
    Contestant(
        "saq", "SAQ, 10 tasks (does not repeat a killed process's job at its defaults)", _client("saq_jobs"), _saq,
        pace=2_800, kinds=_PLAIN, lock="saq",
    ),
    Contestant(
        "arq-tuned", "ARQ, 100 tasks, polling every 10 ms", _client("arq_jobs"), _arq,
        pace=2_800, kinds=_PLAIN - {"io"}, lock="arq", safe=True, env={"BENCH_ARQ": "tuned"},
    ),
    Contestant(
        "arq", "ARQ at its defaults, 10 tasks, polling every 0.5 s", _client("arq_jobs"), _arq,
        pace=200, kinds=_PLAIN, lock="arq", safe=True, same_client=True,
    ),
    Contestant(
        "celery", "Celery, 10 threads, early acknowledgement (loses what runs in a killed process)",
        _client("celery_jobs"), _celery, pace=1_500, kinds=_PLAIN, lock="celery",
    ),
    Contestant(
        "rq", "RQ's SimpleWorker: one job at a time, no fork (a killed process's job is marked as failed)",
        _client("rq_jobs"), _rq, pace=300, kinds=_PLAIN - {"io"}, lock="rq", bulk=True,
    ),
    Contestant(
        "bare", "redis-py and the job's body alone: the floor or ceiling of each workload", _client("bare"), _bare,
        pace=12_000, kinds=_PLAIN | {"async", "async25"}, bulk=True, queueless=frozenset({"cpu", "io", "async", "async25"}),
    ),
)  # fmt: skip

BY_NAME = {contestant.name: contestant for contestant in CONTESTANTS}


def interpreter(contestant: Contestant, environment: Path | None) -> str:
    """Return the interpreter of its programs: Ruby, the Python of its own environment, or the project's."""
    if contestant.ruby:
        return "ruby"
    return str(environment / "bin" / "python") if environment else sys.executable
