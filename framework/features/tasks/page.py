"""The tasks in the database: their progress, and the failures of one. Operators retry failed jobs and cancel tasks here."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from redis.exceptions import RedisError

from framework.admin.audit import audited
from framework.admin.port import current
from framework.admin.statistics import server_times
from framework.errors import FrameworkError, TaskNotFoundError, UnknownNameError
from framework.execute.job_log import FILTERED
from framework.features.tasks.access import load_part
from framework.features.tasks.settings import TaskSettings
from framework.pages.caller import Role
from framework.pages.forms import Form
from framework.pages.job_story import FailedRun, JobMoment, RecordedStory
from framework.pages.page import Action, Page, Preview
from framework.pages.shard_action import SAMPLE
from framework.pages.view import ANSWER_WITHIN_S, Facts, View
from framework.settings.urls import shown_url
from framework.text import Sentence, format_count

if TYPE_CHECKING:
    from framework.features.tasks.progress import EventMessage, JobEvent
    from framework.features.tasks.task import Task

_SHOWN = 100
_SHOWN_MESSAGES = 3
_DATABASE = "tasks.url"
"""The name of the database among the stores that pages read: no shard has a point in its name."""
_SQLITE = "sqlite:///"
_STORY = 200
"""The messages of a job that its page shows."""
_ERROR = "error_class"
"""The field of the message about a failed run (``change.failure_fields``)."""
_RECORD = Sentence("the database of tasks")

T = TypeVar("T")


class TaskAction(Action):
    """An action on the tasks of the field ``row``, or on that of the path. Their jobs may be on any shard: the record is on main."""

    record: ClassVar[str]
    follows: ClassVar[str]

    async def preview(self, view: View, form: Form) -> Preview:
        """Return the jobs of each task on which it would act."""
        found = await _answered(lambda: [(one, self.jobs(one)) for one in self._chosen(view, form)])
        total = sum(jobs for _, jobs in found)
        question = Sentence(
            "{label}: {jobs} of {tasks}?",
            label=Sentence(self.label),
            jobs=format_count(total, "job"),
            tasks=format_count(len(found), "task"),
        )
        sample = [
            Sentence("{title}: {jobs}", title=one.title or one.worker or one.id, jobs=format_count(jobs, "job"))
            for one, jobs in found
        ]
        return Preview(question, total, sample[:SAMPLE], self.follows)

    async def apply(self, view: View, form: Form) -> str:
        """Act on each task."""

        def act(one: "Task") -> int:
            return audited(self.record, lambda _: self.change(one), {"task": one.id})(current().shards["main"])

        return self.done(await _answered(lambda: sum(map(act, self._chosen(view, form)))))

    def jobs(self, one: "Task") -> int:
        """Return the number of jobs of a task on which it would act."""
        raise NotImplementedError

    def change(self, one: "Task") -> int:
        """Act on a task, and return the number of jobs."""
        raise NotImplementedError

    def done(self, jobs: int) -> str:
        """Return what was done."""
        raise NotImplementedError

    def _chosen(self, view: View, form: Form) -> "list[Task]":
        own = view.parameters.get("task")
        wanted = list(dict.fromkeys([own] if own else form.get("row", ())))[:_SHOWN]
        if not wanted:
            raise ValueError(Sentence("No task is selected: select some."))
        _check_database(view)
        tasks: list[Task] = [load_part("task").Task.get(one) for one in wanted]
        for one in tasks:
            if not _may(view, self.role, one.worker, on_all=True):
                raise ValueError(
                    Sentence(
                        "The jobs of {title} may be on any shard: you need the role {role} on all.",
                        title=one.title or one.id,
                        role=self.role,
                    )
                )
        return tasks


class RetryFailed(TaskAction):
    """Push the failed jobs of tasks again."""

    name = "retry"
    label = "Retry failed jobs"
    record = "tasks retry"
    follows = Sentence(
        "Those in the dead set are retried from there, the others are pushed from their events, which needs all of their arguments: "
        "where some are not stored, nothing is pushed. Their events begin again."
    )

    def jobs(self, one: "Task") -> int:
        """Return the failed jobs."""
        return one.progress().failed

    def change(self, one: "Task") -> int:
        """Push them again."""
        return one.retry_failed()

    def done(self, jobs: int) -> str:
        """Return what was done."""
        return Sentence("{jobs} pushed again", jobs=format_count(jobs, "job", "is"))


class CancelTask(TaskAction):
    """Cancel the jobs of tasks that have not ended."""

    name = "cancel"
    label = "Cancel"
    is_harmful = True
    record = "tasks cancel"
    follows = Sentence(
        "Waiting jobs end when their turn comes, without running, and running ones are asked to end. The tasks take no more jobs. "
        "This cannot be undone."
    )

    def jobs(self, one: "Task") -> int:
        """Return the jobs that have not ended."""
        return one.progress().open

    def change(self, one: "Task") -> int:
        """Cancel them."""
        return one.cancel()

    def done(self, jobs: int) -> str:
        """Return what was done."""
        return Sentence("{jobs} cancelled", jobs=format_count(jobs, "job", "is"))


class TasksPage(Page):
    """Show the newest tasks. ``owner`` and ``tenant`` of the query choose some."""

    name = "tasks"
    path = "/tasks"
    title = "Tasks"
    menu = "jobs"
    of_jobs = True
    actions = (RetryFailed(), CancelTask())

    async def read(self, view: View) -> Facts:
        """Read the newest tasks, and ask each shard whether it answers."""
        filters = {name: view.query[name] for name in ("owner", "tenant") if name in view.query}
        facts = await _read(view, lambda: {"tasks": load_part("task").page_as_json(**filters, limit=_SHOWN)})
        rows = [one for one in facts.pop("tasks", []) if _may(view, "read", one["worker"])]
        return {**facts, "filters": filters, "tasks": list(map(_task_facts, rows))}


class TaskPage(Page):
    """Show one task: its jobs by status, and the failed ones. ``after`` of the query names the last event of the page before."""

    name = "task"
    path = "/tasks/{task}"
    title = "Task"
    of_jobs = True
    actions = (RetryFailed(), CancelTask())

    async def read(self, view: View) -> Facts:
        """Read the task with a page of its failures.

        Raises:
            UnknownNameError: the database has no such task, or the caller may not see it.
            ValueError: ``after`` is no event.
        """
        name, after = view.parameters["task"], view.query.get("after", "0")
        if not (after.isascii() and after.isdecimal()):
            raise ValueError(Sentence("after={after}: it must be the number of an event.", after=after))

        def read() -> Facts:
            found = load_part("task").Task.get(name)
            return {"task": found.as_json(), "events": found.failures(after=int(after), limit=_SHOWN)}

        try:
            facts = await _read(view, read)
        except TaskNotFoundError as error:
            raise UnknownNameError(str(error)) from None
        task, events = facts.pop("task", None), facts.pop("events", [])
        if task is not None and not _may(view, "read", task["worker"]):
            raise UnknownNameError(Sentence("There is no task {name}.", name=name))
        return {
            **facts,
            "task": None if task is None else _task_facts(task),
            "failures": [_event_facts(view, one) for one in events if view.may("read", one.shard, one.worker)],
            "next": events[-1].id if len(events) == _SHOWN else None,
        }


def _database_url(view: View) -> str:
    return TaskSettings.of(view.installation.settings).tasks_url


def _has_database(view: View) -> bool:
    """Return whether the database is there. A read would make the file of SQLite."""
    url = _database_url(view)
    return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE).partition("?")[0]).exists()


def _check_database(view: View) -> None:
    if not _has_database(view):
        raise ValueError(Sentence("There is no database of tasks."))


async def _read(view: View, step: Callable[[], Facts]) -> Facts:
    # At the same time: each may take its second.
    _, found = await asyncio.gather(view.each(server_times), read_database(view, step))
    return found


async def read_database(view: View, step: Callable[[], Facts]) -> Facts:
    """Return what the step reads, and the database; without one, or if it does not answer, only that."""
    facts: Facts = {"database": shown_url(_database_url(view)), "has_database": _has_database(view), "problem": ""}
    if not facts["has_database"]:
        return facts
    try:
        return facts | await view.reads.answer(_DATABASE, lambda: _within(step))
    except TaskNotFoundError:
        raise
    except TimeoutError as error:
        problem = Sentence(
            "The database of tasks ({database}) does not answer: {error}.", database=facts["database"], error=str(error)
        )
        return facts | {"problem": problem}
    except FrameworkError as error:
        return facts | {"problem": str(error)}


async def recorded_story(view: View, jid: str) -> RecordedStory:
    """Return what the event of a job and its messages tell; nothing for one that is not recorded, or that the caller may not see."""
    try:
        facts = await read_database(view, lambda: {"story": load_part("task").story(jid, limit=_STORY)})
    except TaskNotFoundError:
        return RecordedStory()
    if "story" not in facts:
        return RecordedStory(problem=facts["problem"])
    event: JobEvent
    messages: list[EventMessage]
    event, messages = facts["story"]
    if not view.may("read", event.shard, event.worker):
        return RecordedStory()
    return RecordedStory(list(_moments(event, messages)), list(_failures(messages)))


def _moments(event: "JobEvent", messages: "Iterable[EventMessage]") -> Iterator[JobMoment]:
    yield JobMoment(event.created_at, Sentence("pushed"), _RECORD)
    if event.started_at is not None:
        yield JobMoment(event.started_at, Sentence("run {number} started", number=event.runs), _RECORD)
    for one in messages:
        error = one.fields.get(_ERROR)
        text = Sentence("failed: {error}", error=f"{error}: {one.text}") if error else one.text
        yield JobMoment(one.at, text, _RECORD)
    if event.ended_at is not None:
        yield JobMoment(event.ended_at, Sentence("ended: {state}", state=event.state), _RECORD)


def _failures(messages: "Iterable[EventMessage]") -> Iterator[FailedRun]:
    return (FailedRun(one.at, str(one.fields[_ERROR]), one.text) for one in messages if _ERROR in one.fields)


def _within(step: Callable[[], T]) -> T:
    with load_part("database").limited(ANSWER_WITHIN_S):
        return step()


async def _answered(step: Callable[[], T]) -> T:
    """Return what the step returns.

    Raises:
        ValueError: a shard does not answer. Raises what the step raises, too.
    """
    try:
        return await asyncio.to_thread(step)
    except (RedisError, OSError) as error:
        raise ValueError(
            Sentence("A shard does not answer ({error}). Do it again: what was done is not done twice.", error=error)
        ) from None


def _may(view: View, role: Role, worker: str | None, *, on_all: bool = False) -> bool:
    """Return whether the caller has the role for the jobs of a class, on one of the chosen shards, or on all of the process."""
    category = None if worker is None else view.category(worker)
    if on_all:
        return all(view.caller.may(role, shard, category) for shard in current().shards)
    return any(view.caller.may(role, shard, category) for shard in view.shards)


def _task_facts(one: Mapping[str, Any]) -> Facts:
    progress: dict[str, Any] = one["progress"]
    names = ("id", "worker", "title", "owner", "tenant", "created_at", "completed_at")
    state = "cancelled" if progress["is_cancelled"] else "complete" if progress["is_complete"] else "runs"
    return {**{name: one[name] for name in names}, "state": state, **progress}


def _event_facts(view: View, one: "JobEvent") -> Facts:
    # Recorded arguments are those that log lines show, unless the setting says that all are recorded.
    is_whole = TaskSettings.of(view.installation.settings).tasks.params == "whole"
    is_seen = not is_whole or view.may("operate", one.shard, one.worker)
    return {
        "jid": one.jid,
        "class": one.worker,
        "queue": one.queue,
        "shard": one.shard,
        "status": one.status,
        "state": one.state,
        "reason": one.reason,
        "error_class": one.error_class,
        "arguments": list(one.params) if is_seen else [FILTERED for _ in one.params],
        "runs": one.runs,
        "ended_at": one.ended_at,
        "messages": [each.text for each in one.messages[-_SHOWN_MESSAGES:]],
    }
