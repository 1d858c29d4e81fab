"""Run processes whose Redis is set by variables alone: sentinels, TLS, and servers that cannot serve."""

import json
import os
import shutil
import signal
import subprocess

import pytest
import redis
from redis.exceptions import RedisError

from tests.chaos.test_access import Authority
from tests.conftest import binary_or_skip
from tests.fork_server import FORK_SERVER
from tests.harness import until
from tests.store.test_connect import free_port

HELLO = '''
from framework import ApplicationWorker


class HelloWorker(ApplicationWorker):
    """Say hello."""

    feature_category = "not_owned"

    def perform(self, name: str) -> None:
        print(f"hello {name}", flush=True)
'''
PUSH = "from hello import HelloWorker; print(HelloWorker.perform_async('you'))"
IMPATIENT = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, redis_patience_s=0.1))
from framework.cli.worker import main
main()
"""
SECRET, OWN_SECRET = "of-the-redis", "of-the-sentinel"


class Installation:
    """A folder with one worker and an empty config folder; servers and processes that end with the test."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []
        (folder / "hello.py").write_text(HELLO)
        (folder / "none").mkdir()

    def redis(self, *lines, sentinel=False, secure=False):
        while True:
            # The bus of a cluster is 10,000 above.
            port = next(port for port in iter(free_port, None) if port < 55_536)
            server, log = self._start_redis(port, lines, sentinel=sentinel, secure=secure)
            until(lambda server=server, log=log: server.poll() is not None or is_ready(log), "the server listens")
            if server.poll() is None:
                return port
            # Another program took one of the ports first.

    def _start_redis(self, port, lines, *, sentinel, secure):
        place = self.folder / str(port)
        place.mkdir()
        at = [f"tls-port {port}", "port 0"] if secure else [f"port {port}"]
        (place / "conf").write_text(
            "\n".join([*at, "bind 127.0.0.1", f"dir {place}", f"logfile {place}/log", 'save ""', *lines, ""])
        )
        argv = [str(binary_or_skip("redis-server")), str(place / "conf"), *(["--sentinel"] if sentinel else [])]
        server = subprocess.Popen(argv)
        self.running.append(server)
        return server, place / "log"

    def environment(self, **env):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FRAMEWORK_", "REDIS_URL"))}
        return {**kept, "PYTHONPATH": str(self.folder), "FRAMEWORK_CONFIG_DIR": "none", **env}

    def run(self, *argv, **env):
        return FORK_SERVER.run(argv, self.folder, self.environment(**env), timeout=120, together=True)

    def push(self, **env):
        return self.run("-c", PUSH, **env).stdout

    def refused(self, **env):
        """Start a worker with a short boot timeout; return its exit status and its output."""
        ended = self.run("-c", IMPATIENT, "-r", "hello", "-q", "hello", **env)
        return ended.returncode, ended.stdout

    def works(self, **env):
        """Push a job and run it in a worker."""
        until(lambda: "Error" not in self.push(**env), "a push is accepted")
        log = self.folder / "worker.log"
        argv = ["-m", "framework", "worker", "-r", "hello", "-q", "hello"]
        with log.open("wb") as out:
            worker = FORK_SERVER.start(argv, self.folder, self.environment(**env), out, out)
        self.running.append(worker)
        until(lambda: '"job_status":"done"' in log.read_text() or worker.poll() is not None, "the job is done")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, log.read_text()
        return True


def is_ready(log):
    """Return whether a Redis or a sentinel has written that it listens."""
    return log.exists() and any(words in log.read_text() for words in ("Ready to accept connections", "Sentinel ID is"))


