"""Explain which limits block a job, and which slots it has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from framework.admin.explain_reader import (
    Assumed,
    AssumptionReader,
    Blocker,
    ExplainReader,
    HeldPosition,
    ShardSnapshot,
    ShownLimit,
)
from framework.admin.search import JobLocation
from framework.command_line import remedy_command
from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionStage
from framework.features.concurrency.limit_state import (
    LimitState,
    read_limit_states,
    read_slot_expiries,
    read_slot_holders,
    slots_of_scope,
)
from framework.features.concurrency.limits import QUEUE_PREFIX
from framework.shard.shard import Shard
from framework.text import decode_escaped, format_duration
from framework.types import Payload
from framework.wire import keys
from framework.wire.resources import slot_member

_MAX_HOLDERS = 5
"""The most slot holders that are named."""


class LimitReader(ExplainReader):
    """Find the limits of one shard that block a job. Limits that are assumed count instead of those in force."""

    def __init__(self, snapshot: ShardSnapshot) -> None:
        super().__init__(snapshot)
        self._client = snapshot.client
        self._assumed: Mapping[str, int] = snapshot.assumed.get("concurrency", {})

    def blockers(self, stage: AdmissionStage, worker: str, queue: str) -> list[Blocker]:
        if stage == "queue_slot":
            return self._at_limit(f"{QUEUE_PREFIX}{queue}")
        return self._at_limit(worker) if stage == "class_slot" else []

    def held(self, location: JobLocation) -> HeldPosition | None:
        """Describe a job that waits at a limit."""
        if location.store.kind != "waiting":
            return None
        base = location.store.name
        scope = decode_escaped(location.store.key).removeprefix(f"{keys.limit(base)}:waiting:")
        where = f"waits at the limit {base}{f' as one of {scope}' if scope else ''}"
        return HeldPosition(where, self._at_limit(base, is_waiting=True, scope=scope))

    def limit_of(self, worker: str) -> ShownLimit:
        found = self._state(worker)
        return ShownLimit(found.limit, found.usage, found.running)

    def _at_limit(self, base: str, *, is_waiting: bool = False, scope: str = "") -> list[Blocker]:
        """Return the blockers at a limit for one more job, or for a job of ``scope`` that waits at it."""
        limit = self._state(base)
        if not (limit.is_full or is_waiting):
            return []
        if limit.whole is not None and limit.limit is not None and limit.limit < 0:
            return [
                Blocker(
                    "no_portion",
                    f"this shard has no slots of the limit {base}, which is {limit.whole} on all shards together",
                    "its processes ask for some within seconds: check that one runs here, and that the shard with the role meta "
                    "answers",
                )
            ]
        if limit.limit is not None and limit.limit < 0:
            return [
                Blocker(
                    "limit_paused",
                    f"the limit {base} is {limit.limit}: no job runs ({self._limit_origin(limit)})",
                    self._limit_remedy(limit),
                )
            ]
        held = slots_of_scope(self._client, base, scope) if scope and limit.share else 0
        if limit.share and held >= limit.share and limit.limit != 0:
            why = f"its scope {scope} has its share of the limit {base} ({held}/{limit.share}; all: {limit.usage})"
            why = f"{why}: {self._slot_holders(base, scope)}"
            return [Blocker("share_reached", why, f"the end of a job of {scope}, whose slot goes to the next")]
        if not limit.is_full:
            why = f"the limit {base} has free slots ({limit.usage}) and jobs wait: they are being released now"
            return [
                Blocker(
                    "limit_free",
                    why,
                    f"any process, in seconds; at once: {remedy_command('jobs', 'limits', 'sweep', base)}",
                )
            ]
        return [
            Blocker(
                "limit_reached",
                f"the limit {base} is reached ({limit.usage}; {self._limit_origin(limit)}): {self._slot_holders(base)}",
                self._slot_remedy(limit),
            )
        ]

    def _state(self, base: str) -> LimitState:
        (limit,) = read_limit_states(self._client, self.snapshot.now, [base])
        return replace(limit, limit=self._assumed[base], source="unset") if base in self._assumed else limit

    def resources(self, payload: Payload, identity: str) -> list[str]:
        """Return a text per slot of the job: those that are reserved for it, and those of its run in the process ``identity``."""
        jid = str(payload.get("jid"))
        bases = [str(payload.get("class")), f"{QUEUE_PREFIX}{payload.get('queue')}"]
        members = [slot_member("", jid), *([slot_member(identity, jid)] if identity else [])]
        return [
            f"a slot of {base} for {format_duration(expiry - self.snapshot.now)}"
            for base, expiry in read_slot_expiries(self._client, bases, members)
        ]

    def _slot_holders(self, base: str, scope: str = "") -> str:
        found = read_slot_holders(self._client, base, self.snapshot.now, scope)
        named = [
            f"{one.jid} in {one.identity or 'no process yet'} ({format_duration(one.left_s)} left)"
            for one in found[:_MAX_HOLDERS]
        ]
        more = f" and {len(found) - _MAX_HOLDERS:,} more" if len(found) > _MAX_HOLDERS else ""
        return f"held by {', '.join(named)}{more}"

    def _slot_remedy(self, limit: LimitState) -> str:
        return (
            f"the end of any of these jobs; the slot of a dead process expires by itself; {self._limit_remedy(limit)}"
        )

    def _limit_remedy(self, limit: LimitState) -> str:
        if limit.source == "operators":
            ends = "" if limit.until is None else f"; by itself in {format_duration(limit.until - self.snapshot.now)}"
            return f"{remedy_command('jobs', 'limits', 'clear', limit.name, loads_classes=True)}{ends}"
        words = ("jobs", "limits", "set", limit.name, "N", "--reason", "...", "--for", "...")
        return f"more slots: {remedy_command(*words, loads_classes=True)}"

    def _limit_origin(self, limit: LimitState) -> str:
        if limit.name in self._assumed:
            return "assumed"
        if limit.source == "operators" and limit.override is not None:
            return f"set by {limit.override.by}: {limit.override.reason}"
        return {
            "throttled": "throttled",
            "application": "set by the application",
            "portion": "the portion of this shard",
        }.get(limit.source, "not set")


class LimitAssumption(AssumptionReader):
    """Assume a limit of the class."""

    form = "limit=20"
    _limit: int | None = None

    def read(self, text: str, name: str, value: str) -> bool:
        if name != "limit":
            return False
        self._limit = self.whole_number(text, value)
        return True

    def assumed(self, declaration: Declaration | None, shard: Shard, known: Mapping[str, Mapping[str, Any]]) -> Assumed:
        del declaration, shard, known
        return Assumed({} if self._limit is None else {"concurrency": {self.worker: self._limit}})
