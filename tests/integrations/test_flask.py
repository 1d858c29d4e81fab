"""Check the contexts around requests and jobs of a real application; docs/guides/flask.md runs one with its worker process."""

import asyncio
from types import SimpleNamespace

import pytest
from flask import Flask, abort, current_app, has_app_context

from framework import middleware
from framework.context import current
from framework.integrations.flask import AppContext, install
from framework.middleware.chain import SERVER, Chain, ChainInvocation


@pytest.fixture
def app(monkeypatch):
    monkeypatch.setattr(middleware, "server", Chain(SERVER))
    app = Flask("shop")
    app.ended = []
    app.teardown_appcontext(app.ended.append)

    @app.get("/orders/<int:order_id>")
    def show(order_id):
        return current() if order_id else abort(409)

    return app


def test_request_binds_its_id_and_its_rule(app):
    install(app)
    response = app.test_client().get("/orders/7", headers={"X-Request-ID": "req-1"})
    assert response.json == {"correlation_id": "req-1", "meta.caller_id": "GET /orders/<int:order_id>"}
    assert response.headers["X-Request-ID"] == "req-1"
    assert current() == {}


def test_request_binds_more_facts_under_another_header(app):
    install(app, header="X-Trace", facts=lambda: {"shop": current_app.name})
    response = app.test_client().get("/orders/7", headers={"X-Trace": "a b"})
    assert response.json["meta.shop"] == "shop"
    assert response.json["correlation_id"] == response.headers["X-Trace"] != "a b"


@pytest.mark.parametrize("path", ["/orders/0", "/nowhere"])
def test_context_ends_after_a_request_that_fails(app, path):
    install(app)
    response = app.test_client().get(path)
    assert response.status_code in (404, 409)
    assert len(response.headers["X-Request-ID"]) == 32
    assert current() == {}


# --- around jobs ----------------------------------------------------------------------------------------------------


def running(app):
    chain = Chain(SERVER)
    chain.add(AppContext, app)
    return ChainInvocation(chain.compile(), SimpleNamespace(), {}, "default")


def test_install_adds_the_context_of_jobs(app):
    install(app)
    assert middleware.server.exists(AppContext)


def test_job_has_an_application_context_of_its_own(app):
    with running(app):
        assert current_app.name == "shop"
        assert app.ended == []
    assert app.ended == [None]
    assert not has_app_context()


def test_teardown_functions_get_the_error_of_a_job(app):
    with pytest.raises(ValueError, match="no tea"), running(app):
        raise ValueError("no tea")
    assert [str(error) for error in app.ended] == ["no tea"]


def test_inline_job_uses_the_context_of_its_caller(app):
    with app.app_context():
        with running(app):
            pass
        assert app.ended == []


def test_concurrent_async_jobs_have_contexts_of_their_own(app):
    async def job():
        with running(app):
            mine = current_app.app_context
            await asyncio.sleep(0)
            assert current_app.app_context == mine

    async def both():
        await asyncio.gather(job(), job())

    asyncio.run(both())
    assert app.ended == [None, None]
