"""Start both languages on one Redis: a Ruby console, a Ruby server, and a Python worker process."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from redis import Redis

from framework.all_settings import load
from framework.declare import port, registry
from framework.wiring.client import ProcessClient, bind, bind_default
from tests.fork_server import FORK_SERVER
from tests.harness import HURRIED, ROOT
from tests.servers.guarded import GuardedServer, as_role, with_all_rights

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60.0


def poll_until(look: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Poll until the condition is true; return its value."""
    deadline = time.monotonic() + patience_s
    while not (found := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {patience_s:g} s: {what}")
        time.sleep(0.02)
    return found


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    return poll_until


class Gems:
    """Describe one Sidekiq: the commands that run it, and its version."""

    def __init__(self, version: str, ruby: Sequence[str], server: Sequence[str]) -> None:
        self.version = version
        self._ruby, self._server = ruby, server

    @classmethod
    def of_folder(cls, folder: Path) -> "Gems":
        """Return the Sidekiq of a folder with a gem in each subfolder, such as ``sidekiq-8.1.7``."""
        (home,) = folder.glob("sidekiq-*")
        loaded = [part for lib in sorted(folder.glob("*/lib")) for part in ("-I", str(lib))]
        ruby = [os.environ.get("SIDEKIQ_RUBY", "ruby"), *loaded]
        return cls(home.name.removeprefix("sidekiq-"), ruby, [*ruby, str(home / "bin" / "sidekiq")])

    @classmethod
    def of_root(cls, root: Path) -> "Gems":
        """Return the Sidekiq of the root folder of another system, as debootstrap makes it."""
        (spec,) = root.glob("usr/share/rubygems-integration/*/specifications/sidekiq-*.gemspec")
        inside = ["unshare", "--mount", "sh", "-euc", _ENTER_ROOT, "sh", str(root), str(HERE)]
        return cls(spec.stem.removeprefix("sidekiq-"), [*inside, "ruby"], [*inside, "sidekiq"])

    def console(self) -> list[str]:
        return [*self._ruby, "./ruby_side.rb"]

    def server(self) -> list[str]:
        return [*self._server]

    @contextmanager
    def web(self, url: str, output: Path) -> Iterator[str]:
        """Serve the page of this Sidekiq on a free port of this machine, and give its address."""
        command = [*self._ruby, "-S", "rackup", "-s", "webrick", "-o", "127.0.0.1", "-p", "0", "./sidekiq_web.ru"]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=HERE, env={**os.environ, "REDIS_URL": url}, stdout=sink, stderr=sink
            )
        try:
            (port,) = poll_until(lambda: re.findall(r"start: pid=\d+ port=(\d+)", output.read_text()), "Sidekiq's page")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()

    def since(self, *version: int) -> bool:
        return self.version != "installed" and tuple(map(int, self.version.split("."))) >= version


# In a mount namespace of its own, so that nothing is left: the folder of these tests, and that of the sockets of Redis.
_ENTER_ROOT = """
root=$1
mount --bind "$2" "$root/mnt"
mount --bind /tmp "$root/tmp"
mount -t proc proc "$root/proc"  # a process of Sidekiq without it writes no record
shift 2
exec chroot "$root" sh -euc 'cd /mnt; exec "$@"' sh "$@"
"""


def other_sidekiqs() -> list[Gems]:
    """Return those of SIDEKIQ_GEMS, folders separated as in PATH, and those that `scripts/setup --sidekiqs` has made."""
    folders = [Path(folder) for folder in os.environ.get("SIDEKIQ_GEMS", "").split(os.pathsep) if folder]
    made = sorted((ROOT / "var" / "sidekiqs").glob("*/usr/bin/sidekiq")) if os.geteuid() == 0 else []
    return [*map(Gems.of_folder, folders), *(Gems.of_root(path.parents[2]) for path in made)]


INSTALLED = Gems("installed", ["ruby"], ["sidekiq"])
SIDEKIQS = [
    pytest.param(INSTALLED, id="installed"),
    *(pytest.param(one, id=one.version, marks=pytest.mark.campaign) for one in other_sidekiqs()),
]


@pytest.fixture(scope="session", params=SIDEKIQS)
def sidekiq(request: pytest.FixtureRequest) -> Gems:
    gems: Gems = request.param
    return gems


