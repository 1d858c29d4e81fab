"""Why a job does not run, and what will make it: one reason after the other, in the order in which they stand in its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import redis

from framework.admin.blockers import Blocker, PolicyBlockers
from framework.admin.deferred import deferral_count
from framework.admin.search import JobLocation, JobStore, display_name
from framework.admin.snapshot import ShardSnapshot
from framework.admin.times import format_duration, format_times
from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import (
    DEATH_COUNT,
    DEFERRED,
    DEFERRED_BY,
    INTERRUPTED_COUNT,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    count_of,
    timestamp,
)
from framework.wire.resources import lock_of, slot_member

_MAX_TEXT = 200
_MAX_TIMES = 1_000_000
_SILENT_AFTER_S = 9.0
"""Three beats of a process that were to come and did not."""

_SWEEP_PERIOD_S = 6.0
"""A sweep of every process comes each 5 s, give or take a fifth."""


@dataclass(frozen=True, slots=True)
class Interruptions:
    """How often a job still ran when its process had to stop, and when it died; ``limit`` of either ends it, below 0 never.

    ``limit`` is ``None`` where the settings could not be read.
    """

    stops: int
    deaths: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sighting of a job, told: ``since`` and ``due`` are epoch seconds of the shard's clock, ``now`` is its present."""

    shard: str
    location: JobLocation
    where: str
    since: float | None
    due: float | None
    now: float
    resources: Sequence[str]
    interruptions: Interruptions
    blockers: Sequence[Blocker]


@dataclass(frozen=True, slots=True)
class KnownClasses:
    """What this installation knows of worker classes; ``declarations`` is ``None`` when they could not be loaded."""

    declarations: Mapping[str, Declaration] | None = None
    retired: Mapping[str, str] = field(default_factory=dict[str, str])
    interruption_limit: int | None = None
    """The setting ``max_retries_after_interruption``."""

    def interruptions(self, payload: Payload) -> Interruptions:
        """Return how often a job was interrupted, and how often it may be."""
        declaration = (self.declarations or {}).get(str(payload.get("class")))
        own = None if declaration is None else declaration.max_retries_after_interruption
        limit = self.interruption_limit if own is None else own
        stops, deaths = (min(count_of(payload, count), _MAX_TIMES) for count in (INTERRUPTED_COUNT, DEATH_COUNT))
        return Interruptions(stops, deaths, limit)


