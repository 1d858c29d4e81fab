"""The calls of real libraries to real servers, in jobs and outside of them."""

import asyncio
import importlib
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import httpx2
import pytest
import requests
import sqlalchemy
import urllib3
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ResponseError
from sqlalchemy.ext.asyncio import create_async_engine

from framework.telemetry import library_calls
from framework.telemetry.library_calls import DATABASE_OPTION, count_library_calls
from framework.telemetry.usage import usage_records
from tests.telemetry.test_usage import in_job


@pytest.fixture(autouse=True)
def counting(monkeypatch):
    # Switched off again afterwards: other tests count nothing.
    monkeypatch.setattr(usage_records, "enabled", False)
    count_library_calls()
    # A simulation of the proofs may have put the plain methods back since the first call.
    library_calls._count_redis()
    yield
    usage_records.running.clear()


def used_by(call):
    job = {"jid": "a"}
    in_job(job, call)
    return usage_records.take(job)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/")
        else:
            self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_redis_commands_of_a_job_are_counted(redis):
    client = Redis(connection_pool=redis.connection_pool)

    def use():
        client.set("jobs:name", b"12345")
        assert client.get("jobs:name") == b"12345"
        with pytest.raises(ResponseError):
            client.lpush("jobs:name", "x")
        with client.pipeline() as pipeline:
            pipeline.get("jobs:name")
            pipeline.incrby("jobs:number", 7)
            pipeline.execute()

    used = used_by(use)
    assert used.redis_calls == 5
    assert used.redis_duration_s > 0
    # SET jobs:name 12345, GET, LPUSH, GET, INCRBY jobs:number 7
    assert used.redis_write_bytes == 17 + 12 + 15 + 12 + 18
    assert used.redis_read_bytes == 5 + 5 + 1
    use()
    assert not usage_records.running


def test_redis_commands_of_an_async_job_are_counted(redis):
    options = redis.connection_pool.connection_kwargs

    async def use():
        client = AsyncRedis(
            unix_socket_path=options["path"], username=options["username"], password=options["password"]
        )
        await client.set("jobs:name", b"12345")
        async with client.pipeline(transaction=False) as pipeline:
            await pipeline.get("jobs:name").get("jobs:name").execute()
        await client.aclose()

    used = used_by(lambda: asyncio.run(use()))
    assert (used.redis_calls, used.redis_write_bytes, used.redis_read_bytes) == (3, 17 + 24, 10)


def test_watched_transaction_counts_each_command(redis):
    client = Redis(connection_pool=redis.connection_pool)

    def use():
        client.transaction(
            lambda pipeline: (pipeline.get("jobs:a"), pipeline.multi(), pipeline.get("jobs:b")), "jobs:a"
        )

    # WATCH, GET; the transaction with one command.
    assert used_by(use).redis_calls == 3


def test_statements_of_sqlalchemy_are_counted_by_database(tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/one.sqlite3")
    named = engine.execution_options(**{DATABASE_OPTION: "Main-1"})

    def use():
        with engine.begin() as connection:
            connection.exec_driver_sql("create table jobs (id integer)")
        with named.begin() as connection:
            connection.execute(sqlalchemy.text("insert into jobs values (:id)"), [{"id": 1}, {"id": 2}])
        with pytest.raises(sqlalchemy.exc.OperationalError), named.connect() as connection:
            connection.execute(sqlalchemy.text("select wrong from jobs"))

    used = used_by(use)
    assert (used.db_count, list(used.databases), used.databases["main_1"].count) == (3, ["main_1"], 2)
    assert used.db_duration_s > used.databases["main_1"].duration_s > 0
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("select 1"))
    assert not usage_records.running
    engine.dispose()


def test_statements_of_async_sqlalchemy_are_counted(tmp_path):
    async def use():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/async.sqlite3")
        async with engine.connect() as connection:
            await connection.execute(sqlalchemy.text("select 1"))
        await engine.dispose()

    assert used_by(lambda: asyncio.run(use())).db_count == 1


def test_statements_of_django_are_counted_by_alias(tmp_path):
    tests = importlib.import_module("tests.integrations.test_django")
    assert tests.settings.configured
    from django.db.utils import ConnectionHandler

    handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{tmp_path}/one"}})
    connection = handler["default"]
    seen = []

    def refuse(execute, sql, *more):
        seen.append(sql)
        return execute(sql, *more)

    def use():
        # The connection is made within the block, which removes the last wrapper at its end.
        with connection.execute_wrapper(refuse), connection.cursor() as cursor:
            cursor.execute("create table jobs (id integer)")
        with connection.cursor() as cursor:
            cursor.executemany("insert into jobs values (%s)", [(1,), (2,)])
            cursor.execute("select * from jobs")

    used = used_by(use)
    assert seen == ["create table jobs (id integer)"]
    assert (used.db_count, used.databases["default"].count) == (3, 3)
    connection.close()
    connection.connect()
    assert len(connection.execute_wrappers) == 1
    connection.close()


@pytest.mark.parametrize("library", ["httpx", "httpx2", "requests", "urllib3"])
def test_requests_of_a_job_are_counted(service, library):
    def use():
        for path in ("/", "/moved"):
            match library:
                case "requests":
                    with requests.Session() as session:
                        assert session.get(service + path).text == "ok"
                case "urllib3":
                    with urllib3.PoolManager() as pool:
                        assert pool.request("GET", service + path).data == b"ok"
                case name:
                    with importlib.import_module(name).Client(follow_redirects=True) as client:
                        assert client.get(service + path).text == "ok"

    used = used_by(use)
    # A pool manager of urllib3 follows a redirect by a second call.
    assert used.external_http_count == (3 if library == "urllib3" else 2)
    assert used.external_http_duration_s > 0
    use()
    assert not usage_records.running


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_requests_of_an_async_job_are_counted(service, library):
    async def use():
        async with library.AsyncClient() as client:
            await asyncio.gather(client.get(service), client.get(service))
            with pytest.raises(library.ConnectError):
                await client.get("http://127.0.0.1:1/")

    assert used_by(lambda: asyncio.run(use())).external_http_count == 3


LATE = """
import sys
from framework.telemetry.library_calls import count_library_calls
count_library_calls()
count_library_calls()
assert not {"sqlalchemy", "django", "httpx", "requests"} & set(sys.modules), "nothing is loaded for it"
import requests, httpx, sqlalchemy
for method in (requests.Session.send, requests.packages.urllib3.HTTPConnectionPool.urlopen, httpx.AsyncClient.send):
    assert method.counts_calls and not hasattr(method.__wrapped__, "counts_calls")
assert sqlalchemy.engine.Engine.dispatch.before_cursor_execute
"""


def test_library_is_counted_from_its_import_on():
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=60)
