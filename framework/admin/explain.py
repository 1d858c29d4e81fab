"""Explain why a job does not run and what makes it run: its blockers, in the order in which they apply."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from framework import timings
from framework.admin.explain_reader import (
    Blocker,
    ExplainReader,
    HeldPosition,
    KeptFact,
    ShardSnapshot,
    ShownFacts,
    ShownLimit,
    deferrals_of,
    joined_facts,
)
from framework.admin.search import JobLocation, JobStore
from framework.command_line import command, remedy_command, worker_command
from framework.declare.declaration import Declaration
from framework.execute.admission import LOCAL_STAGES, REMOTE_STAGES
from framework.execute.timeouts import timeout_of
from framework.feature import all_features
from framework.settings.model import CoreSettings
from framework.text import Sentence, format_count, format_duration, format_times, joined
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.job import (
    DEATH_COUNT,
    DEFERRED,
    DEFERRED_BY,
    INTERRUPTED_COUNT,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    count_of,
    expiry_of,
    timestamp,
)
from framework.wire.keys import split_owner
from framework.wire.sub_queues import NORMAL, level_of, parent_of

_MAX_TEXT = 200
_WAITING = frozenset[str]({"scheduled", "retry", "queue", "waiting", "paused"})
"""The kinds of places whose jobs run by themselves."""
_EARLY_END = Sentence("the process that fetches it, which ends it without running")
_RUBY_EARLY_END = Sentence(
    "the process that runs it: an iterable job ends before its next item; any other runs, and may read `self.cancelled`"
)
_NO_ERROR = Sentence(
    "no run of it has failed. An operator or a program (Sidekiq's Web, its API) killed it, or it was "
    "quarantined: then its log line with job_status quarantined has the reason"
)
_UNRECORDED = Sentence("no error was recorded")
_MAX_TIMES = 1_000_000
# Three heartbeats of Sidekiq.
_SIDEKIQ_SILENT_S = 30.0


@dataclass(frozen=True, slots=True)
class Interruptions:
    """How often a job was interrupted by the stop of its process, and by its death; a negative ``limit`` means no limit.

    ``limit`` is ``None`` if the settings could not be read.
    """

    stops: int
    deaths: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a job at one place. ``since`` and ``due`` are epoch seconds of the shard's clock, as is ``now``."""

    shard: str
    location: JobLocation
    where: str
    since: float | None
    due: float | None
    now: float
    resources: Sequence[str]
    interruptions: Interruptions
    blockers: Sequence[Blocker]
    origin: ShownFacts
    """What has made it, such as its batch."""
    wishes: ShownFacts
    """What its push has asked for, such as an answer."""
    progress: ShownFacts
    """What its runs have done."""


@dataclass(frozen=True, slots=True)
class KnownClasses:
    """The worker classes of this installation; ``declarations`` is ``None`` if they could not be loaded."""

    declarations: Mapping[str, Declaration] | None = None
    retired: Mapping[str, str] = field(default_factory=dict[str, str])
    interruption_limit: int | None = None
    """The setting ``max_retries_after_interruption``."""

    @classmethod
    def of(cls, declarations: Iterable[Declaration], settings: CoreSettings) -> "KnownClasses":
        """Return these classes, with their former names."""
        current = {one.wire_name: one for one in declarations}
        former = {alias: one for one in current.values() for alias in one.aliases}
        return cls({**former, **current}, settings.retired_workers, settings.max_retries_after_interruption)

    def declaration(self, payload: Payload) -> Declaration | None:
        return (self.declarations or {}).get(str(payload.get("class")))

    def interruptions(self, payload: Payload) -> Interruptions:
        declaration = self.declaration(payload)
        own = None if declaration is None else declaration.max_retries_after_interruption
        limit = self.interruption_limit if own is None else own
        stops, deaths = (min(count_of(payload, count), _MAX_TIMES) for count in (INTERRUPTED_COUNT, DEATH_COUNT))
        return Interruptions(stops, deaths, limit)


