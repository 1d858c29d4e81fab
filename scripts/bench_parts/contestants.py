"""Who takes part, and how each one's worker is started."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = Path(__file__).resolve().parent / "jobs"
SHARDS = ("main", "shard_2", "shard_3", "shard_4")


@dataclass(frozen=True)
class Launch:
    """What a worker shall do."""

    kind: str
    concurrency: int = 10
    queues: tuple[str, ...] = ("default",)
    """Names; ours may have a weight behind a comma."""
    shard: str = "main"


@dataclass(frozen=True)
class Contestant:
    """One framework in one setting. ``worker`` makes the command from its interpreter and the launch."""

    name: str
    about: str
    client: tuple[str, ...]
    """Command after the interpreter; action and arguments follow."""
    worker: Callable[[str, Launch], list[str]]
    pace: int
    """No-op jobs it does in a second, roughly: how many jobs a run of a few seconds needs."""
    kinds: frozenset[str]
    lock: str | None = None
    """Its environment is made from ``locks/NAME.lock``; without one it runs in ours."""
    ruby: bool = False
    bulk: bool = False
    many_queues: bool = False
    ours: bool = False
    lines: bool = False
    """Start and done lines of each job are written and counted."""
    safe: bool = False
    """By its design a killed worker's jobs come back at the settings measured."""
    same_client: bool = False
    """Another contestant pushes with the same client."""
    queueless: frozenset[str] = frozenset()
    """Kinds that it runs over and over without any queue."""
    env: Mapping[str, str] = field(default_factory=dict)

    def environment(self, port: int, folder: Path, ports: Mapping[str, int] | None = None) -> dict[str, str]:
        """What its processes read: the Redis at ``port``, for ours one Redis per shard of ``ports``."""
        url = f"redis://127.0.0.1:{port}/0"
        common = {"BENCH_REDIS_PORT": str(port), "PYTHONPATH": str(JOBS), "PYTHONUNBUFFERED": "1", **self.env}
        if not self.ours:
            return common | {"REDIS_URL": url}
        shards = {name: {"url": f"redis://127.0.0.1:{at}/0"} for name, at in (ports or {}).items()}
        config = folder / f"config-{port}-{len(shards)}"
        config.mkdir(exist_ok=True)
        (config / "redis.yml").write_text(json.dumps({"shards": {"main": {"url": url}} | shards}))
        path = os.pathsep.join([str(JOBS), str(ROOT)])
        sharded = {"BENCH_SHARDS": str(len(shards))} if shards else {}
        return common | {"PYTHONPATH": path, "FRAMEWORK_CONFIG_DIR": str(config)} | sharded


def _ours(python: str, launch: Launch) -> list[str]:
    queues = [part for queue in launch.queues for part in ("-q", queue)]
    command = [python, str(ROOT / "scripts" / "worker"), "-r", "ours", "-c", str(launch.concurrency), *queues]
    return [*command, "--shard", launch.shard]


def _sidekiq(_ruby: str, launch: Launch) -> list[str]:
    queues = [part for queue in launch.queues for part in ("-q", queue)]
    jobs = str(JOBS / "sidekiq_jobs.rb")
    return ["sidekiq", "-e", "production", "-r", jobs, "-c", str(launch.concurrency), *queues]


def _bare(python: str, launch: Launch) -> list[str]:
    return [python, str(JOBS / "bare.py"), launch.kind, str(launch.concurrency)]


def _client(module: str) -> tuple[str, ...]:
    return (str(JOBS / "client.py"), module)


_PLAIN = frozenset({"noop", "cpu", "io", "payload", "latency"})
_OURS = _PLAIN | {"async", "mixed", "shards"}

CONTESTANTS: tuple[Contestant, ...] = (
    Contestant(
        "framework", "ours: scripts/worker, default middlewares, reliable fetch, no job lines", _client("ours"), _ours,
        pace=100_000, kinds=_OURS, bulk=True, many_queues=True, ours=True, safe=True,
        env={"FRAMEWORK_LOGGING__JOBS": "false"},
    ),
    Contestant(
        "framework-lines", "ours, start and done line of each job written to a file", _client("ours"), _ours,
        pace=40_000, kinds=frozenset({"noop", "cpu", "payload", "latency"}), ours=True, lines=True, safe=True,
        env={"FRAMEWORK_LOGGING__JOBS": "true"},
    ),
    Contestant(
        "sidekiq", "Debian's Ruby Sidekiq (BRPOP: loses what a killed process had fetched)",
        (str(JOBS / "sidekiq_client.rb"),), _sidekiq, pace=15_000, kinds=_PLAIN, ruby=True, bulk=True, many_queues=True,
    ),
    Contestant(
        "bare", "redis-py and the job's body alone: the floor or ceiling of each workload", _client("bare"), _bare,
        pace=12_000, kinds=_PLAIN | {"async"}, bulk=True, queueless=frozenset({"cpu", "io", "async"}),
    ),
)  # fmt: skip

BY_NAME = {contestant.name: contestant for contestant in CONTESTANTS}


def interpreter(contestant: Contestant, environment: Path | None) -> str:
    """What its programs run in: Ruby, the Python of its own environment, or ours."""
    if contestant.ruby:
        return "ruby"
    return str(environment / "bin" / "python") if environment else sys.executable
