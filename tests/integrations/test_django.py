"""Check the Django integration with real databases, in this process: the app itself runs in docs/guides/django.md."""

import asyncio
import json
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

django = pytest.importorskip("django", reason="the extra django is not installed")

from asgiref.sync import async_to_sync, sync_to_async  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.db.transaction import TransactionManagementError  # noqa: E402
from django.db.utils import ConnectionHandler  # noqa: E402
from django.http import JsonResponse  # noqa: E402
from django.test import AsyncClient, Client, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
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
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker  # noqa: E402
from framework.integrations.django import tasks  # noqa: E402
from framework.integrations.django.apps import CloseConnections, check_configuration, install  # noqa: E402
from framework.integrations.django.management.commands.worker import Command  # noqa: E402
from framework.middleware.chain import SERVER, Chain, ChainInvocation  # noqa: E402
from framework.telemetry.context import current, current_trace  # noqa: E402
from framework.testing import fake  # noqa: E402
from tests.push.conftest import worker  # noqa: E402

tasks_package = import_module("django.tasks" if find_spec("django.tasks") else "django_tasks")
task_exceptions = import_module(f"{tasks_package.__name__}.exceptions")


def greet() -> None:
    """Do nothing, for a task."""


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
    monkeypatch.setattr("framework.integrations.django.apps.connections", handler)
    with handler["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id integer)")
    yield handler
    handler.close_all()


@pytest.fixture
def job(pusher, sources):
    install()
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


def test_manual_savepoint_rolled_back_discards_its_pushes(database_in_use, job, jobs):
    with transaction.atomic():
        job.perform_async(1)
        first = transaction.savepoint()
        job.perform_async(2)
        second = transaction.savepoint()
        job.perform_async(3)
        transaction.savepoint_commit(second)
        transaction.savepoint_rollback(first)
        job.perform_async(4)
        transaction.savepoint_commit(transaction.savepoint())
        with pytest.raises(ValueError, match="no tea"), transaction.atomic():
            raise ValueError("no tea")
    assert [one["args"] for one in jobs()] == [[1], [4]]


# --- transactions of coroutines: the connections are those of the thread that waits for them ------------------------


class ShopWorker(LimitedCapacityWorker):
    feature_category = "not_owned"
    queue = "default"
    max_running_jobs = 1

    def perform_work(self) -> None: ...

    def remaining_work_count(self) -> int:
        return 0


async def push_in_all_forms(job):
    """Push from a coroutine in each way; return the number of jobs."""
    await job.aperform_async(1)
    await job.set(retry=3).aperform_async(2)
    await job.aperform_in(60, 3)
    await job.aperform_bulk([(4,), (5,)])
    await job.aperform_bulk_stream([(6,)])
    await ShopWorker.aperform_with_capacity()
    await asyncio.to_thread(job.perform_async, 9)
    await asyncio.create_task(job.aperform_async(10))
    job.perform_async(11)
    await sync_to_async(job.perform_async)(12)
    return 11


def written(redis):
    return redis.llen("queue:default") + redis.zcard("schedule")


@pytest.mark.parametrize("push", [async_to_sync(push_in_all_forms), lambda job: asyncio.run(push_in_all_forms(job))])
def test_push_of_a_coroutine_waits_for_its_caller(database_in_use, job, redis, push):
    with pytest.raises(ValueError, match="no tea"), transaction.atomic():
        push(job)
        raise ValueError("no tea")
    assert written(redis) == 0
    with transaction.atomic():
        number = push(job)
        assert written(redis) == 0
    assert written(redis) == number
    push(job)
    # Without the one for which there is no capacity left.
    assert written(redis) == 2 * number - 1


def test_push_of_a_coroutine_heeds_savepoints(database_in_use, job, jobs):
    with transaction.atomic():
        async_to_sync(job.aperform_async)(1)
        with pytest.raises(ValueError, match="no tea"), transaction.atomic():
            async_to_sync(job.aperform_async)(2)
            raise ValueError("no tea")
        async_to_sync(job.aperform_async)(3)
    assert [one["args"] for one in jobs()] == [[1], [3]]


def test_push_waits_for_a_block_that_a_coroutine_entered(database_in_use, job, jobs):
    async def order():
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        await job.aperform_async(1)
        job.perform_async(2)
        assert jobs() == []
        await sync_to_async(block.__exit__)(None, None, None)
        await job.aperform_async(3)
        await sync_to_async(database_in_use.close_all)()

    asyncio.run(order())
    assert [one["args"] for one in jobs()] == [[1], [2], [3]]


def test_push_of_a_task_that_outlives_the_block_is_written(database_in_use, job, jobs):
    async def order():
        ended = asyncio.Event()

        async def push():
            await ended.wait()
            await job.aperform_async(1)

        def begin():
            block.__enter__()

        block = transaction.atomic()
        await sync_to_async(begin)()
        task = asyncio.create_task(push())
        await sync_to_async(block.__exit__)(ValueError, ValueError("no tea"), None)
        ended.set()
        await task
        await sync_to_async(database_in_use.close_all)()

    asyncio.run(order())
    assert [one["args"] for one in jobs()] == [[1]]


