"""Help the tests of the core: wait for a condition, build parts on a real server, start real worker processes."""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from redis import Redis

from framework.fetch.unit_of_work import UnitOfWork
from framework.settings.urls import parse_redis_url
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from framework.telemetry import logs
from framework.wire import keys
from tests import log_lines
from tests.fork_server import FORK_SERVER
from tests.servers.guarded import PASSWORD, name_of, with_all_rights

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_JOBS = ROOT / "tests" / "process" / "sample_jobs.py"
IDENTITY = "host:1:000000000abc"
RUBY = "ruby:1:0123456789ab"
"""The identity of a process of Ruby."""

STARTED = 1_750_000_000.5

HURRIED = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, record_period_s=0.2))
from framework.cli.worker import main
main()
"""
"""The code of a worker that writes its record and reads operators' requests and pauses each 0.2 s instead of each 5 s."""

ALL_EXAMPLES = "TESTS_ALL_EXAMPLES"
"""A variable in the environment of the test run: property tests try all of their examples."""

DIED = "component.died"
"""The event of a dead thread of the framework: a process of a test logs it only if the test asks for it."""


ON_CLUSTER = "TESTS_ON_CLUSTER"
"""A variable in the environment of the test run: the shards of the tests are hash tags of clusters."""


def until(condition: Callable[[], Any], what: str = "", timeout_s: float = 60.0) -> Any:
    """Return what ``condition`` returns as soon as it is true; fail after ``timeout_s``. A passing test never waits that long."""
    started = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - started
        if waited_s > timeout_s:
            pytest.fail(f"not true within {timeout_s:g} s: {what or condition}")
        # A tenth longer than the condition needed: a look at a long log or at a server costs milliseconds of a processor.
        time.sleep(min(max(0.005, waited_s / 10), 0.05))
    return found


