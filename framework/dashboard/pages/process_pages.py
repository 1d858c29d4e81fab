"""The processes, the jobs that they run, and the stack of one of these."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, cast

from framework import admin
from framework.admin import RunningJob, WorkerProcess
from framework.admin.process_list import read_running, read_work
from framework.admin.running_jobs import JobStack, read_stacks, silent_message, stop_running
from framework.dashboard.pages.actions import ProcessAction
from framework.finish.outcome import StopFate
from framework.pages.forms import Field, Form, choice_of
from framework.pages.page import Page
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Rows
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_count, format_duration

_SHOWN = 100
_SHOWN_PROCESSES = 50
_STACK_LIMIT_S = 4.0
"""How long the page waits for a stack: a process with running jobs looks for orders every second."""
_STOP_LIMIT_S, _MOST_STOPS = 2.5, 10
"""How long an action waits for each process, and the runs that it stops: it has half a minute."""


class ProcessesPage(Page):
    """Show each running process, Ruby's too."""

    name = "processes"
    path = "/processes"
    title = "Processes"
    menu = "work"
    mends = (
        *("clock_skew", "cut_off", "data_lost", "few_slots", "large_process", "not_fetching", "process_silent"),
        *("scheduler_stalled", "unserved"),
    )
    actions = (
        ProcessAction("quiet", "Quiet", Sentence("They fetch no more jobs, and end the jobs that they run.")),
        ProcessAction(
            "stop",
            "Stop",
            Sentence(
                "They fetch no more jobs, give running jobs their timeout, and end. What has not ended runs again."
            ),
        ),
    )

    async def read(self, view: View) -> Facts:
        """Read the processes, by host. ``name`` of the query is a text that identities, tags or queues have, ``page`` their part.

        Raises:
            ValueError: ``page`` is no number of a page.
        """
        wanted = view.query.get("name", "").strip()
        found = await view.each(lambda shard: read_running(view.shards[shard]))
        processes = [one for listed in found.values() for one in listed if _has(one, wanted.lower())]
        shown, page = view.page_of(sorted(processes, key=lambda one: (one.shard, one.identity)), _SHOWN_PROCESSES)
        return {
            "name": wanted,
            "total": len(processes),
            "slots": sum(one.slots for one in processes),
            "busy": sum(one.busy for one in processes),
            **page,
            "processes": list(map(_process_facts, shown)),
        }


_FATES: Mapping[StopFate, str] = {
    "cancel": Sentence("Each ends as cancelled, also if its process dies meanwhile, and does not run again."),
    "requeue": Sentence("Each goes back to its queue, and runs again."),
    "kill": Sentence("Each moves to the dead set, and runs no more unless it is retried there."),
}


class RunRows(Rows[RunningJob]):
    """The running jobs."""

    noun = "run"

    def read(self, view: View, shard: Shard) -> Sequence[RunningJob]:
        """Return those of a shard."""
        return list(read_work(shard, view.installation.settings.size_limit))

    def name_of(self, one: RunningJob) -> str:
        """Return the id of the job."""
        return one.jid

    def facts(self, one: RunningJob) -> Facts:
        """Return where it runs."""
        return {"queue": one.queue, "process": one.process, "thread": one.thread}

    def worker_of(self, one: RunningJob) -> str | None:
        """Return its class."""
        return one.worker


class StopRuns(RowAction[RunningJob]):
    """Stop running jobs."""

    name = "stop"
    label = "Stop run"
    record = "jobs stop"
    is_harmful = True
    fields: ClassVar = (Field("fate", "The job then", choices=tuple(_FATES)),)
    rows = RunRows()

    async def targets(self, view: View, form: Form) -> Mapping[str, Sequence[RunningJob]]:
        """Return the chosen runs. Raises ValueError for too many."""
        found = await super().targets(view, form)
        if sum(map(len, found.values())) > _MOST_STOPS:
            raise ValueError(
                Sentence(
                    "Each run is stopped on its own: choose {most} at most, or quiet their processes.",
                    most=_MOST_STOPS,
                )
            )
        return found

    def details(self, form: Form) -> Mapping[str, object]:
        """Return how they end. Raises ValueError."""
        return {"fate": _fate_of(form)}

    def shown(self, at: FormAt, one: RunningJob) -> str:
        """Return where it runs, and for how long."""
        age = (
            Sentence(", for {time}", time=format_duration(max(0.0, at.view.now - one.since)))
            if one.since is not None
            else ""
        )
        return Sentence(
            "{worker} {jid} on {shard} in {process}{age}",
            worker=one.worker,
            jid=one.jid,
            shard=at.shard.name,
            process=one.process,
            age=age,
        )

    def effect(self, form: Form) -> str:
        """Return what follows."""
        return Sentence(
            "{fate} An async job is cancelled, the process of an isolated job is killed, and an iterating job stops at "
            "its next item. A thread gets an error if its class has a timeout; else it runs on until it looks at "
            "self.cancelled.",
            fate=_FATES[_fate_of(form)],
        )

    def change(self, at: FormAt, one: RunningJob) -> int:
        """Give its process the order."""
        sizes = at.view.installation.settings.size_limit
        stopped = stop_running(at.shard, sizes, one.jid, _fate_of(at.form), _STOP_LIMIT_S)
        return int(any(each.how not in ("", "not_running") for each in stopped))

    def done(self, count: int) -> str:
        """Return what was done."""
        return Sentence("{runs} stopped or asked to end", runs=format_count(count, "run"))