@pytest.fixture
def installation(short_path):
    made = Installation(short_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


@pytest.fixture
def sentinel_port(installation):
    """Return the port of a sentinel with a password of its own, over a Redis with another."""
    port = installation.redis(f"requirepass {SECRET}")
    return installation.redis(
        f"requirepass {OWN_SECRET}",
        f"sentinel monitor house 127.0.0.1 {port} 1",
        f"sentinel auth-pass house {SECRET}",
        sentinel=True,
    )


def test_worker_with_a_sentinel_url_needs_no_config_folder(installation, sentinel_port):
    url = f"redis+sentinel://:{SECRET}@127.0.0.1:{sentinel_port}/house/0?sentinel_password={OWN_SECRET}"
    assert installation.works(REDIS_URL=url)


def test_worker_with_sentinels_by_variables_runs(installation, sentinel_port):
    main = {"SENTINELS": f"127.0.0.1:{sentinel_port}", "SENTINEL_NAME": "house", "SENTINEL_PASSWORD": OWN_SECRET}
    env = {f"FRAMEWORK_SHARDS__MAIN__{key}": value for key, value in {**main, "PASSWORD": SECRET}.items()}
    assert installation.works(**env, FRAMEWORK_ENV="staging")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
@pytest.mark.parametrize("both", [True, False], ids=["both with TLS", "only the sentinel"])
def test_worker_reaches_a_sentinel_with_tls(installation, both):
    authority = Authority(installation.folder)
    authority.certificate("server.pem", 2)
    at = installation.folder
    tls = [f"tls-cert-file {at}/server.pem", f"tls-key-file {at}/server.key", f"tls-ca-cert-file {at}/ca.pem"]
    tls.append("tls-auth-clients no")
    port = installation.redis(*(tls if both else ()), secure=both)
    replication = ["tls-replication yes"] if both else []
    sentinel = installation.redis(
        *tls, *replication, f"sentinel monitor house 127.0.0.1 {port} 1", sentinel=True, secure=True
    )
    if both:
        assert installation.works(REDIS_URL=f"rediss+sentinel://127.0.0.1:{sentinel}/house?ssl_ca_certs={at}/ca.pem")
    else:
        settings = {"FRAMEWORK_SHARDS__MAIN__SENTINEL_TLS__CA_FILE": f"{at}/ca.pem"}
        (at / "none" / "redis.yml").write_text(
            f"shards: {{main: {{sentinels: ['127.0.0.1:{sentinel}'], sentinel_name: house}}}}"
        )
        assert installation.works(**settings)


@pytest.mark.parametrize(
    ("credentials", "name", "query", "words"),
    [
        (f":{SECRET}@", "house", "", "set sentinel_password"),
        (f":{SECRET}@", "house", "?sentinel_password=wrong", "set sentinel_password"),
        (f":{SECRET}@", "hose", f"?sentinel_password={OWN_SECRET}", "did you mean 'house'"),
        (":wrong@", "house", f"?sentinel_password={OWN_SECRET}", "does not accept the shard's username and password"),
    ],
    ids=["no password", "wrong password", "wrong name", "wrong password of the Redis"],
)
def test_boot_wrong_sentinel_setting_ends_with_78(installation, sentinel_port, credentials, name, query, words):
    url = f"redis+sentinel://{credentials}127.0.0.1:{sentinel_port}/{name}{query}"

    def answers():
        try:
            return redis.Redis(port=sentinel_port, password=OWN_SECRET).ping()
        except RedisError:
            return False

    until(answers, "the sentinel answers")
    status, output = installation.refused(REDIS_URL=url)
    assert status == 78
    assert words in output.splitlines()[-1]
    assert output.splitlines()[-1].startswith("  - none/redis.yml: shards.main.")
    assert words in installation.push(REDIS_URL=url)


def test_boot_unreachable_sentinels_end_with_75(installation):
    url = f"redis+sentinel://127.0.0.1:{free_port()}/house"
    status, output = installation.refused(REDIS_URL=url)
    assert status == 75
    assert "check that the sentinels and the master run" in json.loads(output.splitlines()[-1])["message"]


@pytest.mark.parametrize(
    ("query", "rights"), [("", "all"), ("?protocol=2", "none")], ids=["RESP3 and all rights", "RESP2 and none"]
)
def test_plain_url_of_a_cluster_is_refused_at_boot_and_push(installation, query, rights):
    """The reply to HELLO names the mode of the server, and no ACL can refuse HELLO."""
    port = installation.redis("cluster-enabled yes", "user poor on nopass -@all")
    user = "poor:x@" if rights == "none" else ""
    url = f"redis://{user}127.0.0.1:{port}/0{query}"

    def pushed():
        output = installation.push(REDIS_URL=url)
        return output if "cluster" in output else None

    output = until(pushed, "the push is refused")
    assert "ShardUnavailableError" in output
    assert "write redis+cluster://" in output
    status, output = installation.refused(REDIS_URL=url)
    assert status == 78
    assert "this Redis is a node of a cluster" in output.splitlines()[-1]
    with redis.Redis(port=port) as client:
        assert client.execute_command("CLUSTER", "COUNTKEYSINSLOT", 0) == 0
        assert client.dbsize() == 0


def test_server_without_cluster_is_refused_under_a_cluster_url(installation):
    status, output = installation.refused(REDIS_URL=f"redis+cluster://127.0.0.1:{installation.redis()}")
    assert status == 78
    assert "no node of a cluster: write redis://" in output.splitlines()[-1]


def test_boot_sentinel_in_place_of_redis_is_refused(installation, sentinel_port):
    url = f"redis://:{OWN_SECRET}@127.0.0.1:{sentinel_port}/0"
    until(lambda: "this is a Sentinel" in installation.push(REDIS_URL=url), "the push is refused")
    status, output = installation.refused(REDIS_URL=url)
    assert status == 78
    assert "write redis+sentinel://" in output


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_boot_plain_connection_to_tls_port_gives_advice(installation):
    authority = Authority(installation.folder)
    authority.certificate("server.pem", 2)
    at = installation.folder
    port = installation.redis(
        f"tls-cert-file {at}/server.pem", f"tls-key-file {at}/server.key", f"tls-ca-cert-file {at}/ca.pem", secure=True
    )
    url = f"redis://127.0.0.1:{port}"
    until(lambda: "if this is its TLS port" in installation.push(REDIS_URL=url), "the error of the push names TLS")
    status, output = installation.refused(REDIS_URL=url)
    assert status == 75
    assert "write rediss:// or set tls: true" in output
