"""Define ``LimitedCapacityWorker``: a few jobs process stored work until none is left (GitLab)."""

import inspect
from collections.abc import Callable
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ClassVar, Never, ParamSpec, Protocol, cast

from framework.application_worker import ApplicationWorker
from framework.declare import check, port
from framework.declare.declaration import Declaration
from framework.declare.pushed import not_awaitable, running_loop
from framework.declare.request import NO_OPTIONS, PushRequest
from framework.declare.setter import run_in_thread
from framework.declare.signature import check_self_parameter
from framework.declare.spread import Spread
from framework.declare.validators import ErrorCollector
from framework.errors import DeclarationError
from framework.telemetry.job_events import WorkRemains, job_events
from framework.typeguards import qualified_name, short_repr
from framework.types import Jid

P = ParamSpec("P")

_PERFORM = "perform"
_FORBIDDEN_ATTRIBUTES: dict[str, str] = {
    "priority": "a job takes the next portion of the work, whatever its own priority: order the work itself",
    "fair_by": "its jobs have no arguments, and max_running_jobs limits their number",
    "deduplicate": "its jobs are equal on purpose, and max_running_jobs limits their number",
    "concurrency_limit": "max_running_jobs is its limit, and a job without a slot is dropped instead of waiting",
    "max_concurrency_limit_percentage": "max_running_jobs is its limit",
}