def test_push_beside_the_transaction_of_another_task_is_written(database_in_use, job, jobs):
    async def order():
        entered, pushed = asyncio.Event(), asyncio.Event()

        async def in_transaction():
            block = transaction.atomic()
            await sync_to_async(block.__enter__)()
            entered.set()
            await pushed.wait()
            await sync_to_async(block.__exit__)(ValueError, ValueError("no tea"), None)

        async def push():
            await entered.wait()
            await job.aperform_async(1)
            job.perform_async(2)
            pushed.set()

        await asyncio.gather(in_transaction(), push())
        await sync_to_async(database_in_use.close_all)()

    asyncio.run(order())
    assert [one["args"] for one in jobs()] == [[1], [2]]


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


@pytest.mark.parametrize(
    ("allowed", "chosen"), [(["default", "mails", "reports"], ("mails", "reports")), ([], ("mails",))]
)
def test_worker_serves_the_queues_of_tasks(monkeypatch, allowed, chosen):
    """Those that TASKS allows; if it allows all, those of the loaded tasks."""
    found = {"default": {"BACKEND": tasks.BACKEND, "QUEUES": allowed}}
    backends = import_module(tasks.Task.__module__.rpartition(".")[0]).task_backends
    with override_settings(TASKS=found):
        monkeypatch.setattr(backends["default"], "queues", set(allowed))
        task = tasks.Task(
            priority=0, func=greet, backend="default", queue_name="mails", run_after=None, takes_context=False
        )
        monkeypatch.setitem(globals(), "sent_later", task)
        monkeypatch.setattr(tasks.DjangoTaskWorker, "_aw_declaration", tasks.DjangoTaskWorker.declaration())
        tasks.use_queues_of_tasks()
        assert tasks.DjangoTaskWorker.declaration().chosen_queues == chosen


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


@tasks_package.task()
def double(number: int) -> tuple[int, ...]:
    if number < 0:
        raise LookupError("no row")
    return (number, 2 * number)


KEPT = {
    "default": {
        "BACKEND": "framework.integrations.django.tasks.ApplicationWorkerBackend",
        "QUEUES": ["default", "other"],
        "OPTIONS": {"keep_result": 60},
    }
}


def test_results_and_priorities_of_django_tasks():
    with override_settings(TASKS=KEPT), fake() as jobs:
        result, failing = double.enqueue(4), double.using(priority=-5).enqueue(-1)
        assert [jobs.enqueued(tasks.DjangoTaskWorker)[index].get("priority") for index in (0, 1)] == ["normal", "low"]
        waiting = double.get_result(result.id)
        assert (waiting.status.name, waiting.args, waiting.task) == ("READY", [4], double)
        assert waiting.enqueued_at.timestamp() == pytest.approx(result.enqueued_at.timestamp())
        jobs.drain(raise_errors=False)
        result.refresh()
        # Stored as Django's backends store it.
        assert (result.status.name, result.return_value, result.attempts) == ("SUCCESSFUL", [4, 8], 1)
        assert result.started_at <= result.finished_at
        failed = async_to_sync(double.aget_result)(failing.id)
        assert (failed.status.name, failed.errors[0].exception_class, failed.task.priority) == (
            "FAILED",
            LookupError,
            -5,
        )
        with pytest.raises(task_exceptions.TaskResultDoesNotExist):
            double.get_result("0" * 24)
        with pytest.raises(task_exceptions.InvalidTaskError, match="other queues have no levels"):
            double.using(priority=5, queue_name="other").enqueue(1)
        jobs.clock.advance(61)
        with pytest.raises(task_exceptions.TaskResultDoesNotExist):
            result.refresh()
    with fake():
        plain = double.enqueue(1)
        with pytest.raises(NotImplementedError, match="keep_result"):
            plain.refresh()
    with pytest.raises(ImproperlyConfigured, match="from 1 s to 7 days"):
        tasks.ApplicationWorkerBackend("wrong", {"OPTIONS": {"keep_result": 0}})


def show_context(request, *, key):
    return JsonResponse({**current(), **current_trace(), "key": key})


async def show_context_async(request, *, key):
    return show_context(request, key=key)


urlpatterns = [path("sync/<int:key>", show_context), path("async/<int:key>", show_context_async)]
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
with_requests = override_settings(
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["framework.integrations.django.requests.DjangoRequestContext"],
    ALLOWED_HOSTS=["*"],
)


async def get_async(page, headers):
    return await AsyncClient().get(page, headers=headers)


@pytest.mark.parametrize("get", [Client().get, async_to_sync(get_async)], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", ["sync", "async"])
@with_requests
def test_request_binds_id_caller_and_trace(get, view):
    response = get(f"/{view}/7", headers={"X-Request-ID": "req-1", "traceparent": PARENT})
    assert json.loads(response.content) == {
        "correlation_id": "req-1",
        "meta.caller_id": f"GET {view}/<int:key>",
        "traceparent": PARENT,
        "key": 7,
    }
    assert response.headers["X-Request-ID"] == "req-1"
    assert (current(), current_trace()) == ({}, {})


@with_requests
def test_request_without_a_view_has_an_id():
    response = Client().get("/nowhere", headers={"X-Request-ID": "<script>"})
    assert response.status_code == 404
    assert len(response.headers["X-Request-ID"]) == 32
