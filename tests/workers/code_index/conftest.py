"""Provide the databases of the code index: SQLite, and a PostgreSQL cluster for these tests.

PostgreSQL is optional at home (a skip that says so) and required where CI=true.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from workers.code_index.database import open_engine

STARTING_S = 30


def required(what: str, package: str) -> None:
    """Skip the test with a message outside of CI; fail in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is not installed, and this run may not do without: run `scripts/setup --system`")
    pytest.skip(
        f"{what} is not installed (package {package}): this test did not run (`scripts/setup --system` brings it)"
    )


def postgres_programs() -> Path:
    """Return the folder with the newest PostgreSQL server programs; on Debian they are not on PATH."""
    on_path = shutil.which("postgres")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    if on_path:
        return Path(on_path).parent
    if not found:
        required("PostgreSQL", "postgresql")
    return found[-1].parent


def as_user(folder: Path) -> list[str]:
    """Return the command prefix that changes the user: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    names = {user.pw_name: user for user in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A running cluster, reachable by a socket in its own folder."""
    programs = postgres_programs()
    folder = Path(tempfile.mkdtemp(prefix="aw-pg-", dir="/tmp"))
    user = as_user(folder)
    log = folder / "server.log"
    process: subprocess.Popen[bytes] | None = None
    try:
        initdb = [
            programs / "initdb",
            "-D",
            folder / "data",
            "-U",
            "tests",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        subprocess.run([*user, *initdb], check=True, capture_output=True, cwd="/")
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", f"unix_socket_directories={folder}"]
        with log.open("wb") as output:
            server = [programs / "postgres", "-D", folder / "data", *settings]
            process = subprocess.Popen([*user, *server], stdout=output, stderr=output, cwd="/", start_new_session=True)
        url = URL.create("postgresql+psycopg", username="tests", database="postgres", query={"host": str(folder)})
        wait_for(url, process, log)
        yield url
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
            with suppress(subprocess.TimeoutExpired):
                process.wait(STARTING_S)
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(url: URL, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when the server answers."""
    engine = create_engine(url)
    deadline = time.monotonic() + STARTING_S
    try:
        while True:
            try:
                engine.connect().close()
                return
            except OperationalError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"PostgreSQL did not come up:\n{log.read_text()}")
    finally:
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[URL]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield URL.create("sqlite", database=str(tmp_path / "code index?.sqlite3"))
        return
    cluster: URL = request.getfixturevalue("postgres")
    name = f"t_{uuid.uuid4().hex}"
    admin = create_engine(cluster, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    yield cluster.set(database=name)


@pytest.fixture
def engine(database_url: URL) -> Iterator[Engine]:
    """The code index's own engine on that database."""
    opened = open_engine(database_url)
    yield opened
    opened.dispose()
