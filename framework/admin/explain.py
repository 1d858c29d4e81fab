"""Why a job does not run, and what will make it: one reason after the other, in the order in which they stand in its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import redis

from framework.admin.deferred import deferrals_of
from framework.admin.facts import Facts
from framework.admin.search import Place, Sighting, text
from framework.admin.times import lasting, often
from framework.admin.valves import Reason, Valves
from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.types import Payload
from framework.wire import keys
from framework.wire.holds import lock_of, slot_member
from framework.wire.job import (
    DEATHS,
    DEFERRED,
    DEFERRED_BY,
    STOPS,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    times,
    timestamp,
)

_MOST_TEXT = 200
_MOST_TIMES = 1_000_000
_SILENT_S = 9.0
"""Three beats of a process that were to come and did not."""

_SWEEP_S = 6.0
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
    sighting: Sighting
    where: str
    since: float | None
    due: float | None
    now: float
    holds: Sequence[str]
    interruptions: Interruptions
    reasons: Sequence[Reason]


@dataclass(frozen=True, slots=True)
class Classes:
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
        stops, deaths = (min(times(payload, count), _MOST_TIMES) for count in (STOPS, DEATHS))
        return Interruptions(stops, deaths, limit)


class Explainer:
    """Explains sightings on one shard. Methods raise redis errors."""

    def __init__(self, client: "redis.Redis", shard: str, classes: Classes) -> None:
        self._facts = Facts(client, shard)
        self._valves = Valves(self._facts)
        self._classes = classes

    def explain(self, sighting: Sighting) -> Explanation:
        """Return what is to be said of a job that was seen there."""
        payload, place = sighting.payload, sighting.place
        where, reasons = self._at(sighting, payload)
        return Explanation(
            self._facts.shard,
            sighting,
            where,
            _since(sighting, payload),
            sighting.score if place.kind in ("scheduled", "retry") else None,
            self._facts.now,
            self._holds(place, payload),
            self._classes.interruptions(payload),
            reasons,
        )

    def _at(self, sighting: Sighting, payload: Payload) -> tuple[str, list[Reason]]:
        """What there is to say of its place."""
        name, spot = sighting.place.name, _ordinal(sighting)
        match sighting.place.kind:
            case "scheduled":
                met = [] if self._unknown(payload) else self._met_unknown(payload)  # else among what follows
                put_off = [*_deferral(payload), *met]
                told = f"schedule, {spot}", [*put_off, *self._due(sighting, payload)]
            case "retry":
                failed = Reason("failed", f"it failed: {_error(payload)}", "its next run")
                told = f"retry, {spot}", [failed, *self._due(sighting, payload)]
            case "queue":
                told = f"queue {name}, {spot}", self._queued(sighting, payload)
            case "waiting":
                told = self._waiting(sighting, payload)
            case "paused":
                told = f"parked for the pause of {name}, {spot}", self._paused(name, payload)
            case "in hand":
                told = f"in the hands of {name}", [self._hand(name, payload)]
            case "migrating":
                told = f"queue {name}, put aside", [self._migrating(name)]
            case "dead":
                release = "nothing by itself: Retry on the Dead page of a dashboard, while the set still keeps it"
                told = f"dead set, {spot}", [Reason("dead", f"given up: {_error(payload)}", release)]
            case "interrupted":
                told = f"interrupted set, {spot}", [_interrupted(payload)]
        return told

    def _queued(self, sighting: Sighting, payload: Payload) -> list[Reason]:
        name = sighting.place.name
        reasons = self._queue(name)
        if not reasons and sighting.position > 1:
            ahead = f"{sighting.position - 1:,} {'job is' if sighting.position == 2 else 'jobs are'} before it"
            reasons.append(Reason("in_line", ahead, "it is its turn when those have been fetched"))
        reasons += self._door(payload)
        if not reasons:
            reasons.append(Reason("next", "nothing is in its way: it is the next of its queue", "the next free slot"))
        return reasons

    def _hand(self, identity: str, payload: Payload) -> Reason:
        owner = self._facts.owner(identity, str(payload.get("jid")))
        if owner.lease_s is None:
            silent = "" if owner.silent_s is None else f", silent for {lasting(owner.silent_s)}"
            return Reason("process_dead", f"the process {identity} is dead: its lease is gone{silent}", self._sweep())
        held = f"its lease holds for {lasting(owner.lease_s)}"
        if owner.silent_s is not None and owner.silent_s > _SILENT_S:
            silent = (
                f"the process {identity} has not beaten for {lasting(owner.silent_s)}: it is dead, frozen or cut off"
            )
            return Reason("process_silent", f"{silent}; {held}", f"its next beat; else {self._sweep()} after that")
        if owner.running_since is not None:
            return Reason(
                "running", f"it runs, since {lasting(self._facts.now - owner.running_since)}; {held}", "its end"
            )
        why = f"fetched, and not begun when its process last wrote what it does (each 5 s); {held}"
        release = "a free slot of that process, or its stop, which gives it back"
        return Reason("fetched", why, f"{release}; should it die, a sweep when the lease has run out")

    def _migrating(self, queue: str) -> Reason:
        owner = self._facts.owner(keys.migration(queue), "")
        why = f"{command('migrate-jobs')} has put the queue {queue} aside to go through it"
        if owner.lease_s is None:
            return Reason("migration_dead", f"{why}, and is dead", self._sweep())
        release = "the command, which hands it on; should it die, a sweep puts it back when the lease has run out"
        return Reason("migrating", why, f"{release} ({lasting(owner.lease_s)})")

    def _waiting(self, sighting: Sighting, payload: Payload) -> tuple[str, list[Reason]]:
        base = sighting.place.name
        scope = text(sighting.place.key).removeprefix(f"{keys.limit(base)}:waiting:")
        where = f"waits at the limit {base}{f' as one of {scope}' if scope else ''}, {_ordinal(sighting)}"
        reasons = self._valves.limit(base, waits=True, scope=scope)
        queue = str(payload.get("queue", ""))
        return where, [*reasons, *self._queue(queue), *self._unknown(payload)]

    def _paused(self, name: str, payload: Payload) -> list[Reason]:
        why = f"it was parked while {name} was paused, and nobody pauses it now"
        reasons = self._valves.pause(name) or [Reason("resuming", why, "any process, in seconds")]
        return [*reasons, *self._queue(str(payload.get("queue", ""))), *self._unknown(payload)]

    def _due(self, sighting: Sighting, payload: Payload) -> list[Reason]:
        facts, due = self._facts, sighting.score or 0.0
        queue = str(payload.get("queue", ""))
        if due > facts.now:
            reasons = [Reason("not_due", f"it is due in {lasting(due - facts.now)}", "its time")]
        else:
            late = f"it has been due for {lasting(facts.now - due)}"
            reasons = [Reason("overdue", late, "a poller of any process, within a second or a few")]
        return [*reasons, *self._queue(queue), *self._door(payload)]

    def _queue(self, name: str) -> list[Reason]:
        """What keeps any job of the queue from being fetched."""
        facts = self._facts
        start = command(f"worker --shard {facts.shard} -q {name}")
        serving = facts.server_of(name)
        reasons: list[Reason] = []
        if not facts.processes:
            reasons.append(
                Reason("no_process", f"no process of {facts.shard} is running", f"one that serves it: {start}")
            )
        elif not serving:
            quiet = sum(seen.quiet for seen in facts.processes)
            note = f" ({quiet} of {len(facts.processes)} are quiet and take no more)" if quiet else ""
            why = f"no running process of {facts.shard} serves the queue {name}{note}"
            reasons.append(Reason("queue_unserved", why, f"one that does: {start}"))
        if name in facts.paused_queues:
            release = f"Unpause on a dashboard's Queues page, or SREM paused {name}"
            reasons.append(Reason("queue_paused", f"the queue {name} is paused (Sidekiq's set `paused`)", release))
        if serving and all(seen.busy >= seen.slots for seen in serving):
            slots = sum(seen.slots for seen in serving)
            many = f"{len(serving)} {'process' if len(serving) == 1 else 'processes'}"
            reasons.append(
                Reason("busy", f"all {slots} slots of the {many} that serve {name} are busy", "the first job that ends")
            )
        return reasons

    def _door(self, payload: Payload) -> list[Reason]:
        """What a process that fetches it will find, in the order of the gates."""
        name = str(payload.get("class", ""))
        declarations = self._classes.declarations
        if unknown := self._unknown(payload):
            return unknown
        if declarations is not None:
            name = declarations[name].wire_name  # what it was called once is not what valves know it by
        return self._valves.door(name, str(payload.get("queue", "")))

    def _unknown(self, payload: Payload) -> list[Reason]:
        """What becomes of it if no class is called so any more: also of a job that is parked, once it is let go."""
        name, classes = str(payload.get("class", "")), self._classes
        if name in classes.retired:
            why = f"its class {name} is retired: {classes.retired[name]}"
            return [Reason("retired", why, "who fetches it drops and counts it")]
        if classes.declarations is not None and name not in classes.declarations:
            why = f"no worker here is called {name}: a process without the class that fetches it puts it off, its retries untouched"
            reason = Reason("unknown_class", why, "a release with the class, or an alias of its new name")
            return self._met_unknown(payload) or [reason]
        return []

    def _met_unknown(self, payload: Payload) -> list[Reason]:
        """Tell of the processes without its class that have put it off."""
        count = min(times(payload, UNKNOWN_COUNT), _MOST_TIMES)
        if count < 1:
            return []
        name, since = payload.get("class"), timestamp(payload.get(UNKNOWN_SINCE))
        if since is None:
            why = f"{name} belongs to another application (foreign_classes): processes of this one have put it back {often(count)}"
            return [Reason("foreign_class", why, "a process of that application")]
        for_s = lasting(max(0.0, self._facts.now - since))
        why = f"processes without its class put it off {often(count)} in {for_s}: {_error(payload)}"
        release = "a process that has the class; it is set aside when it has waited for unknown_class_max_wait"
        return [Reason("unknown_class", why, release)]

    def _sweep(self) -> str:
        if self._facts.processes:
            return f"the sweep of any process of {self._facts.shard}, within {_SWEEP_S:g} s, takes it back"
        return f"nobody: no process of {self._facts.shard} is running, and the first that starts takes it back"

    def _holds(self, place: Place, payload: Payload) -> list[str]:
        """Its lock, and its slots: those of a run, or of one that was handed over to it."""
        jid = str(payload.get("jid"))
        bases = [str(payload.get("class")), f"queue/{payload.get('queue')}"]
        members = [slot_member("", jid), *([slot_member(place.name, jid)] if place.kind == "in hand" else [])]
        return [
            *self._lock(payload),
            *(f"a slot of {base} for {lasting(left_s)}" for base, left_s in self._facts.slots(bases, members)),
        ]

    def _lock(self, payload: Payload) -> list[str]:
        lock = lock_of(payload)
        if lock is None:
            return []
        fields, left_s = self._facts.lock(lock.key)
        if not fields:
            return [f"no lock any more: {lock.key} has run out or was released; an equal job may be pushed"]
        left = "without end" if left_s is None else f"for {lasting(left_s)}"
        if fields.get("jid") == lock.owner:
            return [f"the lock {lock.key} {left}: equal jobs are dropped"]
        return [f"no lock any more: {lock.key} has gone over to the job {fields.get('jid')}, {left}"]


def _since(sighting: Sighting, payload: Payload) -> float | None:
    """Since when it has been where it is, as far as anybody wrote it down."""
    match sighting.place.kind:
        case "queue" | "migrating" | "in hand":
            return timestamp(payload.get("enqueued_at"))
        case "scheduled":
            return timestamp(payload.get("created_at"))
        case "retry":
            return timestamp(payload.get("retried_at")) or timestamp(payload.get("failed_at"))
        case _:
            return sighting.score


def _deferral(payload: Payload) -> list[Reason]:
    if not payload.get(DEFERRED):
        return []
    times_put_off = often(deferrals_of(payload))
    worker = payload.get("class")
    release = f"its time; earlier: {command(f'jobs deferred release {worker}')}"
    return [Reason("deferred", f"put off {times_put_off}, the last time by {payload.get(DEFERRED_BY)}", release)]


def _interrupted(payload: Payload) -> Reason:
    if UNKNOWN_SINCE in payload:
        why = f"it waited too long for a process that has its class: {_error(payload)}"
        return Reason("unknown_class", why, "nothing by itself: deploy the class, and push it anew")
    if times(payload, DEATHS) > times(payload, STOPS):
        why = "too many processes died while it ran: it is suspected of killing them"
    else:
        why = "it still ran too often when its process had to stop: it takes longer than the deadline -t"
    return Reason("interrupted", why, "nothing by itself: look at what it does, and push it anew")


def _ordinal(sighting: Sighting) -> str:
    return f"{'next' if sighting.position == 1 else f'number {sighting.position:,}'} of {sighting.of:,}"


def _error(payload: Payload) -> str:
    if not payload:
        return "its bytes are no job that can be read"
    name, message = payload.get("error_class"), payload.get("error_message")
    text = f"{name}: {message}" if message else str(name or "nobody wrote down why")
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