def _fate_of(form: Form) -> StopFate:
    return cast("StopFate", choice_of(form, "fate", tuple(_FATES)))


class RunningPage(Page):
    """Show each running job, the longest-running first."""

    actions = (StopRuns(),)

    name = "running"
    path = "/running"
    title = "Running"
    menu = "work"
    mends = ("slow_class",)
    of_jobs = True

    async def read(self, view: View) -> Facts:
        """Read the running jobs. Those that run longest are shown."""
        found = await view.each(admin.work)
        jobs = [
            one
            for shard, listed in found.items()
            # A caller who may see each job of the shard costs no look at its class.
            for one in (listed if view.may("read", shard) else _seen(view, listed))
        ]
        ordered = sorted(jobs, key=lambda one: one.since or 0.0)
        return {"total": len(jobs), "jobs": [_running_facts(view, one) for one in ordered[:_SHOWN]]}


def _seen(view: View, jobs: Sequence[RunningJob]) -> list[RunningJob]:
    return [one for one in jobs if view.may("read", one.shard, one.job.worker)]


def _has(one: WorkerProcess, text: str) -> bool:
    return not text or any(text in word.lower() for word in (one.identity, one.tag, *one.queues))


class _Found(NamedTuple):
    jobs: Sequence[RunningJob]
    stacks: Sequence[JobStack]
    silent: Sequence[str]


class StackPage(Page):
    """Show where a running job is: functions, files and lines, and no values. Its process is asked for each view."""

    name = "stack"
    path = "/running/{jid:path}"
    title = "Stack"
    role = "operate"
    of_jobs = True
    within_s = 8.0
    # It waits for the answer of the process. A page that is left open asks again after this long.
    fresh_s = 5.0
    actions = (StopRuns(),)

    async def read(self, view: View) -> Facts:
        """Ask the processes that run the job."""
        jid = view.parameters["jid"]
        found = await view.each(lambda shard: _read_stacks(view, view.shards[shard], jid))
        return {
            "jid": jid,
            "jobs": [_running_facts(view, job) for one in found.values() for job in one.jobs],
            "stacks": [_stack_facts(stack) for one in found.values() for stack in one.stacks],
            "silent": [silent_message(identity) for one in found.values() for identity in one.silent],
        }


def _read_stacks(view: View, shard: Shard, jid: str) -> _Found:
    sizes = view.installation.settings.size_limit
    jobs = [one for one in read_work(shard, sizes) if one.jid == jid and view.may("operate", shard.name, one.worker)]
    # A process is asked about jobs that the caller may see only.
    if not jobs:
        return _Found((), (), ())
    found = read_stacks(shard, sizes, jid, _STACK_LIMIT_S)
    # An id that is also the name of a host would bring all stacks of its processes.
    own = [one for one in found.stacks if one.jid == jid and view.may("operate", shard.name, one.worker)]
    return _Found(jobs, own, found.silent)


def _stack_facts(one: JobStack) -> Facts:
    return {
        "shard": one.shard,
        "process": one.process,
        "age_s": one.age_s,
        "has_begun": one.begun,
        "runs_in": one.runs_in,
        "process_pid": one.process_pid,
        "calls": [call._asdict() for call in one.stack],
    }


def _process_facts(one: WorkerProcess) -> Facts:
    return {
        "shard": one.shard,
        "identity": one.identity,
        "hostname": one.hostname,
        "pid": one.pid,
        "tag": one.tag,
        "labels": list(one.labels),
        "queues": list(one.queues),
        "slots": one.slots,
        "busy": one.busy,
        "is_quiet": one.is_quiet,
        "is_embedded": one.embedded,
        "started_at": one.started_at,
        "beat": one.beat,
        "rss_bytes": one.rss_kb * 1024,
        "round_trip_us": one.rtt_us,
        "version": one.version,
    }


def _running_facts(view: View, one: RunningJob) -> Facts:
    return {
        **view.job_facts(one.job, one.since),
        **RunRows().facts(one),
        "may_operate": view.may("operate", one.shard, one.worker),
    }