class PerformsWork(Protocol[P]):
    """Represent a worker whose ``perform_work`` takes P; type checkers compare ``perform_with_capacity`` with it."""

    def perform_work(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Process one portion of the work."""


class LimitedCapacityWorker(ApplicationWorker, abstract=True):
    """Process stored work with at most ``max_running_jobs`` jobs at a time. Each job processes one portion.

    A job that succeeds pushes the next one while work is left. A job that fails or is discarded does not: the next call of
    ``perform_with_capacity``, usually from cron, pushes the missing jobs. Call it always with the same arguments:
    ``perform_work`` and ``remaining_work_count`` receive them.
    """

    retry = 0
    if hasattr(ApplicationWorker, "deduplicate"):
        deduplicate = None
    max_running_jobs: ClassVar[int | Callable[[], int] | None] = None

    def __init_subclass__(cls, *, abstract: bool = False, **others: Never) -> None:
        faults = ErrorCollector(qualified_name(cls))
        if _PERFORM in vars(cls):
            message = "perform belongs to the framework here, which runs jobs while work is left. Write def perform_work(self, ...)."
            faults.add(message, _PERFORM)
        elif not abstract:
            _check_limited_capacity(faults, cls)
        if faults.errors:
            check.read_attributes(faults, cls)
            faults.raise_errors()
        if not abstract:
            setattr(cls, _PERFORM, _build_perform(cast("Callable[..., Any]", cls.perform_work)))
        super().__init_subclass__(abstract=abstract, **others)

    def perform_work(self, *args: Any, **kwargs: Any) -> Any:
        """Process one portion of the work. Every worker defines this method, as ``def`` or ``async def``."""
        del args, kwargs
        raise DeclarationError(qualified_name(type(self)), "has no perform_work.", attribute="perform_work")

    def remaining_work_count(self, *args: Any, **kwargs: Any) -> Any:
        """Return the amount of remaining work, a whole number. Above 0 the next job is pushed. Every worker defines this method."""
        del args, kwargs
        message = "has no remaining_work_count."
        raise DeclarationError(qualified_name(type(self)), message, attribute="remaining_work_count")

    @classmethod
    def perform_with_capacity(cls: type[PerformsWork[P]], *args: P.args, **kwargs: P.kwargs) -> list[Jid]:
        """Push jobs until running and waiting jobs together reach ``max_running_jobs``; return the new ids.

        Concurrent callers together do not exceed the maximum. The errors are those of ``perform_async``.
        """
        declaration = cast("type[LimitedCapacityWorker]", cls).declaration()
        return _push_up_to_limit(declaration, declaration.signature.bind(args, kwargs))

    @classmethod
    async def aperform_with_capacity(cls: type[PerformsWork[P]], *args: P.args, **kwargs: P.kwargs) -> list[Jid]:
        """Push as ``perform_with_capacity``, in a thread, while the event loop goes on."""
        worker = cast("type[LimitedCapacityWorker]", cls)
        push = partial(worker.perform_with_capacity, *args, **kwargs)
        return await run_in_thread(worker.declaration(), NO_OPTIONS, push, is_bulk=False)

    def _aw_portion_done(self, args: list[Any], remaining: object) -> None:
        """Push the next job when work is left, as soon as this job has released its slot."""
        if type(remaining) is not int:
            message = (
                f"remaining_work_count returned {short_repr(remaining)}, which is not a whole number, so no next job is pushed. "
                "Correct the method, then call perform_with_capacity again"
            )
            self.logger.error(message, event_name="limited_capacity.invalid_result")
            return
        self.log_extra(remaining_work_count=remaining)
        job_events.emit(WorkRemains(type(self).declaration().wire_name, remaining))
        if remaining > 0:
            # Not inside `perform`: an idle process would take the next job at once and find no free slot.
            self._aw_on_success = partial(copy_context().run, self._aw_push_next, args)

    def _aw_push_next(self, args: list[Any]) -> None:
        try:
            _push_up_to_limit(type(self).declaration(), args, max_new=1)
        # This job is done even if the next cannot be pushed.
        except Exception:
            self.logger.exception(
                "the next job could not be pushed; the next call of perform_with_capacity pushes it",
                event_name="limited_capacity.push_failed",
            )
        if type(self)._aw_on_success is not None:  # pyright: ignore[reportAttributeAccessIssue]
            self._aw_call_on_success()


def _push_up_to_limit(declaration: Declaration, args: list[Any], max_new: int | None = None) -> list[Jid]:
    limit: Any = declaration.facts["max_running_jobs"]
    if callable(limit):
        limit = limit()
    if type(limit) is not int:
        message = f"max_running_jobs gave {short_repr(limit)}, no whole number; 0 stops the class."
        raise DeclarationError(declaration.qualified_name, message, attribute="max_running_jobs")
    jids = port.current().push_up_to(PushRequest(declaration, args), limit, max_new)
    return jids if running_loop() is None else not_awaitable(declaration.qualified_name, jids)


def _build_perform(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``perform`` of a class: it calls ``perform_work``, then ``remaining_work_count``."""
    if inspect.iscoroutinefunction(work):

        @wraps(work)
        async def go_on(self: LimitedCapacityWorker, *args: Any, **kwargs: Any) -> None:
            await work(self, *args, **kwargs)
            left = self.remaining_work_count(*args, **kwargs)
            left = await left if inspect.isawaitable(left) else left
            self._aw_portion_done(_bound_arguments(self, args, kwargs), left)  # pyright: ignore[reportPrivateUsage]

        return go_on

    @wraps(work)
    def perform(self: LimitedCapacityWorker, *args: Any, **kwargs: Any) -> None:
        work(self, *args, **kwargs)
        left = self.remaining_work_count(*args, **kwargs)
        self._aw_portion_done(_bound_arguments(self, args, kwargs), left)  # pyright: ignore[reportPrivateUsage]

    return perform


def _bound_arguments(worker: LimitedCapacityWorker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    return type(worker).declaration().signature.bind(args, kwargs)


def _check_limited_capacity(faults: ErrorCollector, cls: type[LimitedCapacityWorker]) -> None:
    """Note missing and contradictory attributes of a LimitedCapacityWorker."""
    if cast("Any", cls).max_running_jobs is None:
        message = "max_running_jobs is missing: a whole number, or a callable without parameters that returns one; 0 stops it."
        faults.add(message, "max_running_jobs")
    if cls.retry is not False and cls.retry != 0:
        message = f"retry = {cls.retry!r} is not allowed: the next perform_with_capacity replaces a retry. Leave it at 0, or False."
        faults.add(message, "retry")
    for name, because in _FORBIDDEN_ATTRIBUTES.items():
        if getattr(cls, name) is not None:
            message = f"{name} = {short_repr(getattr(cls, name))} is not allowed: {because}. Leave it out."
            faults.add(message, name)
    if isinstance(cls.shard, Spread):
        faults.add(
            f"shard = {cls.shard} is not allowed: max_running_jobs counts the jobs of one shard. Name one.", "shard"
        )
    for name in ("perform_work", "remaining_work_count"):
        if getattr(cls, name) is getattr(LimitedCapacityWorker, name):
            faults.add(f"{name} is missing: write def {name}(self, ...).", name)
        with faults.collect():
            check_self_parameter(faults.worker, name, getattr(cls, name))
    work, count = (inspect.signature(one) for one in (cls.perform_work, cls.remaining_work_count))
    if [one.kind for one in work.parameters.values()] != [one.kind for one in count.parameters.values()]:
        message = (
            f"remaining_work_count{count} must have the parameters of perform_work{work}: it gets the same arguments."
        )
        faults.add(message, "remaining_work_count")
    if inspect.iscoroutinefunction(cls.remaining_work_count) and not inspect.iscoroutinefunction(cls.perform_work):
        message = "remaining_work_count is async, and perform_work is not, so it would not be awaited. Make both async, or none."
        faults.add(message, "remaining_work_count")
