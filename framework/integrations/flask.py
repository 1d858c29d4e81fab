"""Run jobs within the context of a Flask application, and give the jobs of a request its context.

from framework.integrations.flask import install

app = Flask(__name__)
install(app)
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from flask import Flask, Response, current_app, g, has_app_context, request

from framework import middleware
from framework.integrations.scope import DEFAULT_HEADER, caller_id_of, correlation_id_of, scope, trace_of
from framework.telemetry.context import bound, bound_trace, current
from framework.types import Json

_STACK, _CORRELATION_ID = "_application_worker_context", "correlation_id"


def _no_facts() -> Mapping[str, Json]:
    return {}


def install(app: Flask, *, header: str = DEFAULT_HEADER, facts: Callable[[], Mapping[str, Json]] = _no_facts) -> None:
    """Run each job of this process in a context of ``app``, and bind the context of each request.

    The correlation id of a request is that of the header, or a new one; the response has it too. The caller is the method and
    the rule (``GET /orders/<id>``). ``facts`` returns more facts from the request. The jobs of a request with a
    ``traceparent`` belong to its trace, without a library for traces too. Call it before the first push.
    """
    middleware.server.prepend(AppContext, app)

    def enter() -> None:
        stack = ExitStack()
        rule = None if request.url_rule is None else request.url_rule.rule
        stack.enter_context(scope())
        named = {"caller_id": caller_id_of(request.method, rule), **facts()}
        stack.enter_context(bound(correlation_id_of(request.headers.get(header)), **named))
        stack.enter_context(bound_trace(trace_of(request.headers.get)))
        setattr(g, _STACK, stack)

    def name_in_response(response: Response) -> Response:
        correlation_id = current().get(_CORRELATION_ID)
        if correlation_id is not None:
            response.headers.setdefault(header, str(correlation_id))
        return response

    def leave(error: BaseException | None = None) -> None:
        del error
        stack: ExitStack | None = g.pop(_STACK, None)
        # A streamed response may end in a thread whose context was never entered.
        with suppress(ValueError):
            if stack is not None:
                stack.close()

    app.before_request(enter)
    app.after_request(name_in_response)
    app.teardown_request(leave)


class AppContext:
    """Push an application context around each job, so ``current_app`` and extensions work. A server middleware.

    The functions of ``teardown_appcontext`` run after the job: with Flask-SQLAlchemy they remove the session.
    """

    def __init__(self, app: Flask) -> None:
        self._app = app

    def call(self, worker: Any, job: dict[str, Any], queue: str) -> Generator[None]:
        """Run the job in a context of its own; an inline job in that of its caller, if there is one."""
        del worker, job, queue
        if has_app_context() and current_app == self._app:
            yield
            return
        with self._app.app_context():
            yield
