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
from framework.text import Sentence, decode_escaped, format_duration, joined
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
        where = Sentence(
            "waits at the limit {base}{scope}",
            base=base,
            scope=(Sentence(" as one of {scope}", scope=scope) if scope else ""),
        )
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
                    Sentence(
                        "this shard has no slots of the limit {base}, which is {whole} on all shards together",
                        base=base,
                        whole=limit.whole,
                    ),
                    Sentence(
                        "its processes ask for some within seconds: check that one runs here, and that the shard with the role meta "
                        "answers"
                    ),
                )
            ]
        if limit.limit is not None and limit.limit < 0:
            return [
                Blocker(
                    "limit_paused",
                    Sentence(
                        "the limit {base} is {limit}: no job runs ({origin})",
                        base=base,
                        limit=limit.limit,
                        origin=self._limit_origin(limit),
                    ),
                    self._limit_remedy(limit),
                )
            ]
        held = slots_of_scope(self._client, base, scope) if scope and limit.share else 0
        if limit.share and held >= limit.share and limit.limit != 0:
            why = Sentence(
                "its scope {scope} has its share of the limit {base} ({held}/{share}; all: {usage})",
                scope=scope,
                base=base,
                held=held,
                share=limit.share,
                usage=limit.usage,
            )
            why = Sentence("{why}: {holders}", why=why, holders=self._slot_holders(base, scope))
            return [
                Blocker(
                    "share_reached",
                    why,
                    Sentence("the end of a job of {scope}, whose slot goes to the next", scope=scope),
                )
            ]
        if not limit.is_full:
            why = Sentence(
                "the limit {base} has free slots ({usage}) and jobs wait: they are being released now",
                base=base,
                usage=limit.usage,
            )
            return [
                Blocker(
                    "limit_free",
                    why,
                    Sentence(
                        "any process, in seconds; at once: {command}",
                        command=remedy_command("jobs", "limits", "sweep", base),
                    ),
                )
            ]
        return [
            Blocker(
                "limit_reached",
                Sentence(
                    "the limit {base} is reached ({usage}; {origin}): {holders}",
                    base=base,
                    usage=limit.usage,
                    origin=self._limit_origin(limit),
                    holders=self._slot_holders(base),
                ),
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
            Sentence("a slot of {base} for {time}", base=base, time=format_duration(expiry - self.snapshot.now))
            for base, expiry in read_slot_expiries(self._client, bases, members)
        ]

    def _slot_holders(self, base: str, scope: str = "") -> str:
        found = read_slot_holders(self._client, base, self.snapshot.now, scope)
        named = [
            Sentence(
                "{jid} in {identity} ({time} left)",
                jid=one.jid,
                identity=one.identity or Sentence("no process yet"),
                time=format_duration(one.left_s),
            )
            for one in found[:_MAX_HOLDERS]
        ]
        more = Sentence(" and {number:,} more", number=len(found) - _MAX_HOLDERS) if len(found) > _MAX_HOLDERS else ""
        return Sentence("held by {names}{more}", names=joined(named, ", "), more=more)

    def _slot_remedy(self, limit: LimitState) -> str:
        return Sentence(
            "the end of any of these jobs; the slot of a dead process expires by itself; {remedy}",
            remedy=self._limit_remedy(limit),
        )

    def _limit_remedy(self, limit: LimitState) -> str:
        if limit.source == "operators":
            ends = (
                ""
                if limit.until is None
                else Sentence("; by itself in {time}", time=format_duration(limit.until - self.snapshot.now))
            )
            return f"{remedy_command('jobs', 'limits', 'clear', limit.name, loads_classes=True)}{ends}"
        words = ("jobs", "limits", "set", limit.name, "N", "--reason", "...", "--for", "...")
        return Sentence("more slots: {command}", command=remedy_command(*words, loads_classes=True))

    def _limit_origin(self, limit: LimitState) -> str:
        if limit.name in self._assumed:
            return "assumed"
        if limit.source == "operators" and limit.override is not None:
            return Sentence("set by {by}: {reason}", by=limit.override.by, reason=limit.override.reason)
        return {
            "throttled": "throttled",
            "application": Sentence("set by the application"),
            "portion": Sentence("the portion of this shard"),
        }.get(limit.source, Sentence("not set"))


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