class Ruby:
    """Run one console process for the whole session, with one JSON line each way per command."""

    def __init__(self, url: str, gems: Gems) -> None:
        self._process = subprocess.Popen(
            gems.console(),
            cwd=HERE,
            env={**os.environ, "REDIS_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""

    def __call__(self, command: str, **more: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": command, **more}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._format_line())
        assert "error" not in answer, answer
        return answer["ok"]

    def _format_line(self) -> bytes:
        assert self._process.stdout
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 1 << 20) if ready else b""
            assert data, "the Ruby console does not answer"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def ruby_console(server: GuardedServer, sidekiq: Gems) -> Iterator[Ruby]:
    if sidekiq.version == "installed" and not (shutil.which("ruby") and shutil.which("sidekiq")):
        message = "Ruby's Sidekiq is not installed: the exchange of jobs with it is NOT tested (`scripts/setup --system` brings it)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    console = Ruby(server.url, sidekiq)
    yield console
    console.close()


@pytest.fixture
def ruby(ruby_console: Ruby, redis: "Redis") -> Ruby:
    """The console, on an empty store, without a size limiter; Ruby is the user ``default``, with more rights than any role."""
    redis.execute_command("ACL", "SETUSER", "default", "allkeys", "allchannels", "+@all")
    ruby_console("limit_sizes")
    return ruby_console


@pytest.fixture
def environment(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings for this process and those it starts: one shard, every job to `default`, a quick poller."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "routing.yml").write_text('routing_rules: [["*", default]]\n')
    (config / "application.yml").write_text("poll_interval: 0.1\n")
    settings = {
        "REDIS_URL": as_role(redis_url, "worker"),
        "PROOF_URL": with_all_rights(redis_url),
        "FRAMEWORK_CONFIG_DIR": str(config),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


@pytest.fixture
def jobs(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The Python workers, ready to push."""
    monkeypatch.syspath_prepend(str(HERE))
    enqueuer = ProcessClient(load())
    with registry.isolated():
        registry.load(["interop_jobs"])
        bind(enqueuer)
        yield sys.modules["interop_jobs"]
    port.unbind()
    bind_default()
    enqueuer.shards.close()


class Process:
    """Start a server process; stop it at the end and wait for it. ``warm``: the fork server starts it, as ``python COMMAND``."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path, *, warm: bool) -> None:
        self.output = output
        whole = {**os.environ, **environment}
        with output.open("wb") as sink:
            self._process = (
                FORK_SERVER.start(command, HERE, whole, sink, sink)
                if warm
                else subprocess.Popen(command, cwd=HERE, env=whole, stdout=sink, stderr=subprocess.STDOUT)
            )

    def wait_for(self, word: str) -> None:
        def is_printed() -> bool:
            assert self._process.poll() is None, self.output.read_text()
            return word in self.output.read_text()

        poll_until(is_printed, f"{word!r} in its output")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def quiet(self) -> None:
        """Quiet the Python process, and wait until it logs that."""
        self._process.send_signal(signal.SIGTSTP)
        self.wait_for("process.quiet")

    def ended(self) -> int:
        return self._process.wait(PATIENCE_S)

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


Start = Callable[..., Process]


@contextmanager
def started(
    command: list[str], environment: dict[str, str], output: Path, ready: str, *, warm: bool = False
) -> Iterator[Process]:
    process = Process(command, environment, output, warm=warm)
    try:
        process.wait_for(ready)
        yield process
        assert process.stop() == 0, output.read_text()
    finally:
        process.kill()


@pytest.fixture
def python_server(environment: dict[str, str], tmp_path: Path) -> Callable[..., Any]:
    """`with python_server(): ...` runs a Python worker process; the end of the block stops it and expects status 0."""

    def start(*flags: str) -> Any:
        command = ["-c", HURRIED, "-r", "interop_jobs", "-q", "default", "-c", "2", *flags]
        return started(command, environment, tmp_path / "worker.log", "process.ready", warm=True)

    return start


@pytest.fixture
def ruby_server(
    ruby: Ruby, sidekiq: Gems, environment: dict[str, str], redis_url: str, tmp_path: Path
) -> Callable[[], Any]:
    """The same for a Ruby server: one thread, so that order shows."""

    def start() -> Any:
        command = [*sidekiq.server(), "-r", "./ruby_side.rb", "-q", "default", "-c", "1", "-t", "2", "-e", "test", "-v"]
        return started(command, environment | {"REDIS_URL": redis_url}, tmp_path / "sidekiq.log", "ready for interop")

    return start


@pytest.fixture
def noted(redis: "Redis") -> Callable[..., list[Any]]:
    """`noted("ruby", 3)`: the notes of the workers of one side, once there are three."""

    def read(side: str, count: int) -> list[Any]:
        key = f"interop:{side}"
        poll_until(lambda: redis.llen(key) >= count, f"{count} jobs run by {side}")
        return [json.loads(line) for line in redis.lrange(key, 0, -1)]

    return read
