import json
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fork_server import FORK_SERVER
from tests.harness import Process, Site, payload, until
from tests.servers.proxy import Proxy

HERE = Path(__file__).resolve().parent


def runs(pid: int, command: bytes = b"") -> bool:
    """Return whether a running process has this word in its command line."""
    try:
        # A zombie has no command line.
        shown = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(shown) and command in shown


class Producer:
    """Another process that pushes."""

    def __init__(self, site: Site, **env: str) -> None:
        folder = str(site.folder)
        found = {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}", **env}
        with (site.folder / f"{time.monotonic_ns()}.err").open("wb") as errors:
            argv = [str(HERE / "producer.py")]
            self._talk = FORK_SERVER.talk(argv, site.folder, site.environment("producer", **found), errors)

    def push(self, name: str, *args: object) -> dict:
        """Push one job; return the producer's result: a jid, or an error by name and fields."""
        return json.loads(self._talk.ask(json.dumps([name, args])))

    def close(self) -> None:
        self._talk.close()


class Scene:
    """A Redis of the test's own that has the faults; another one (``proofs``) only stores proofs."""

    def __init__(self, site: Site, server, client, proofs) -> None:
        self.site, self.server, self.client, self.proofs = site, server, client, proofs
        self.url = server.url
        self._made: list = []

    def proxy(self) -> Proxy:
        """Return a proxy in front of the Redis with the faults."""
        proxy = Proxy(self.server.url)
        self._made.append(proxy)
        return proxy

    def worker(self, *options: str, url: str | None = None, **env: str) -> Process:
        flags = options if "-q" in options else ("-q", "default", *options)
        return self.site.worker(*flags, REDIS_URL=url or self.url, **env)

    def cluster(self, *options: str, **env: str) -> Process:
        """Start ``scripts/cluster`` on the queue ``default``, or on the one named first."""
        named = options if options and not options[0].startswith("-") else ("default", *options)
        return self.site.start("-m", "framework", "cluster", "-r", "jobs", *named, REDIS_URL=self.url, **env)

    def module(self, name: str) -> str:
        """Copy a module of workers of this folder to the folder of ``jobs``; return its name."""
        shutil.copy(HERE / f"{name}.py", self.site.folder)
        return name

    def jobs_of(self, place: str) -> list[dict]:
        """Return the jobs of a queue, next to run first, or of a sorted set."""
        if place in ("retry", "dead", "schedule", "interrupted"):
            return [json.loads(data) for data in self.client.zrange(place, 0, -1)]
        return [json.loads(data) for data in reversed(self.client.lrange(f"queue:{place}", 0, -1))]

    def producer(self, url: str | None = None, **env: str) -> Producer:
        producer = Producer(self.site, REDIS_URL=url or self.url, **env)
        self._made.append(producer)
        return producer

    def enqueue(self, name: str, *args: object, queue: str = "default", **fields: object) -> bytes:
        """Write a job as a producer of any language would, with one command."""
        data = json.dumps(payload(name, args=list(args), queue=queue, **fields), separators=(",", ":")).encode()
        self.client.lpush(f"queue:{queue}", data)
        return data

    def proven(self, name: str) -> list[str]:
        return [value.decode() for value in self.proofs.lrange(f"proof:{name}", 0, -1)]

    def wait_for(self, name: str, *values: str, timeout_s: float = 30.0) -> None:
        """Wait until each value was proven; a second proof fails in ``once``."""
        until(lambda: set(values) <= set(self.proven(name)), f"{name}: {values[:5]}", timeout_s)

    def once(self, name: str = "note") -> None:
        """Check that no job ran twice."""
        again = {value: count for value, count in Counter(self.proven(name)).items() if count > 1}
        assert not again

    def let_end(self, name: str) -> None:
        self.proofs.set(f"let_end:{name}", 1)

    def settled(self, process: Process) -> None:
        """Return whether no job is in flight: all were acknowledged."""
        until(lambda: not self.client.llen(f"aw:working:{process.identity}"), "acknowledged")

    def close(self) -> None:
        for one in self._made:
            if isinstance(one, Producer):
                one.close()
        self.site.close()
        lines = [line for process in self.site.processes for line in process.lines]
        for pid in {line["child_pid"] for line in lines if line.get("event_name") == "child.started"}:
            if runs(pid, b"worker"):  # a killed supervisor has left its children
                os.kill(pid, signal.SIGKILL)
        for one in self._made:
            if isinstance(one, Proxy):
                one.__exit__()


@pytest.fixture
def scene(short_path, make_server, redis, redis_url):
    server = make_server()
    site = Site(short_path, redis_url, warm=True)
    shutil.copy(HERE / "sample_jobs.py", short_path / "jobs.py")
    with server.open() as client:
        made = Scene(site, server, client, redis)
        yield made
        made.close()


@pytest.fixture
def site(short_path, redis, redis_url):
    made = Site(short_path, redis_url)
    yield made
    made.close()


@pytest.fixture
def measured(request):
    """Store a figure of a test with its result: ``--junitxml=FILE -o junit_family=xunit1`` shows them."""
    return lambda name, figure: request.node.user_properties.append((name, round(figure, 3)))
