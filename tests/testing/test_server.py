"""The server of the fakes: it belongs to its process, ends with it, and is never that of the application."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from framework.testing import ModeError, fake, server
from framework.testing.server import CLOCK_KEY
from tests.harness import until
from tests.push.conftest import worker
from tests.servers.guarded import with_all_rights

ROOT = Path(__file__).resolve().parent.parent.parent
SHOW_PID = """
from framework.testing import fake
with fake() as jobs:
    print(jobs.client.shards["main"].client.info()["process_id"], flush=True)
    {then}
"""


def run(folder: Path, then: str) -> "subprocess.Popen[str]":
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    code = SHOW_PID.format(then=then)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and b"valkey" in Path(f"/proc/{pid}/cmdline").read_bytes()


def pid_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_server_ends_with_its_process_and_leaves_nothing(tmp_path):
    with run(tmp_path, "pass") as process:
        pid = pid_of(process)
        assert process.wait() == 0
    assert not is_running(pid)
    assert list(tmp_path.glob("application-worker-fake-*")) == []


def test_server_of_a_killed_process_ends_too(tmp_path, monkeypatch):
    with run(tmp_path, "input()") as process:
        pid = pid_of(process)
        assert is_running(pid)
        process.send_signal(signal.SIGKILL)
    until(lambda: not is_running(pid))
    # The next process removes the folder.
    (left,) = tmp_path.glob("application-worker-fake-*")
    os.utime(left, (1, 1))
    with run(tmp_path, "pass") as process:
        assert process.wait() == 0
    assert list(tmp_path.glob("application-worker-fake-*")) == []


def test_server_survives_the_thread_of_the_first_fake(tmp_path):
    code = (
        "import threading\nfrom framework.testing import fake\n"
        "def use():\n    with fake() as jobs:\n        jobs.clear()\n"
        "for _ in range(2):\n    one = threading.Thread(target=use)\n    one.start()\n    one.join()\nuse()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


@pytest.fixture
def without_a_program(monkeypatch):
    """Let the process of the test start anew, on a host without a server's program."""
    monkeypatch.setattr(server, "find_server_binaries", dict)
    monkeypatch.setattr(server, "_started", server._Started())
    monkeypatch.delenv("REDIS_URL", raising=False)


def test_fake_without_any_server_says_what_to_install(application, without_a_program):
    with (
        pytest.raises(ModeError, match=r"none is installed: .*PATH\[testing\].*redis-server; or set REDIS_URL"),
        fake(),
    ):
        pass


def test_redis_url_gives_empty_databases_of_other_numbers(application, without_a_program, monkeypatch, redis_url):
    url = with_all_rights(redis_url)
    monkeypatch.setenv("REDIS_URL", url)
    kept = {number: redis.Redis.from_url(url, db=number) for number in (0, 15)}
    for client in kept.values():
        client.set("kept", 1)
    with fake() as jobs:
        numbers = {one.database.endpoint.options[-1][1] for one in jobs.client.fake_shards.values()}
        assert numbers == {13, 14}
        counting = worker("Row", queue="default")
        counting.perform_async()
        clients = [redis.Redis.from_url(url, db=number) for number in numbers]
        assert sum(client.llen("queue:default") for client in clients) == 1
    for client in clients:
        # The mark says to the next process that it may use the database.
        assert client.keys() == [CLOCK_KEY.encode()]
        client.flushdb()
    assert [client.get("kept") for client in kept.values()] == [b"1", b"1"]


def test_redis_url_of_production_is_not_used(application, without_a_program, monkeypatch, redis_url):
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_ENV", "production")
    with pytest.raises(ModeError, match="none is installed"), fake():
        pass


def test_nested_fakes_use_databases_of_their_own(application):
    with fake() as outer, fake() as inner:
        found = [one.database for jobs in (outer, inner) for one in jobs.client.fake_shards.values()]
    assert len({id(one) for one in found}) == 4
    with fake() as again:
        assert [one.database for one in again.client.fake_shards.values()] == found[:2]
