"""Check the Django integration with real databases, in this process: the app itself runs in docs/guides/django.md."""

import asyncio
from types import SimpleNamespace

import pytest

django = pytest.importorskip("django", reason="the extra django is not installed")

from asgiref.sync import sync_to_async  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.db.transaction import TransactionManagementError  # noqa: E402
from django.db.utils import ConnectionHandler  # noqa: E402
from psycopg.conninfo import conninfo_to_dict  # noqa: E402

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKS={"default": {"BACKEND": "framework.integrations.django.tasks.ApplicationWorkerBackend"}},
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()

from framework.errors import UnknownTaskError  # noqa: E402
from framework.integrations.django import tasks  # noqa: E402
from framework.integrations.django.commit_hooks import open_transactions  # noqa: E402
from framework.integrations.django.configuration_check import check_configuration  # noqa: E402
from framework.integrations.django.connections import CloseConnections  # noqa: E402
from framework.integrations.django.management.commands.worker import Command  # noqa: E402
from framework.middleware.chain import SERVER, Chain, ChainInvocation  # noqa: E402
from framework.push.transactions import add_source  # noqa: E402
from tests.push.conftest import worker  # noqa: E402


def databases_of(kind, request, tmp_path):
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "one.sqlite3")}
    place = conninfo_to_dict(request.getfixturevalue("database").replace("postgresql+psycopg", "postgresql"))
    names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
    return {"ENGINE": "django.db.backends.postgresql", **{key: place.get(name, "") for key, name in names.items()}}


@pytest.fixture(params=["sqlite", "postgresql"])
def database_in_use(request, tmp_path, monkeypatch):
    """Point Django's default and second database at empty ones, and forget their connections afterwards."""
    second = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "two.sqlite3")}
    handler = ConnectionHandler({"default": databases_of(request.param, request, tmp_path), "second": second})
    for module in ("django.db", "django.db.transaction"):
        monkeypatch.setattr(f"{module}.connections", handler)
    for module in ("commit_hooks", "connections"):
        monkeypatch.setattr(f"framework.integrations.django.{module}.connections", handler)
    with handler["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id integer)")
    yield handler
    handler.close_all()


@pytest.fixture
def job(pusher, sources):
    add_source(open_transactions)
    return worker(queue="default")


def test_push_in_atomic_waits_for_the_commit(database_in_use, job, jobs):
    with transaction.atomic():
        jid = job.perform_async(1)
        assert jobs() == []
    assert [one["jid"] for one in jobs()] == [jid]


def test_rollback_discards_the_push(database_in_use, job, jobs):
    with pytest.raises(ValueError, match="no tea"), transaction.atomic():
        job.perform_async(1)
        raise ValueError("no tea")
    assert jobs() == []


def test_rollback_of_a_savepoint_discards_its_pushes_only(database_in_use, job, jobs):
    with transaction.atomic():
        job.perform_async(1)
        with pytest.raises(ValueError, match="no tea"), transaction.atomic():
            job.perform_async(2)
            raise ValueError("no tea")
        job.perform_async(3)
    assert [one["args"] for one in jobs()] == [[1], [3]]


def test_push_without_atomic_is_written_at_once(database_in_use, job, jobs):
    with database_in_use["default"].cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1)")
    job.perform_async(1)
    assert len(jobs()) == 1


def test_push_waits_for_the_transactions_of_all_databases(database_in_use, job, jobs):
    with transaction.atomic(using="second"):
        with transaction.atomic():
            job.perform_async(1)
        assert jobs() == []
    assert len(jobs()) == 1


def test_push_in_an_on_commit_callback_is_written_at_once(database_in_use, job, jobs):
    with transaction.atomic():
        transaction.on_commit(lambda: job.perform_async(1))
    assert len(jobs()) == 1


def test_push_in_manual_transaction_management_is_refused(database_in_use, job, jobs):
    database_in_use["default"].set_autocommit(False)
    with pytest.raises(TransactionManagementError, match="manual transaction management"):
        job.perform_async(1)
    database_in_use["default"].rollback()
    assert jobs() == []


# --- connections ----------------------------------------------------------------------------------------------------


def run_job(perform, *, inline=False):
    chain = Chain(SERVER)
    chain.add(CloseConnections)
    instance = SimpleNamespace(_aw_run=None if inline else object())
    with ChainInvocation(chain.compile(), instance, {}, "default"):
        return perform()


def query():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return connection.connection


def test_connection_is_closed_after_a_job(database_in_use):
    assert run_job(query) is not None  # CONN_MAX_AGE is 0, as by default
    assert database_in_use["default"].connection is None


def test_inline_job_keeps_the_connection_of_its_caller(database_in_use):
    with connection.cursor():
        run_job(query, inline=True)
        assert database_in_use["default"].connection is not None


def test_async_jobs_have_connections_of_their_own(database_in_use):
    found = {}

    async def perform(name):
        found[name] = await sync_to_async(query)()

    async def both():
        await asyncio.gather(*[asyncio.create_task(in_job(name)) for name in ("a", "b")])

    async def in_job(name):
        chain = Chain(SERVER)
        chain.add(CloseConnections)
        with ChainInvocation(chain.compile(), SimpleNamespace(_aw_run=object()), {}, "default"):
            await perform(name)

    asyncio.run(both())
    assert found["a"] is not found["b"]


# --- configuration, tasks, the command ------------------------------------------------------------------------------


def test_check_reports_each_problem_of_the_configuration(monkeypatch):
    monkeypatch.setenv("FRAMEWORK_CONCURRENCY", "many")
    monkeypatch.setenv("FRAMEWORK_TIMEOUT", "long")
    found = check_configuration(app_configs=None)
    assert [one.id for one in found] == ["application_worker.E001"] * 2
    assert "FRAMEWORK_CONCURRENCY" in found[0].msg


def test_task_payload_imports_nothing(pusher):
    job = tasks.DjangoTaskWorker()
    with pytest.raises(UnknownTaskError, match=r"tests\.integrations\.nowhere\.greet"):
        job.perform("tests.integrations.nowhere.greet", [], {}, "default")
    with pytest.raises(UnknownTaskError):
        job.perform("os.getcwd", [], {}, "default")


def test_backend_with_a_wrong_option_is_refused():
    with pytest.raises(ImproperlyConfigured, match="set\\(\\) has no option 'retries'"):
        tasks.ApplicationWorkerBackend("mails", {"OPTIONS": {"retries": 3}})


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (["-q", "mails", "--settings=project.settings", "--no-color"], ["-q", "mails", "-r", "ALL"]),
        (["--settings", "project.settings", "-c", "5", "-r", "shop.jobs"], ["-c", "5", "-r", "shop.jobs"]),
        (["-rshop.jobs"], ["-rshop.jobs"]),
        (["--require=shop.jobs", "-t", "25"], ["--require=shop.jobs", "-t", "25"]),
    ],
)
def test_manage_py_worker_passes_the_options_on(monkeypatch, argv, given):
    module = "framework.integrations.django.management.commands.worker"
    found = []
    monkeypatch.setattr(
        f"{module}.worker", SimpleNamespace(main=lambda args, prog_name: found.append((args, prog_name)))
    )
    monkeypatch.setattr(f"{module}._ALL_JOBS", "ALL")
    Command().run_from_argv(["manage.py", "worker", *argv])
    assert found == [(given, "manage.py worker")]