# Decision 140: `explain` names the remedy for each reason.
class Explainer:
    """Explains sightings on one shard. Methods raise redis errors."""

    def __init__(self, client: "redis.Redis", shard: str, classes: KnownClasses) -> None:
        self._snapshot = ShardSnapshot(client, shard)
        self._policies = PolicyBlockers(self._snapshot)
        self._classes = classes

    def explain(self, location: JobLocation) -> Explanation:
        """Return what is to be said of a job that was seen there."""
        payload, place = location.payload, location.store
        where, reasons = self._blockers_at(location, payload)
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
        )

    def _blockers_at(self, location: JobLocation, payload: Payload) -> tuple[str, list[Blocker]]:
        """What there is to say of its place."""
        name, spot = location.store.name, _ordinal(location)
        match location.store.kind:
            case "scheduled":
                met = (
                    [] if self._unknown_class(payload) else self._unknown_class_so_far(payload)
                )  # else among what follows
                put_off = [*_deferral_blockers(payload), *met]
                told = f"schedule, {spot}", [*put_off, *self._until_due(location, payload)]
            case "retry":
                failed = Blocker("failed", f"it failed: {_error_text(payload)}", "its next run")
                told = f"retry, {spot}", [failed, *self._until_due(location, payload)]
            case "queue":
                told = f"queue {name}, {spot}", self._in_queue(location, payload)
            case "waiting":
                told = self._at_limit(location, payload)
            case "paused":
                told = f"parked for the pause of {name}, {spot}", self._held_by_pause(name, payload)
            case "in flight":
                told = f"in the hands of {name}", [self._in_flight(name, payload)]
            case "migrating":
                told = f"queue {name}, put aside", [self._migrating(name)]
            case "dead":
                release = "nothing by itself: Retry on the Dead page of a dashboard, while the set still keeps it"
                told = f"dead set, {spot}", [Blocker("dead", f"given up: {_error_text(payload)}", release)]
            case "interrupted":
                told = f"interrupted set, {spot}", [_interrupted_blocker(payload)]
        return told

    def _in_queue(self, location: JobLocation, payload: Payload) -> list[Blocker]:
        name = location.store.name
        reasons = self._queue_blockers(name)
        if not reasons and location.position > 1:
            ahead = f"{location.position - 1:,} {'job is' if location.position == 2 else 'jobs are'} before it"
            reasons.append(Blocker("queue_position", ahead, "it is its turn when those have been fetched"))
        reasons += self._admission_blockers(payload)
        if not reasons:
            reasons.append(Blocker("next", "nothing is in its way: it is the next of its queue", "the next free slot"))
        return reasons

    def _in_flight(self, identity: str, payload: Payload) -> Blocker:
        owner = self._snapshot.owner(identity, str(payload.get("jid")))
        if owner.lease_s is None:
            silent = "" if owner.silent_s is None else f", silent for {format_duration(owner.silent_s)}"
            return Blocker(
                "process_dead", f"the process {identity} is dead: its lease is gone{silent}", self._sweep_remedy()
            )
        held = f"its lease holds for {format_duration(owner.lease_s)}"
        if owner.silent_s is not None and owner.silent_s > _SILENT_AFTER_S:
            silent = f"the process {identity} has not beaten for {format_duration(owner.silent_s)}: it is dead, frozen or cut off"
            return Blocker(
                "process_silent", f"{silent}; {held}", f"its next beat; else {self._sweep_remedy()} after that"
            )
        if owner.running_since is not None:
            return Blocker(
                "running",
                f"it runs, since {format_duration(self._snapshot.now - owner.running_since)}; {held}",
                "its end",
            )
        why = f"fetched, and not begun when its process last wrote what it does (each 5 s); {held}"
        release = "a free slot of that process, or its stop, which gives it back"
        return Blocker("fetched", why, f"{release}; should it die, a sweep when the lease has run out")

    def _migrating(self, queue: str) -> Blocker:
        owner = self._snapshot.owner(keys.migration_identity(queue), "")
        why = f"{command('migrate-jobs')} has put the queue {queue} aside to go through it"
        if owner.lease_s is None:
            return Blocker("migration_dead", f"{why}, and is dead", self._sweep_remedy())
        release = "the command, which hands it on; should it die, a sweep puts it back when the lease has run out"
        return Blocker("migrating", why, f"{release} ({format_duration(owner.lease_s)})")

    def _at_limit(self, location: JobLocation, payload: Payload) -> tuple[str, list[Blocker]]:
        base = location.store.name
        scope = display_name(location.store.key).removeprefix(f"{keys.limit(base)}:waiting:")
        where = f"waits at the limit {base}{f' as one of {scope}' if scope else ''}, {_ordinal(location)}"
        reasons = self._policies.limit(base, is_waiting=True, scope=scope)
        queue = str(payload.get("queue", ""))
        return where, [*reasons, *self._queue_blockers(queue), *self._unknown_class(payload)]

    def _held_by_pause(self, name: str, payload: Payload) -> list[Blocker]:
        why = f"it was parked while {name} was paused, and nobody pauses it now"
        reasons = self._policies.pause(name) or [Blocker("resuming", why, "any process, in seconds")]
        return [*reasons, *self._queue_blockers(str(payload.get("queue", ""))), *self._unknown_class(payload)]

    def _until_due(self, location: JobLocation, payload: Payload) -> list[Blocker]:
        facts, due = self._snapshot, location.score or 0.0
        queue = str(payload.get("queue", ""))
        if due > facts.now:
            reasons = [Blocker("not_due", f"it is due in {format_duration(due - facts.now)}", "its time")]
        else:
            late = f"it has been due for {format_duration(facts.now - due)}"
            reasons = [Blocker("overdue", late, "a poller of any process, within a second or a few")]
        return [*reasons, *self._queue_blockers(queue), *self._admission_blockers(payload)]

    def _queue_blockers(self, name: str) -> list[Blocker]:
        """What keeps any job of the queue from being fetched."""
        facts = self._snapshot
        start = command(f"worker --shard {facts.shard} -q {name}")
        serving = facts.processes_serving(name)
        reasons: list[Blocker] = []
        if not facts.processes:
            reasons.append(
                Blocker("no_process", f"no process of {facts.shard} is running", f"one that serves it: {start}")
            )
        elif not serving:
            quiet = sum(seen.quiet for seen in facts.processes)
            note = f" ({quiet} of {len(facts.processes)} are quiet and take no more)" if quiet else ""
            why = f"no running process of {facts.shard} serves the queue {name}{note}"
            reasons.append(Blocker("queue_unserved", why, f"one that does: {start}"))
        if name in facts.paused_queues:
            release = f"Unpause on a dashboard's Queues page, or SREM paused {name}"
            reasons.append(Blocker("queue_paused", f"the queue {name} is paused (Sidekiq's set `paused`)", release))
        if serving and all(seen.busy >= seen.slots for seen in serving):
            slots = sum(seen.slots for seen in serving)
            many = f"{len(serving)} {'process' if len(serving) == 1 else 'processes'}"
            reasons.append(
                Blocker(
                    "busy", f"all {slots} slots of the {many} that serve {name} are busy", "the first job that ends"
                )
            )
        return reasons

    def _admission_blockers(self, payload: Payload) -> list[Blocker]:
        """What a process that fetches it will find, in the order of the gates."""
        name = str(payload.get("class", ""))
        declarations = self._classes.declarations
        if unknown := self._unknown_class(payload):
            return unknown
        if declarations is not None:
            name = declarations[name].wire_name  # what it was called once is not what valves know it by
        return self._policies.at_admission(name, str(payload.get("queue", "")))

    def _unknown_class(self, payload: Payload) -> list[Blocker]:
        """What becomes of it if no class is called so any more: also of a job that is parked, once it is let go."""
        name, classes = str(payload.get("class", "")), self._classes
        if name in classes.retired:
            why = f"its class {name} is retired: {classes.retired[name]}"
            return [Blocker("retired", why, "who fetches it drops and counts it")]
        if classes.declarations is not None and name not in classes.declarations:
            why = f"no worker here is called {name}: a process without the class that fetches it puts it off, its retries untouched"
            reason = Blocker("unknown_class", why, "a release with the class, or an alias of its new name")
            return self._unknown_class_so_far(payload) or [reason]
        return []

    def _unknown_class_so_far(self, payload: Payload) -> list[Blocker]:
        """Tell of the processes without its class that have put it off."""
        count = min(count_of(payload, UNKNOWN_COUNT), _MAX_TIMES)
        if count < 1:
            return []
        name, since = payload.get("class"), timestamp(payload.get(UNKNOWN_SINCE))
        if since is None:
            times = format_times(count)
            why = f"{name} belongs to another application (foreign_classes): processes of this one have put it back {times}"
            return [Blocker("foreign_class", why, "a process of that application")]
        for_s = format_duration(max(0.0, self._snapshot.now - since))
        why = f"processes without its class put it off {format_times(count)} in {for_s}: {_error_text(payload)}"
        release = "a process that has the class; it is set aside when it has waited for unknown_class_max_wait"
        return [Blocker("unknown_class", why, release)]

    def _sweep_remedy(self) -> str:
        if self._snapshot.processes:
            return f"the sweep of any process of {self._snapshot.shard}, within {_SWEEP_PERIOD_S:g} s, takes it back"
        return f"nobody: no process of {self._snapshot.shard} is running, and the first that starts takes it back"

    def _held_resources(self, store: JobStore, payload: Payload) -> list[str]:
        """Its lock, and its slots: those of a run, or of one that was handed over to it."""
        jid = str(payload.get("jid"))
        bases = [str(payload.get("class")), f"queue/{payload.get('queue')}"]
        members = [slot_member("", jid), *([slot_member(store.name, jid)] if store.kind == "in flight" else [])]
        return [
            *self._lock(payload),
            *(
                f"a slot of {base} for {format_duration(left_s)}"
                for base, left_s in self._snapshot.held_slots(bases, members)
            ),
        ]

    def _lock(self, payload: Payload) -> list[str]:
        lock = lock_of(payload)
        if lock is None:
            return []
        fields, left_s = self._snapshot.lock(lock.key)
        if not fields:
            return [f"no lock any more: {lock.key} has run out or was released; an equal job may be pushed"]
        left = "without end" if left_s is None else f"for {format_duration(left_s)}"
        if fields.get("jid") == lock.owner:
            return [f"the lock {lock.key} {left}: equal jobs are dropped"]
        return [f"no lock any more: {lock.key} has gone over to the job {fields.get('jid')}, {left}"]