# `explain` names the remedy for each reason. It searches inside of Redis: an index from ids to keys would cost
# every push and every move.
class Explainer:
    """Explain jobs of one shard. Methods raise redis errors."""

    def __init__(self, snapshot: ShardSnapshot, classes: KnownClasses) -> None:
        self._snapshot = snapshot
        self._readers: list[ExplainReader] = [
            one.explain.load()(snapshot) for one in all_features() if one.explain is not None
        ]
        self._classes = classes
        self._timings = timings.current()

    def explain(self, location: JobLocation) -> Explanation:
        payload, place = location.payload, location.store
        where, reasons = self._blockers_at(location, payload)
        reasons = [*self._early_end(location), *reasons]
        return Explanation(
            self._snapshot.shard,
            location,
            where,
            _since(location, payload),
            location.score if place.kind in ("scheduled", "retry") else None,
            self._snapshot.now,
            self._held_resources(place, payload),
            self._classes.interruptions(payload),
            reasons,
            self.origin(payload),
            joined_facts(one.wishes(payload) for one in self._readers),
            joined_facts(one.progress(payload) for one in self._readers),
        )

    def origin(self, payload: Payload) -> ShownFacts:
        """Return what has made a job."""
        return joined_facts(one.origin(payload) for one in self._readers)

    def kept(self, jid: Jid) -> Mapping[str, KeptFact | None]:
        """Return what the shard keeps of a job, also after its end, by the name of the field."""
        return {one.kept_name: one.kept(jid) for one in self._readers if one.kept_name}

    def count(self, jobs: Sequence[Payload]) -> None:
        """Count jobs of the class that is explained, for ``facts_of_class``."""
        for one in self._readers:
            one.count(jobs)

    def facts_of_class(self, worker: str) -> ShownFacts:
        """Return what features say of the counted jobs of a class."""
        return joined_facts(one.of_class(worker) for one in self._readers)

    def limit_of(self, worker: str) -> ShownLimit:
        found = (one.limit_of(worker) for one in self._readers)
        return next((limit for limit in found if limit is not None), ShownLimit(None, "", 0))

    def of_class(self, worker: str, queue: str, *, is_run: bool) -> list[Blocker]:
        """Return the blockers of every job of a class that waits in the queue; of an unknown queue (empty) those of the class.

        ``is_run``: Redis shows that processes run the class, whether or not it is loaded here.
        """
        payload = {"class": worker, "queue": queue}
        unknown = [] if is_run and worker not in self._classes.retired else self._unknown_class(payload)
        found = self._queue_blockers(queue) if queue else []
        return [*found, *unknown, *self._policy_blockers(payload)]

    def _blockers_at(self, location: JobLocation, payload: Payload) -> tuple[str, list[Blocker]]:
        name, position = location.store.name, _ordinal(location)
        result: tuple[str, list[Blocker]]
        match location.store.kind:
            case "scheduled":
                unknown = [] if self._unknown_class(payload) else self._unknown_class_so_far(payload)
                deferrals = [*self.deferrals(payload), *unknown]
                result = (
                    Sentence("schedule, {position}", position=position),
                    [*deferrals, *self._until_due(location, payload)],
                )
            case "retry":
                failed = [
                    Blocker(
                        "failed",
                        Sentence("it failed: {error}", error=_error_text(payload)),
                        Sentence("its next run"),
                    )
                ]
                reasons = [reason for one in self._readers for reason in one.not_run(payload)] or failed
                result = (
                    Sentence("retry, {position}", position=position),
                    [*reasons, *self._until_due(location, payload)],
                )
            case "queue":
                result = (
                    Sentence("queue {name}, {position}", name=name, position=position),
                    self._in_queue(location, payload),
                )
            case "waiting" | "paused":
                result = self._held(location, payload)
            case "in flight" | "running" as kind:
                result = self._in_process(kind, name, payload)
            case "migrating":
                result = Sentence("queue {name}, set aside", name=name), [self._migrating(name)]
            case "dead":
                result = Sentence("dead set, {position}", position=position), [_dead_blocker(payload)]
            case "interrupted":
                result = Sentence("interrupted set, {position}", position=position), [_interrupted_blocker(payload)]
        return result

    def _in_queue(self, location: JobLocation, payload: Payload) -> list[Blocker]:
        name = location.store.name
        queue = parent_of(name)
        reasons = self._queue_blockers(queue)
        if not reasons and queue != name:
            level, before = level_of(name), format_count(location.position - 1, "job")
            others = (
                Sentence("each other key of {queue} has its turn", queue=queue)
                if level == NORMAL
                else Sentence("its priority is {level}", level=level)
            )
            reasons.append(
                Blocker(
                    "queue_position",
                    Sentence("{before} of its key before it, and {others}", before=before, others=others),
                    Sentence("the fetch of the jobs before it"),
                )
            )
        elif not reasons and location.position > 1:
            ahead = Sentence("{jobs} before it", jobs=format_count(location.position - 1, "job", "is"))
            reasons.append(Blocker("queue_position", ahead, Sentence("the fetch of the jobs before it")))
        reasons += self._admission_blockers(payload)
        if not reasons:
            reasons.append(
                Blocker(
                    "next",
                    Sentence("nothing blocks it: it is the next job of its queue"),
                    Sentence("the next free thread"),
                )
            )
        return reasons

    def _in_process(self, kind: str, name: str, payload: Payload) -> tuple[str, list[Blocker]]:
        if kind == "running":
            return Sentence("runs in {name}, a process of Sidekiq", name=name), [self._in_sidekiq(name, payload)]
        return Sentence("in flight in {name}", name=name), [self._in_flight(name, payload)]

    def _in_flight(self, list_owner: str, payload: Payload) -> Blocker:
        owner = self._snapshot.owner(list_owner, str(payload.get("jid")))
        identity, _ = split_owner(list_owner)
        if owner.lease_s is None:
            silent = (
                "" if owner.silent_s is None else Sentence(", silent for {time}", time=format_duration(owner.silent_s))
            )
            return Blocker(
                "process_dead",
                Sentence(
                    "the process {identity} is dead: its lease has expired{silent}", identity=identity, silent=silent
                ),
                self._sweep_remedy(),
            )
        lease = Sentence("its lease expires in {time}", time=format_duration(owner.lease_s))
        if owner.silent_s is not None and owner.silent_s > self._timings.silent_after_s:
            silent = Sentence(
                "the process {identity} sent no heartbeat for {time}: it is dead, frozen or cut off",
                identity=identity,
                time=format_duration(owner.silent_s),
            )
            return Blocker(
                "process_silent",
                Sentence("{silent}; {lease}", silent=silent, lease=lease),
                Sentence("its next heartbeat; else {sweep_remedy} after that", sweep_remedy=self._sweep_remedy()),
            )
        if owner.running_since is not None:
            return Blocker(
                "running",
                Sentence(
                    "it runs, since {time}; {lease}",
                    time=format_duration(self._snapshot.now - owner.running_since),
                    lease=lease,
                ),
                self.end_of_run(payload),
            )
        period_s = self._timings.record_period_s
        why = Sentence(
            "fetched, but not begun when its process last wrote its record (each {period_s:g} s); {lease}",
            period_s=period_s,
            lease=lease,
        )
        remedy = Sentence("a free thread of that process; or its stop, which puts the job back")
        return Blocker(
            "fetched", why, Sentence("{remedy}; if it dies, a sweep after the lease has expired", remedy=remedy)
        )

    def _in_sidekiq(self, identity: str, payload: Payload) -> Blocker:
        owner = self._snapshot.owner(identity, str(payload.get("jid")))
        if owner.silent_s is not None and owner.silent_s > _SIDEKIQ_SILENT_S:
            why = Sentence(
                "the process {identity} sent no heartbeat for {time}: it is dead, frozen or cut off",
                identity=identity,
                time=format_duration(owner.silent_s),
            )
            remedy = Sentence(
                "its next heartbeat. If it is dead, the job is lost, unless it has Sidekiq Pro's super_fetch: push it again"
            )
            return Blocker("process_silent", why, remedy)
        began = owner.running_since
        since = "" if began is None else Sentence(", since {time}", time=format_duration(self._snapshot.now - began))
        why = Sentence(
            "it runs in Ruby{since}, by the record of its process: no key has the job itself meanwhile", since=since
        )
        return Blocker("running", why, Sentence("its end"))

    def _migrating(self, queue: str) -> Blocker:
        owner = self._snapshot.owner(keys.migration_identity(queue), "")
        why = Sentence(
            "{command} or {other} has set the queue {queue} aside, to move or drop its jobs",
            command=command("migrate-jobs"),
            other=command("jobs clear"),
            queue=queue,
        )
        if owner.lease_s is None:
            return Blocker("migration_dead", Sentence("{why}, and is dead", why=why), self._sweep_remedy())
        remedy = Sentence(
            "the command, which moves or drops the job; if it dies, a sweep puts the job back after the lease has expired"
        )
        return Blocker(
            "migrating", why, Sentence("{remedy} ({time})", remedy=remedy, time=format_duration(owner.lease_s))
        )

    def _held(self, location: JobLocation, payload: Payload) -> tuple[str, list[Blocker]]:
        found = (one.held(location) for one in self._readers)
        where, reasons = next(
            filter(None, found), HeldPosition(Sentence("held as {name}", name=location.store.name), [])
        )
        queue = str(payload.get("queue", ""))
        return Sentence("{where}, {ordinal}", where=where, ordinal=_ordinal(location)), [
            *reasons,
            *self._queue_blockers(queue),
            *self._unknown_class(payload),
        ]

    def _early_end(self, location: JobLocation) -> list[Blocker]:
        """Return why the job at this place will not run, or is to end: it was cancelled, or its ``expires_in`` has passed."""
        kind, payload, now = location.store.kind, location.payload, self._snapshot.now
        if kind not in (*_WAITING, "in flight", "running"):
            return []
        blockers: list[Blocker] = []
        since, what = self._snapshot.cancelled_since(str(payload.get("jid"))), "it"
        sees = Sentence(
            "the job itself, when it reads self.cancelled; the task of an async job is cancelled within five seconds"
        )
        if since is None and (found := next(filter(None, (one.cancellation(payload) for one in self._readers)), None)):
            since, what, sees = found.since, found.what, Sentence("the job itself, when it reads self.cancelled")
        if kind == "running":
            sees = Sentence(
                "the job itself, if it includes Sidekiq::IterableJob or reads `cancelled?`; any other job of Ruby runs to "
                "its end"
            )
        if since is not None:
            why = Sentence("{what} was cancelled {time} ago", what=what, time=format_duration(max(0.0, now - since)))
            blockers.append(Blocker("cancelled", why, _EARLY_END if kind in _WAITING else sees))
        elif (marked := self._snapshot.marked_by_ruby_since(str(payload.get("jid")))) is not None:
            why = Sentence("Sidekiq's cancel! has marked it {time} ago", time=format_duration(max(0.0, now - marked)))
            blockers.append(Blocker("cancelled_by_ruby", why, _RUBY_EARLY_END))
        expiry = expiry_of(payload, location.score if kind == "scheduled" else None)
        if kind in _WAITING and expiry is not None and expiry <= now:
            why = Sentence(
                "it expired {time} ago: it was to begin earlier (expires_in)", time=format_duration(now - expiry)
            )
            blockers.append(Blocker("expired", why, _EARLY_END))
        return blockers

    def end_of_run(self, payload: Payload) -> str:
        """Return what ends a running job. Without its class only a timeout in the payload is known."""
        declaration = self._classes.declaration(payload)
        timeout_s = timeout_of(declaration, payload)
        bound = "" if timeout_s is None else Sentence(", or its timeout of {time}", time=format_duration(timeout_s))
        places = () if declaration is None else (one.place_of_run(declaration) for one in self._readers)
        return joined([Sentence("its end{bound}", bound=bound), *filter(None, places)])

    def deferrals(self, payload: Payload) -> list[Blocker]:
        """Return why a job of the schedule set was put there by a process."""
        delays = [found for one in self._readers for found in one.scheduled(payload)]
        if not payload.get(DEFERRED):
            return delays
        times = format_times(deferrals_of(payload))
        remedy = Sentence(
            "its due time; earlier: {command}",
            command=remedy_command("jobs", "deferred", "run-now", str(payload.get("class"))),
        )
        own = next(filter(None, (one.deferral(payload, times, remedy) for one in self._readers)), None)
        if own is not None:
            return [own]
        declaration = self._classes.declaration(payload)
        cause = next(filter(None, (one.cause_of_deferral(payload, declaration) for one in self._readers)), "")
        why = Sentence(
            "deferred {times}, the last time by {reason}{cause}",
            times=times,
            reason=payload.get(DEFERRED_BY),
            cause=(Sentence(": {cause}", cause=cause) if cause else ""),
        )
        return [*delays, Blocker("deferred", why, remedy)]

    def _until_due(self, location: JobLocation, payload: Payload) -> list[Blocker]:
        facts, due = self._snapshot, location.score or 0.0
        queue = str(payload.get("queue", ""))
        if due > facts.now:
            reasons = [
                Blocker(
                    "not_due",
                    Sentence("it is due in {time}", time=format_duration(due - facts.now)),
                    Sentence("its time"),
                )
            ]
        else:
            overdue = Sentence("it has been due for {time}", time=format_duration(facts.now - due))
            reasons = [Blocker("overdue", overdue, Sentence("a poller of any process, within seconds"))]
        return [*reasons, *self._queue_blockers(queue), *self._admission_blockers(payload)]

    def _queue_blockers(self, name: str) -> list[Blocker]:
        """Return the blockers that keep every job of the queue from being fetched."""
        facts = self._snapshot
        start = worker_command("--shard", facts.shard, "-q", name)
        serving = facts.processes_serving(name)
        reasons: list[Blocker] = []
        if not facts.processes:
            reasons.append(
                Blocker(
                    "no_process",
                    Sentence("no process of {shard} is running", shard=facts.shard),
                    Sentence("one that serves it: {start}", start=start),
                )
            )
        elif not serving:
            quiet = sum(seen.quiet for seen in facts.processes)
            note = (
                Sentence(
                    " (quiet, and fetching no more: {quiet} of {processes})",
                    quiet=quiet,
                    processes=format_count(len(facts.processes), "process"),
                )
                if quiet
                else ""
            )
            why = Sentence(
                "no running process of {shard} serves the queue {name}{note}", shard=facts.shard, name=name, note=note
            )
            reasons.append(Blocker("queue_unserved", why, Sentence("one that does: {start}", start=start)))
        if name in facts.paused_queues:
            remedy = remedy_command("jobs", "unpause-queue", name)
            pause = facts.queue_pauses.get(name)
            by = (
                ""
                if pause is None
                else Sentence(
                    " by {by}{reason}",
                    by=pause.by,
                    reason=(Sentence(": {reason}", reason=pause.reason) if pause.reason else ""),
                )
            )
            reasons.append(
                Blocker(
                    "queue_paused",
                    Sentence("the queue {name} is paused{by} (Sidekiq's set `paused`)", name=name, by=by),
                    remedy,
                )
            )
        if serving and all(seen.busy >= seen.slots for seen in serving):
            threads = sum(seen.slots for seen in serving)
            busy = Sentence(
                "{threads} in {processes}",
                threads=format_count(threads, "thread"),
                processes=format_count(len(serving), "process"),
            )
            reasons.append(
                Blocker(
                    "busy",
                    Sentence("each thread that serves {name} is busy: {busy}", name=name, busy=busy),
                    Sentence("the first job that ends"),
                )
            )
        return reasons

    def _admission_blockers(self, payload: Payload) -> list[Blocker]:
        """Return the blockers of the job in a process that fetches it, in the order of the policies."""
        return self._unknown_class(payload) or self._policy_blockers(payload)

    def _policy_blockers(self, payload: Payload) -> list[Blocker]:
        declaration = self._classes.declaration(payload)
        # Policies know a class by its present name only.
        name = str(payload.get("class", "")) if declaration is None else declaration.wire_name
        queue = str(payload.get("queue", ""))
        stages = (*LOCAL_STAGES, *REMOTE_STAGES)
        return [found for stage in stages for one in self._readers for found in one.blockers(stage, name, queue)]

    def _unknown_class(self, payload: Payload) -> list[Blocker]:
        """Return the blockers of a job if no class has its name any more; also for a held job after its release."""
        name, classes = str(payload.get("class", "")), self._classes
        if name in classes.retired:
            why = Sentence("its class {name} is retired: {reason}", name=name, reason=classes.retired[name])
            return [Blocker("retired", why, Sentence("the process that fetches it drops and counts it"))]
        if classes.declarations is not None and name not in classes.declarations:
            why = Sentence(
                "no worker here is called {name}: a process without the class defers it, and its retries stay untouched",
                name=name,
            )
            reason = Blocker("unknown_class", why, Sentence("a release with the class, or an alias of its new name"))
            return self._unknown_class_so_far(payload) or [reason]
        return []

    def _unknown_class_so_far(self, payload: Payload) -> list[Blocker]:
        """Return the blocker of a job that processes without its class have deferred; none if no process has."""
        count = min(count_of(payload, UNKNOWN_COUNT), _MAX_TIMES)
        if count < 1:
            return []
        name, since = payload.get("class"), timestamp(payload.get(UNKNOWN_SINCE))
        if since is None:
            times = format_times(count)
            why = Sentence(
                "{name} belongs to another application (foreign_classes): processes of this one have put it back {times}",
                name=name,
                times=times,
            )
            return [Blocker("foreign_class", why, Sentence("a process of that application"))]
        for_s = format_duration(max(0.0, self._snapshot.now - since))
        why = Sentence(
            "processes without its class deferred it {times} in {for_s}: {error}",
            times=format_times(count),
            for_s=for_s,
            error=_error_text(payload),
        )
        remedy = Sentence("a process that has the class; after unknown_class_max_wait it goes to the interrupted set")
        return [Blocker("unknown_class", why, remedy)]

    def _sweep_remedy(self) -> str:
        if self._snapshot.processes:
            within_s = self._timings.longest_sweep_period_s
            return Sentence(
                "the sweep of any process of {shard}, within {within_s:g} s, reclaims it",
                shard=self._snapshot.shard,
                within_s=within_s,
            )
        return Sentence(
            "the next process of {shard} that starts reclaims it; none is running", shard=self._snapshot.shard
        )

    def _held_resources(self, store: JobStore, payload: Payload) -> list[str]:
        """Return what features hold for the job, such as a lock and slots: what a process takes last comes first."""
        identity = store.name if store.kind == "in flight" else ""
        return [text for one in reversed(self._readers) for text in one.resources(payload, identity)]


