"""Two hosts as network namespaces, each with a cluster, a name and a cable of its own: the cable is cut, and is slow."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest

from framework.wire import keys
from tests.harness import Process, enqueue, until
from tests.process.conftest import proofs, release
from tests.servers.proxy import Proxy

__all__ = ["proofs", "release"]

pytestmark = pytest.mark.campaign


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)


class Host:
    """A machine: its processes reach Redis by a cable alone. Unix sockets pass between namespaces: proofs need no cable."""

    def __init__(self, number, site, redis_url):
        self.name = f"aw{os.getpid() % 100_000}h{number}"
        self._site = site
        near, far = (f"10.213.{number}.{last}" for last in (1, 2))
        ip("netns", "add", self.name)
        ip("link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{near}/30", "dev", self.name)
        ip("-n", self.name, "addr", "add", f"{far}/30", "dev", "eth0")
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "link", "set", "eth0", "up")
        self.join()
        self.proxy = Proxy(redis_url, near)

    def join(self):
        ip("link", "set", self.name, "up")

    def cut(self):
        """Let no packet pass in either direction; nobody is told."""
        ip("link", "set", self.name, "down")

    def cluster(self):
        """Start a cluster on this host."""
        inside = 'hostname "$1"; shift; exec "$@"'
        command = [sys.executable, "-m", "framework", "cluster", "-r", "jobs", "default"]
        code = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        before = ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", inside, "sh", self.name]
        process = Process(
            ["-c", code, *before, *command],
            self._site.folder,
            self._site.environment("worker", REDIS_URL=self.proxy.url),
        )
        self._site.processes.append(process)
        return process

    def close(self):
        if hasattr(self, "proxy"):
            self.proxy.close()
        with suppress(subprocess.CalledProcessError):
            ip("netns", "del", self.name)


@pytest.fixture
def hosts(site, redis_url):
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("only root has network namespaces")
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            try:
                made.append(Host(number, site, redis_url))
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr}")
            stack.callback(made[-1].close)
        yield made


def test_jobs_of_a_host_that_is_cut_off_run_on_the_other(hosts, redis, proofs, release):
    first, second = hosts
    away = first.cluster().ready()
    enqueue(redis, "LongWorker", args=["a"], jid="a" * 24)
    proofs("begun:a")
    here = second.cluster().ready()
    first.cut()
    # Its lease ends after 15 s, and a sweep follows.
    assert len(set(proofs("begun:a", 2))) == 2
    enqueue(redis, "NoopWorker", jid="b" * 24)
    assert proofs("noop") == ["b" * 24]
    release("a")
    assert len(set(proofs("ended:a", 2))) == 2
    assert here.line(job_status="done", jid="a" * 24)
    until(lambda: not redis.llen(keys.working(here.identity)), "acknowledged")

    first.join()
    # The host that was away may not acknowledge what another has run, and takes new jobs.
    away.line(job_status="fenced")
    assert here.end() == 0
    enqueue(redis, "LongWorker", args=["c"], jid="c" * 24)
    proofs("begun:c")
    release("c")
    away.line(job_status="done", jid="c" * 24)
    assert away.end() == 0
    assert (redis.llen(keys.queue("default")), redis.zcard(keys.RETRY), redis.zcard(keys.DEAD)) == (0, 0, 0)
    assert [name for name in redis.scan_iter(match=keys.working("*")) if redis.llen(name)] == []
    assert [len(proofs(f"begun:{name}")) for name in ("a", "c")] == [2, 1]


def test_slow_cable_takes_no_job_from_a_host(hosts, redis, proofs, release):
    first, second = hosts
    first.proxy.delay_s = 0.05
    slow = first.cluster().ready()
    enqueue(redis, "LongWorker", args=["a"], jid="a" * 24)
    proofs("begun:a")
    here = second.cluster().ready()
    jids = [f"{number:024}" for number in range(50)]
    for jid in jids:
        enqueue(redis, "NoopWorker", jid=jid)
    assert sorted(proofs("noop", 50)) == jids
    release("a")
    slow.line(job_status="done", jid="a" * 24)
    assert (slow.end(), here.end()) == (0, 0)
    assert (len(proofs("begun:a")), len(proofs("noop"))) == (1, 50)
    assert [name for name in redis.scan_iter(match=keys.working("*")) if redis.llen(name)] == []
