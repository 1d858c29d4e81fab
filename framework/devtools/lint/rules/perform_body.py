"""Check the code of ``perform``: sleeps, calls without timeout, swallowed errors."""

import ast
from collections.abc import Mapping

from framework.devtools.lint.classes import ClassIndex
from framework.devtools.lint.module import Module
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches

_DEADLINES: Mapping[str, int | None] = {
    **dict.fromkeys(
        f"requests.{verb}" for verb in ("delete", "get", "head", "options", "patch", "post", "put", "request")
    ),
    "urllib.request.urlopen": 2,
    "http.client.HTTPConnection": 2,
    "http.client.HTTPSConnection": 2,
    "smtplib.SMTP": 3,
    "smtplib.SMTP_SSL": 4,
    "imaplib.IMAP4": 2,
    "ftplib.FTP": 4,
    "socket.create_connection": 1,
}
"""Calls without a default timeout -> the position of their timeout argument (None: only a keyword)."""
_CATCH_ALL = frozenset({"Exception", "BaseException"})
_FLOW_CONTROL = _CATCH_ALL | {"framework.errors.FlowControl"}
_FRAMEWORK_ERROR = _CATCH_ALL | {"framework.FrameworkError", "framework.errors.FrameworkError"}
_SWALLOWED_BY = {
    "RetryLater": _FLOW_CONTROL,
    "Discard": _FLOW_CONTROL,
    "BusinessError": _FRAMEWORK_ERROR,
    "RetryError": _FRAMEWORK_ERROR,
}
"""Exceptions by which a job controls its outcome -> the handlers that swallow each."""


def _sleep(site: CallSite) -> Matches:
    if site.worker is not None and site.name == "time.sleep":
        yield Match(site.module, site.node, f"{site.worker.name} holds a slot while it sleeps")


def _no_deadline(site: CallSite) -> Matches:
    if site.name is None or site.name not in _DEADLINES:
        return
    position = _DEADLINES[site.name]
    by_name = any(word.arg in ("timeout", None) for word in site.node.keywords)
    spread = any(isinstance(argument, ast.Starred) for argument in site.node.args)
    if not by_name and not spread and (position is None or len(site.node.args) <= position):
        yield Match(site.module, site.node, f"{site.name} without a timeout may wait for ever")


def _swallowed(module: Module, classes: ClassIndex) -> Matches:
    for node in module.tries:
        worker = classes.worker_around(module, node)
        if worker is None:
            continue
        for handler in node.handlers:
            names = _caught(module, handler)
            if _raises(handler):
                continue
            if names & {"", "BaseException"}:
                yield Match(module, handler, f"{worker.name} catches Shutdown here, so its process does not stop")
                break
            order = _raised_flow_control(module, node)
            if order is not None and names & _SWALLOWED_BY[order]:
                yield Match(module, handler, f"this handler swallows the {order} that is raised above")
                break
            if order is not None and any(name.endswith(f".{order}") for name in names):
                break


def _caught(module: Module, handler: ast.ExceptHandler) -> set[str]:
    """Return the dotted names that a handler catches; an empty name for all exceptions."""
    if handler.type is None:
        return {""}
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {name for part in parts if (name := module.dotted(part)) is not None}


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def _raised_flow_control(module: Module, node: ast.Try) -> str | None:
    """Return the flow control exception that the body of a try raises, unless a handler of the same try raises it again."""
    passed = {
        name.rpartition(".")[2] for handler in node.handlers if _raises(handler) for name in _caught(module, handler)
    }
    for statement in node.body:
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Raise) and inner.exc is not None:
                raised = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
                name = module.dotted(raised) or ""
                last = name.rpartition(".")[2]
                if name.startswith("framework.") and last in _SWALLOWED_BY and last not in passed:
                    return last
    return None


RULES = (
    LintRule(
        code="SEW025",
        name="sleep",
        summary="A worker calls `time.sleep`.",
        fix="raise RetryLater(delay), or push the rest with perform_in",
        why="A sleeping job occupies its slot: ten jobs that sleep a minute stop a process of ten slots for a minute. "
        "A deploy has to wait for them or interrupt them.",
        bad="""
import time

from workers.base import TeamWorker


class PollWorker(TeamWorker):
    def perform(self, export_id: int) -> None:
        time.sleep(30)  # here
""",
        good="""
from framework import RetryLater
from workers.base import TeamWorker


class PollWorker(TeamWorker):
    def perform(self, export_id: int) -> None:
        raise RetryLater(30, f"export {export_id} is not there yet")
""",
        check_call=_sleep,
    ),
    LintRule(
        code="SEW026",
        name="deadline",
        summary="A network call without a timeout may wait for ever.",
        fix="pass a timeout in seconds",
        why="A server that accepts and never answers keeps one slot after the other, until the queue stops without a "
        "single error. The framework cannot interrupt a thread that waits in C code.",
        bad="""
import urllib.request

from workers.base import TeamWorker


class FetchWorker(TeamWorker):
    has_external_dependencies = True
    concurrency_limit = 10

    def perform(self, page_id: int) -> None:
        urllib.request.urlopen(f"https://pages.example.com/{page_id}")  # here
""",
        good="""
import urllib.request

from workers.base import TeamWorker


class FetchWorker(TeamWorker):
    has_external_dependencies = True
    concurrency_limit = 10

    def perform(self, page_id: int) -> None:
        urllib.request.urlopen(f"https://pages.example.com/{page_id}", timeout=10)
""",
        check_call=_no_deadline,
    ),
    LintRule(
        code="SEW027",
        name="swallowed",
        summary="A handler in a worker swallows `Shutdown`, or the RetryLater, Discard or BusinessError that is raised "
        "above it.",
        fix="catch only the expected errors, or end the handler with raise",
        why="The framework raises `Shutdown`, a BaseException, in jobs when the process stops; if it is swallowed, "
        "the process is killed at its deadline and the job runs again. RetryLater and Discard are Exceptions: "
        "under `except Exception` they have no effect.",
        bad="""
from framework import Discard
from workers.base import TeamWorker


class ImportWorker(TeamWorker):
    def perform(self, file_id: int) -> None:
        try:
            if file_id < 0:
                raise Discard("no such file")
        except Exception:  # here
            self.logger.info("went wrong")
        try:
            self.logger.info("importing", file_id=file_id)
        except BaseException:  # here
            self.logger.info("went wrong")
""",
        good="""
from framework import Discard
from workers.base import TeamWorker


class ImportWorker(TeamWorker):
    def perform(self, file_id: int) -> None:
        if file_id < 0:
            raise Discard("no such file")
        try:
            self.logger.info("importing", file_id=file_id)
        except OSError:
            self.logger.info("went wrong")
""",
        check_module=_swallowed,
    ),
)
