"""Explain why a class makes no progress on a shard: its jobs, the processes that serve them, its rates, and its blockers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from framework.admin.class_traffic import Backlog, ClassRates, RunCounts, measure, read_backlog, read_runs
from framework.admin.explain import Explainer
from framework.admin.explain_reader import Blocker, ShownFacts, ShownLimit
from framework.admin.held_jobs import HeldJobsKey, held_keys, measure_held
from framework.admin.job_counts import IN_FLIGHT, QUEUE_PREFIX, OnProgress
from framework.admin.search import payload_of_member
from framework.admin.snapshot import ShardSnapshot
from framework.command_line import remedy_command
from framework.process.record import ProcessInfo
from framework.text import format_duration
from framework.wire import keys
from framework.wire.json import loads_object
from framework.wire.sub_queues import parent_of

_MINUTE_S = 60.0
_MOST_ERRORS = 3
# Held jobs that are read for the names of their queues: jobs of one class nearly always have the same.
_MOST_HELD = 10


class _FailedJobs(NamedTuple):
    """The blocker of failed jobs in one place: its code, its text, and its remedy with the words of the command."""

    code: str
    text: str
    released_by: str
    words: tuple[str, ...]


_FAILED_JOBS = {
    keys.RETRY: _FailedJobs(
        "failed", "its failed jobs that wait for their next run", "their times; at once:", ("requeue", "--in", "retry")
    ),
    keys.DEAD: _FailedJobs("dead", "its dead jobs", "an operator: find the cause, then", ("retry",)),
    keys.INTERRUPTED: _FailedJobs(
        "interrupted", "its jobs that were interrupted too often", "an operator: find the cause, then", ("requeue",)
    ),
}


@dataclass(frozen=True, slots=True)
class ClassExplanation:
    """The explanation of a class on one shard. Times are epoch seconds of the shard's clock, as is ``now``."""

    shard: str
    queue: str
    """The queue of its jobs: that of its route, or the one that most of them name. Empty if it is not known."""
    routed: bool
    """Whether new jobs come to this shard."""
    now: float
    backlog: Backlog
    runs: RunCounts
    rates: ClassRates
    limit: ShownLimit
    serving: Sequence[ProcessInfo] | None
    """The processes that fetch from the queue, ``None`` if the queue is not known."""
    blockers: Mapping[str, Sequence[Blocker]]
    """The blockers of its jobs, by queue: the queue of new jobs, and every other with jobs of the class."""
    failures: Sequence[Blocker]
    """Why jobs of it that have begun do not end: they fail, wait for another try, are dead or interrupted."""
    facts: ShownFacts
    """What features say of its jobs."""

    @property
    def has_jobs(self) -> bool:
        """Whether Redis knows of a job of it: one that is there now, or that ran in the last minutes."""
        return bool(self.backlog.places or self.backlog.held or self.runs.processed)

    @property
    def slots(self) -> int | None:
        """The most of its jobs that can run at once: the slots of the processes, or fewer by its limit; ``None`` if not known."""
        if self.serving is None:
            return None
        slots = sum(one.slots for one in self.serving)
        limit = self.limit.limit
        return slots if limit is None or limit == 0 else max(0, min(slots, limit))

    @property
    def capacity(self) -> float | None:
        """The runs per minute if its jobs alone use these slots; ``None`` while the duration of a run is not known."""
        mean_s, slots = self.runs.mean_s, self.slots
        return None if not mean_s or slots is None else slots * _MINUTE_S / mean_s

    @property
    def soonest_s(self) -> float | None:
        """The seconds until none waits at this capacity, without arrivals; ``None`` while it is not known."""
        capacity = self.capacity
        if capacity is None:
            return None
        return self.backlog.waiting / capacity * _MINUTE_S if capacity else float("inf")


class ClassExplainer:
    """Explain classes on one shard. ``explain`` raises redis errors."""

    def __init__(self, snapshot: ShardSnapshot, explainer: Explainer) -> None:
        self._snapshot = snapshot
        self._explainer = explainer

    def explain(
        self, worker: str, aliases: Sequence[str], queue: str | None, on_progress: OnProgress
    ) -> ClassExplanation:
        """Return the explanation of a class by its wire name; ``queue`` is that of its route to this shard, if it has one."""
        client, now = self._snapshot.client, self._snapshot.now
        held = [one for one in held_keys(client) if one.name == worker]
        explainer = self._explainer
        backlog = read_backlog(client, [worker, *aliases], measure_held(client, held), on_progress, explainer.count)
        queues = self._queues(queue, backlog, held)
        chosen = queues[0] if queues else ""
        serving = self._snapshot.processes_serving(chosen) if queues else None
        began = [one.started_at for one in serving or () if one.started_at is not None]
        runs = read_runs(client, worker, now, began)
        is_run = bool(backlog.places[IN_FLIGHT] or runs.processed)
        return ClassExplanation(
            self._snapshot.shard,
            chosen,
            queue is not None,
            now,
            backlog,
            runs,
            measure(backlog, runs, now),
            explainer.limit_of(worker),
            serving,
            {one: explainer.of_class(worker, one, is_run=is_run) for one in queues or [""]},
            list(_failures(worker, backlog, runs)),
            explainer.facts_of_class(worker),
        )

    def _queues(self, routed: str | None, backlog: Backlog, held: Sequence[HeldJobsKey]) -> list[str]:
        """Return the queue of the route, and those with jobs; if there is none, those that held and failed jobs name."""
        waits_in = [
            place.removeprefix(QUEUE_PREFIX)
            for place, _ in backlog.places.most_common()
            if place.startswith(QUEUE_PREFIX)
        ]
        found: list[str] = [] if routed is None else [routed]
        found += [name for name in waits_in if name != routed]
        if found:
            return found
        return [name for name, _ in (backlog.queues + self._queues_of_held(held)).most_common()]

    def _queues_of_held(self, held: Sequence[HeldJobsKey]) -> Counter[str]:
        pipeline: Any = self._snapshot.client.pipeline(transaction=False)
        for one in held[:_MOST_HELD]:
            pipeline.zrange(one.key, 0, 0)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        members = [cast("list[bytes]", reply)[0] for reply in replies if isinstance(reply, list) and reply]
        named = [loads_object(payload_of_member(member)).get("queue") for member in members]
        return Counter(parent_of(name) for name in named if isinstance(name, str))


def _failures(worker: str, backlog: Backlog, runs: RunCounts) -> Iterator[Blocker]:
    if runs.failed and runs.failed * 2 >= runs.processed:
        window = format_duration(runs.minutes * _MINUTE_S)
        why = f"{runs.failed:,} of the {runs.processed:,} runs in {window} failed"
        shown = remedy_command("jobs", "list", "retry", "--class", worker)
        yield Blocker("failing", why, f"a release without the error; {shown} shows the messages")
    for place, one in _FAILED_JOBS.items():
        if count := backlog.places[place]:
            errors = backlog.errors[place].most_common(_MOST_ERRORS)
            most = ", ".join(f"{error} {number:,}" for error, number in errors)
            remedy = remedy_command("jobs", *one.words, "--class", worker)
            yield Blocker(one.code, f"{one.text}: {count:,} ({most})", f"{one.released_by} {remedy}")