def _since(location: JobLocation, payload: Payload) -> float | None:
    """Return since when the job has been at its place, ``None`` if that was not recorded."""
    match location.store.kind:
        case "queue" | "migrating" | "in flight" | "running":
            return timestamp(payload.get("enqueued_at"))
        case "scheduled":
            return timestamp(payload.get("created_at"))
        case "retry":
            return timestamp(payload.get("retried_at")) or timestamp(payload.get("failed_at"))
        case _:
            return location.score


def _dead_blocker(payload: Payload) -> Blocker:
    retry = remedy_command("jobs", "retry", str(payload.get("jid")))
    return Blocker(
        "dead",
        Sentence("it is dead: {error}", error=_error_text(payload, absent=_NO_ERROR)),
        Sentence("an operator, while the dead set has it: {retry}", retry=retry),
    )


def _interrupted_blocker(payload: Payload) -> Blocker:
    requeue = remedy_command("jobs", "requeue", str(payload.get("jid")))
    if UNKNOWN_SINCE in payload:
        why = Sentence("it waited too long for a process that has its class: {error}", error=_error_text(payload))
        return Blocker("unknown_class", why, Sentence("an operator: deploy the class, then {requeue}", requeue=requeue))
    if count_of(payload, DEATH_COUNT) > count_of(payload, INTERRUPTED_COUNT):
        why = Sentence("too many processes died while it ran: it is suspected of killing them")
    else:
        why = Sentence(
            "it was still running too often when its process had to stop: it takes longer than the deadline -t"
        )
    return Blocker("interrupted", why, Sentence("an operator: find the cause, then {requeue}", requeue=requeue))


def _ordinal(location: JobLocation) -> str:
    return Sentence(
        "{position} of {total:,}",
        position=(
            Sentence("next") if location.position == 1 else Sentence("number {position:,}", position=location.position)
        ),
        total=location.total,
    )


def _error_text(payload: Payload, *, absent: str = _UNRECORDED) -> str:
    if not payload:
        return Sentence("its payload is malformed")
    name, message = payload.get("error_class"), payload.get("error_message")
    text = f"{name}: {message}" if message else (str(name) if name else absent)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