def _since(location: JobLocation, payload: Payload) -> float | None:
    """Since when it has been where it is, as far as anybody wrote it down."""
    match location.store.kind:
        case "queue" | "migrating" | "in flight":
            return timestamp(payload.get("enqueued_at"))
        case "scheduled":
            return timestamp(payload.get("created_at"))
        case "retry":
            return timestamp(payload.get("retried_at")) or timestamp(payload.get("failed_at"))
        case _:
            return location.score


def _deferral_blockers(payload: Payload) -> list[Blocker]:
    if not payload.get(DEFERRED):
        return []
    times_put_off = format_times(deferral_count(payload))
    worker = payload.get("class")
    release = f"its time; earlier: {command(f'jobs deferred run-now {worker}')}"
    return [Blocker("deferred", f"put off {times_put_off}, the last time by {payload.get(DEFERRED_BY)}", release)]


def _interrupted_blocker(payload: Payload) -> Blocker:
    if UNKNOWN_SINCE in payload:
        why = f"it waited too long for a process that has its class: {_error_text(payload)}"
        return Blocker("unknown_class", why, "nothing by itself: deploy the class, and push it anew")
    if count_of(payload, DEATH_COUNT) > count_of(payload, INTERRUPTED_COUNT):
        why = "too many processes died while it ran: it is suspected of killing them"
    else:
        why = "it still ran too often when its process had to stop: it takes longer than the deadline -t"
    return Blocker("interrupted", why, "nothing by itself: look at what it does, and push it anew")


def _ordinal(location: JobLocation) -> str:
    return f"{'next' if location.position == 1 else f'number {location.position:,}'} of {location.total:,}"


def _error_text(payload: Payload) -> str:
    if not payload:
        return "its bytes are no job that can be read"
    name, message = payload.get("error_class"), payload.get("error_message")
    text = f"{name}: {message}" if message else str(name or "nobody wrote down why")
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
