"""Check the middleware around requests of real applications; docs/guides/fastapi.md starts one with its worker process."""

import asyncio
import contextlib
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from framework.context import current
from framework.errors import ConfigurationError
from framework.integrations import sqlalchemy
from framework.integrations.starlette import RequestContext, lifespan
from framework.push.transactions import add_source
from framework.telemetry.context import current_trace
from tests.push.conftest import worker

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


async def show(request):
    return JSONResponse(current())


def client_of(*routes, **options):
    app = Starlette(routes=[Route("/orders/{order_id}", show), *routes])
    app.add_middleware(RequestContext, **options)
    return TestClient(app)


def test_request_binds_its_id_and_the_pattern_of_its_route():
    response = client_of().get("/orders/7", headers={"X-Request-ID": "req-1"})
    assert response.json() == {"correlation_id": "req-1", "meta.caller_id": "GET /orders/{order_id}"}
    assert response.headers["x-request-id"] == "req-1"
    assert current() == {}


async def show_trace(request):
    return JSONResponse(current_trace())


@pytest.mark.parametrize(
    ("headers", "carried"),
    [
        ({"traceparent": PARENT, "tracestate": "a=1"}, {"traceparent": PARENT, "tracestate": "a=1"}),
        ({"traceparent": PARENT, "tracestate": "x" * 513}, {"traceparent": PARENT}),
        ({"traceparent": "nonsense", "tracestate": "a=1"}, {}),
        ({}, {}),
    ],
)
def test_request_carries_its_trace_on(headers, carried):
    assert client_of(Route("/trace", show_trace)).get("/trace", headers=headers).json() == carried
    assert current_trace() == {}


@pytest.mark.parametrize("header", ["", "a b", "x" * 129, "<script>"])
def test_request_id_that_is_none_is_replaced(header):
    response = client_of().get("/orders/7", headers={"X-Request-ID": header})
    assert response.json()["correlation_id"] == response.headers["x-request-id"]
    assert response.headers["x-request-id"].isalnum()
    assert len(response.headers["x-request-id"]) == 32


def test_request_binds_more_facts_under_another_header():
    client = client_of(header="X-Trace", facts=lambda scope: {"user": scope["path"]})
    response = client.get("/orders/7", headers={"X-Trace": "t1"})
    assert response.json() == {
        "correlation_id": "t1",
        "meta.caller_id": "GET /orders/{order_id}",
        "meta.user": "/orders/7",
    }


def test_caller_of_a_mounted_application_is_its_mount():
    inner = Starlette(routes=[Route("/deep/{name}", show)])
    assert client_of(Mount("/inner", inner)).get("/inner/deep/a").json()["meta.caller_id"] == "GET /inner"


def test_caller_of_an_included_router_is_its_pattern():
    app = FastAPI()
    app.add_middleware(RequestContext)

    @app.get("/orders/{order_id}")
    def read(order_id: int) -> dict:
        return current()

    assert TestClient(app).get("/orders/7").json()["meta.caller_id"] == "GET /orders/{order_id}"


def test_lifespan_reports_a_wrong_configuration(monkeypatch):
    monkeypatch.setenv("FRAMEWORK_CONCURRENCY", "many")

    async def start():
        async with lifespan(None):
            pytest.fail("it has started")

    with pytest.raises(ConfigurationError, match="FRAMEWORK_CONCURRENCY"):
        asyncio.run(start())


@pytest.fixture
def watched_sessions(sources):
    for name, listener in sqlalchemy._LISTENERS.items():
        event.listen(Session, name, listener)
    add_source(sqlalchemy.open_transactions)
    yield
    for name, listener in sqlalchemy._LISTENERS.items():
        event.remove(Session, name, listener)


def test_push_waits_for_a_session_begun_in_a_dependency(watched_sessions, pusher, jobs):
    """FastAPI calls each dependency that is no coroutine in a thread, with a copy of the context."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    job, app, found = worker(queue="default"), FastAPI(), []
    app.add_middleware(RequestContext)

    def session():
        with contextlib.closing(Session(engine)) as one:
            one.execute(text("SELECT 1"))
            yield one

    @app.post("/")
    def push(one: Annotated[Session, Depends(session)]) -> None:
        job.perform_async(1)
        found.append(len(jobs()))
        one.commit()
        found.append(len(jobs()))

    assert TestClient(app).post("/").status_code == 200
    assert found == [0, 1]
    engine.dispose()