def examples(count: int) -> int:
    """Return how many examples a property test tries: ``count`` in campaigns and for mutants, else a fifth of it, at least five."""
    return count if ALL_EXAMPLES in os.environ else max(5, count // 5)


def between_steps(act: Callable[[], Any], interfere: Callable[[], Any]) -> Any:
    """Return what ``act`` returns, with ``interfere`` called between any two steps of the interpreter in the framework's code.

    This tries every place at which another thread could run; it needs no thread.
    """

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(f"{ROOT}/framework/"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            interfere()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return act()
    finally:
        sys.settrace(before)


@contextmanager
def server_lines(level: str) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Make a pipe the server log; yield a function that closes the log and returns its lines, parsed."""
    reader, writer = os.pipe()
    logs.open_server_log(level, {}, writer)

    def read() -> list[dict[str, Any]]:
        logs.close_server_log()
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            return [json.loads(line) for line in pipe]

    yield read
    logs.close_server_log()


class RecordingTracker:
    """An error tracker that records its reports."""

    def __init__(self) -> None:
        self.captured: list[Any] = []

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str) -> None:
        self.captured.append((error, tags, transaction))

    def close(self) -> None:
        pass


def forked(act: Callable[[], Any]) -> int:
    """Call ``act`` in a forked child; return 0 when it returned, 1 when it raised, a number below 0 when it hung."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def payload(name: str = "Job", **fields: Any) -> dict[str, Any]:
    """Return a payload as Sidekiq writes it."""
    head = {"class": name, "args": [], "queue": "default", "jid": "ab" * 12, "retry": True}
    return {**head, "created_at": STARTED, "enqueued_at": STARTED, **fields}


def encoded(name: str = "Job", **fields: Any) -> bytes:
    return json.dumps(payload(name, **fields), separators=(",", ":")).encode()


def compressed(arguments: list[Any], **fields: Any) -> dict[str, Any]:
    """Return a payload with its arguments compressed as GitLab does it, by the standard library alone."""
    text = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode()
    marks = {"compressed": True, "original_job_size_bytes": len(text), "size_limiter": "validated"}
    return payload(**{"args": [base64.b64encode(zlib.compress(text, 5)).decode()], **marks, **fields})


def decompressed(job: dict[str, Any]) -> dict[str, Any]:
    """Return a payload with readable arguments: with the extra ``fast`` they are compressed to other bytes."""
    if not job.get("compressed"):
        return job
    return {**job, "args": json.loads(zlib.decompress(base64.b64decode(job["args"][0])))}


def is_metric(key: bytes) -> bool:
    """Return whether Sidekiq's Metrics page reads this key, or our page of urgencies; each expires."""
    return re.fullmatch(rb"(j|aw:urgencies:\d+|aw:waits:.+\|\d+)\|[\d|:]+|(h\|)?.+-\d+-\d+:\d+", key) is not None


def unwrapped(data: bytes) -> bytes:
    """Return the malformed bytes that an object of the dead set carries; fail for any other object."""
    fields = json.loads(data)
    assert (fields["class"], fields["args"], fields["retry"]) == ("aw.Malformed", [], 0)
    return base64.b64decode(fields["aw_raw"], validate=True)


def enqueue(redis: Redis, name: str, **fields: Any) -> bytes:
    """Push a job as a producer of any language does."""
    data = encoded(name, **fields)
    queue = fields.get("queue", "default")
    redis.sadd(keys.QUEUES, queue)
    redis.lpush(keys.queue(queue), data)
    return data


def register_process(redis: Redis, info: Any, identity: str = RUBY, **fields: Any) -> None:
    """Write the record of a process as Ruby's Sidekiq does."""
    redis.sadd(keys.PROCESSES, identity)
    text = info if isinstance(info, str) else json.dumps(info)
    redis.hset(identity, mapping={"info": text, "quiet": "false", **fields})


def hold(redis: Redis, data: bytes, identity: str = IDENTITY, queue: str = "default") -> UnitOfWork:
    """Put the job into the working list of ``identity``, as a fetch does."""
    redis.lpush(keys.working(identity), data)
    return UnitOfWork(queue, data)


def endpoint(url: str) -> Endpoint:
    """Return the endpoint of a server, or of a shard on a cluster."""
    if "+cluster" not in url:
        return Endpoint(url)
    parts = parse_redis_url(url)
    login = {"username": parts.username, "password": parts.password}
    options = tuple((name, value) for name, value in login.items() if value)
    return Endpoint("", options=options, cluster=parts.cluster, tag=parts.tag or "")


def opened(url: str, name: str = "main") -> Shard:
    return Shard(name, endpoint(url), role="tests")


@contextmanager
def full_memory(redis: Redis) -> Iterator[None]:
    """Keep the server at maxmemory within the block: it refuses all commands that may use more memory."""
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


class Process:
    """A real worker process or supervisor, and the JSON lines of its log; ``warm``: the fork server starts it."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], *, warm: bool = False) -> None:
        self.may_die = False
        """Whether a thread of the framework may die in this process, because the test asks for it."""
        self._lines: list[dict[str, Any]] = []
        self._lines_end = 0
        """Where in the file the line after ``_lines`` begins: a test looks at a growing log a hundred times."""
        self.log = cwd / f"{time.monotonic_ns()}.log"
        self.errors = self.log.with_suffix(".err")
        with self.log.open("wb") as out, self.errors.open("wb") as err:
            self.popen = (
                FORK_SERVER.start(argv, cwd, env, out, err)
                if warm
                else subprocess.Popen(
                    [sys.executable, *argv],
                    cwd=cwd,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return every complete line, parsed; a line that is not JSON fails the test."""
        with self.log.open("rb") as log:
            log.seek(self._lines_end)
            text = log.read()
        text = text[: text.rfind(b"\n") + 1]
        self._lines += map(json.loads, text.splitlines())
        self._lines_end += len(text)
        return list(self._lines)

    def find(self, **wanted: Any) -> list[dict[str, Any]]:
        return [line for line in self.lines if all(line.get(name) == value for name, value in wanted.items())]

    def line(self, **wanted: Any) -> dict[str, Any]:
        """Wait for a line with these fields, and return the first."""
        self.may_die = self.may_die or wanted.get("event_name") == DIED

        def look() -> list[dict[str, Any]]:
            found = self.find(**wanted)
            if not found and self.popen.poll() is not None:
                found = self.find(**wanted)
                assert found, f"ended with {self.popen.returncode}; no line {wanted}: {self.output}"
            return found

        return until(look, f"a line with {wanted}")[0]

    @property
    def output(self) -> str:
        return f"{self.log.read_text()[-3000:]}\n{self.errors.read_text()[-3000:]}"

    def ready(self) -> "Process":
        self.line(event_name="process.ready")
        return self

    @property
    def identity(self) -> str:
        return str(self.line(event_name="process.ready")["identity"])

    def send(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, return the status."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        return self.popen.wait(90)

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)

    @property
    def deaths(self) -> list[str]:
        """Return the lines about dead threads of the framework, unless the test asks for one (``line``, ``may_die``)."""
        lines = self.log.read_text(errors="replace").splitlines() if not self.may_die else []
        return [line[:2_000] for line in lines if f'"event_name":"{DIED}"' in line]


_OPERATOR_COMMANDS = ("migrate_jobs", "migrate-jobs", "jobs", "store", "flags", "cron", "dashboard", "shards", "tasks")
_ROLES_OF_COMMANDS = ("operator", "read-only")
_READ_ONLY_COMMANDS = ("diagnose", "retired", "route", "exporter")


def role_of(argv: Sequence[str]) -> str:
    """Return the role of a program: a command has that of its name, all else is a worker."""
    name = argv[2] if tuple(argv[:2]) == ("-m", "framework") else Path(argv[0]).name
    if name in _OPERATOR_COMMANDS:
        return "operator"
    return "read-only" if name in _READ_ONLY_COMMANDS else "worker"


class Site:
    """A small installation: a folder with config/ and a module ``jobs``. Its processes end with the test.

    On each shard of config/redis.yml they have the rights of their roles and no more, unless the file or the shard's URL variable
    names other credentials. Jobs of tests write that they ran to ``PROOF_URL``, whose user has all rights.

    ``warm``: the fork server (``tests/fork_server.py``) starts its processes.
    """

    def __init__(self, folder: Path, url: str, second_url: str | None = None, *, warm: bool = False) -> None:
        self.folder = folder
        self.warm = warm
        self.url = url
        self.proofs_url = with_all_rights(url)
        """The URL to which jobs of tests write that they ran."""
        self.processes: list[Process] = []
        shutil.copy(SAMPLE_JOBS, folder / "jobs.py")
        shards = {"main": {"url": url}} | ({"second": {"url": second_url}} if second_url else {})
        self.write("redis.yml", {"shards": shards})

    def write(self, name: str, content: Any) -> None:
        """Write a file of config/, as JSON unless the content is text: JSON is YAML."""
        (self.folder / "config").mkdir(exist_ok=True)
        (self.folder / "config" / name).write_text(content if isinstance(content, str) else json.dumps(content))

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "FRAMEWORK_CONFIG_DIR": str(self.folder / "config"),
            "PROOF_URL": self.proofs_url,
            # A test may write a module twice within one second and with one size. Python would take its old bytecode for fresh.
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *argv: str, **env: str) -> Process:
        process = Process(argv, self.folder, self.environment(role_of(argv), **env), warm=self.warm)
        self.processes.append(process)
        return process

    def worker(self, *options: str, **env: str) -> Process:
        """Start ``scripts/worker`` on the sample jobs."""
        return self.start(str(ROOT / "scripts" / "worker"), "-r", "jobs", *options, **env)

    def hurried_worker(self, *options: str, **env: str) -> Process:
        """Start a worker that writes its record often: see ``HURRIED``."""
        return self.start("-c", HURRIED, "-r", "jobs", *options, **env)

    def run(
        self, *argv: str, role: str | None = None, timeout_s: float = 90, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a Python command to its end; ``-c CODE`` runs as a producer, unless ``role`` names another role."""
        environment = self.environment(role or ("producer" if argv[0] == "-c" else role_of(argv)), **env)
        if self.warm:
            return FORK_SERVER.run(argv, self.folder, environment, timeout=timeout_s)
        return subprocess.run(
            [sys.executable, *argv],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            check=False,
            text=True,
            timeout=timeout_s,
        )

    def environment(self, role: str, **env: str) -> dict[str, str]:
        """Return the environment of a process with the rights of a role on each shard."""
        found = {**self.env, **env}
        for shard in self._shards_without_credentials(found["FRAMEWORK_CONFIG_DIR"], found.get("REDIS_URL")):
            prefix = f"FRAMEWORK_SHARDS__{shard.upper()}__"
            if "@" in found.get(f"{prefix}URL", ""):
                continue
            found = {f"{prefix}USERNAME": name_of(role), f"{prefix}PASSWORD": PASSWORD} | found
        if role in _ROLES_OF_COMMANDS and not self._names_workers(Path(found["FRAMEWORK_CONFIG_DIR"])):
            # By default a command imports `workers`, the examples of this checkout: a tenth of a second.
            found = {"FRAMEWORK_WORKERS_MODULE": "jobs"} | found
        return found

    def _names_workers(self, config: Path) -> bool:
        """Return whether the files name the workers of the application."""
        file = config / "application.yml"
        own = self.folder / "workers"
        return own.exists() or (file.exists() and "workers_module" in file.read_text())

    def _shards_without_credentials(self, config: str, main: str | None) -> Iterator[str]:
        """Yield the shards without credentials of their own; ``main``: a URL that replaces that of the file."""
        try:
            shards = yaml.safe_load((Path(config) / "redis.yml").read_text())["shards"]
        except (OSError, yaml.YAMLError, TypeError, KeyError):
            shards = {}
        if main:
            shards = {**shards, "main": {"url": main}}
        for name, shard in shards.items():
            url = shard.get("url", "")
            if "@" not in url and url != "embedded" and not {"username", "password"} & set(shard):
                yield name

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            log_lines.check_output(process.log.read_bytes())
        deaths = [death for process in self.processes for death in process.deaths]
        assert not deaths, f"threads of the framework died: {deaths}"
