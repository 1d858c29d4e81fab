"""Run a real PostgreSQL for the tests: one server per xdist worker that asks for it.

    postgres        the session's server                database        the URL of a database of the test's own, empty
    running(...)    a server with settings of its own   standby_of(...) a streaming replica, whose replay can be paused

The binaries are those of POSTGRES_BIN, PATH, or Debian's /usr/lib/postgresql/*/bin. They are optional at home (a skip that
says so) and required where CI=true. Servers listen on a Unix socket in a folder of their own, never on a port, and end
with the process that started them, however that ends.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

TIMEOUT_S = 30.0
_QUICK = {
    "listen_addresses": "''",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "max_standby_streaming_delay": "1s",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "100ms",
}
"""The settings of a server: no fsync, and replicas that follow at once."""


def binaries() -> Path:
    """The folder with `initdb`, `postgres` and `pg_basebackup`; skips the test when there is none, and fails it in CI."""
    named = os.environ.get("POSTGRES_BIN")
    on_path = shutil.which("initdb")
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for folder in [Path(named)] if named else [*versions, *([Path(on_path).parent] if on_path else [])]:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    message = (
        "PostgreSQL is not installed: parts that use a database are NOT tested (`scripts/setup --system` installs it)"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class Postgres:
    """One server process and its data folder."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self._settings = {**_QUICK, "unix_socket_directories": f"'{folder}'", **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def create(self, *options: str) -> None:
        """Make an empty cluster."""
        usual = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        _run("initdb", "-D", self._data, *usual, *options)

    def copy_of(self, primary: "Postgres") -> None:
        """Make a copy that follows ``primary`` as a streaming replica."""
        source = ["-h", str(primary.folder), "-U", "postgres", "-X", "stream", "-c", "fast", "--no-sync"]
        _run("pg_basebackup", "-D", self._data, "-R", *source)

    def start(self, timeout_s: float = TIMEOUT_S) -> "Postgres":
        """Start it and wait until it takes connections: after a crash it first repeats what its log has."""
        flags = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value.strip(chr(39))}")]
        with (self.folder / "log").open("ab") as log:
            command = [*_unprivileged(), str(binaries() / "postgres"), "-D", self._data, *flags]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(psycopg.OperationalError):
                self.execute("SELECT 1")
                return self
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """End it: at once, as a crash would, or by SIGINT in good order."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(TIMEOUT_S)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend every process of the server: connections stay open, and nothing is answered."""
        assert self._process is not None
        main = self._process.pid
        os.kill(main, signal.SIGSTOP)  # first: it starts no further process
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        pids = [main, *map(int, children)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database, for the settings and for SQLAlchemy."""
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres") -> "psycopg.Connection[Any]":
        """Open a connection that commits each statement."""
        return psycopg.connect(host=str(self.folder), dbname=database, user="postgres", autocommit=True)

    def execute(self, statement: str, database: str = "postgres") -> Any:
        """Run a statement and return the first value of its result, or None."""
        with self.connect(database) as connection:
            cursor = connection.execute(sql.SQL(statement))  # type: ignore[arg-type]
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    # --- standby -------------------------------------------------------------------------------------------

    def pause_replay(self) -> None:
        """Show no new writes of the primary until ``resume_replay``; they are still received."""
        self.execute("SELECT pg_wal_replay_pause()")
        self._wait_for("SELECT pg_get_wal_replay_pause_state() = 'paused'")

    def resume_replay(self) -> None:
        self.execute("SELECT pg_wal_replay_resume()")

    def catch_up(self, primary: "Postgres") -> None:
        """Wait until this server shows all writes that ``primary`` has made so far."""
        position = primary.execute("SELECT pg_current_wal_lsn()")
        self._wait_for(f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn")

    def _wait_for(self, question: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.execute(question):
            assert time.monotonic() < deadline, f"not true within {TIMEOUT_S:g} s: {question}"
            time.sleep(0.01)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")


@contextmanager
def running(*initdb: str, **settings: str) -> Iterator[Postgres]:
    """Run a server with these settings besides the usual: ``running("--wal-segsize=1", archive_mode="on")``."""
    with _own_folder() as folder:
        server = Postgres(folder, settings)
        server.create(*initdb)
        with _started(server):
            yield server


@contextmanager
def standby_of(primary: Postgres, **settings: str) -> Iterator[Postgres]:
    """Run a streaming replica that has caught up."""
    with _own_folder() as folder:
        server = Postgres(folder, settings)
        server.copy_of(primary)
        with _started(server):
            server.catch_up(primary)
            yield server


@contextmanager
def database_on(server: Postgres) -> Iterator[str]:
    """Make an empty database and yield its name; drop it afterwards, with its connections."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    server.execute(f"CREATE DATABASE {name}")
    try:
        yield name
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    with database_on(postgres) as name:
        yield postgres.url(name)


@contextmanager
def _started(server: Postgres) -> Iterator[None]:
    try:
        server.start()
        yield
    finally:
        server.stop()


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Make a folder for the server's user, with a path short enough for a Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="aw-pg-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            account = _account()
            os.chown(folder, account.pw_uid, account.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(program: str, *arguments: str) -> None:
    command = [*_unprivileged(), str(binaries() / program), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{program} ended with status {done.returncode}: {done.stderr[-2000:]}")


def _unprivileged() -> list[str]:
    """Return the start of a command that runs without root, which PostgreSQL refuses, and ends when this process is killed."""
    if not shutil.which("setpriv"):
        return []
    other = [f"--reuid={_account().pw_uid}", f"--regid={_account().pw_gid}", "--clear-groups"]
    return ["setpriv", "--pdeathsig=INT", *(other if os.geteuid() == 0 else [])]


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.fail("this system has no user postgres or nobody to run PostgreSQL as")
