"""Call the scripts of breakers, and read their state."""

import json
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis

from framework.features.breaker.attributes import BreakAfter
from framework.features.breaker.ended_runs import EndedRuns
from framework.features.breaker.keys import BREAKERS, breaker
from framework.store.script import Script
from framework.text import Sentence, decode_escaped, stored_sentence
from framework.types import Jid
from framework.wire import keys
from framework.wire.job import timestamp

START = Script("breaker/start", "time", "breaker/judge")
TEND = Script("breaker/tend", "time", "breaker/judge")
CHANGE = Script("breaker/change", "time")

PAUSED_BY = "breaker"
"""The name of the pause of the held jobs."""
MARKER = f"={PAUSED_BY}"
"""The beginning of its marker, which only the breaker ends."""
MARKER_TTL_MS = 60_000
_OPERATOR_TTL_S = 8 * 86_400

Answer: TypeAlias = Literal["starts", "probe", "later", "held"]
Change: TypeAlias = Literal["opened", "closed", ""]
_ANSWERS: dict[int, Answer] = {1: "starts", 2: "probe", 0: "later", -1: "held"}


REASONS = (
    Sentence("{a} processes died that ran it", a=3),
    Sentence("the process of its probe died"),
    Sentence("{a} of {b} runs failed", a=12, b=20),
    Sentence("its probe failed"),
)
"""The reasons that the scripts store; ``stored_sentence`` makes sentences of them again."""


class BreakerNews(NamedTuple):
    """What a call has changed, and the state after it."""

    change: Change
    cause: str
    reason: str
    until: float | None


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The breaker of a class on one shard. Times are epoch seconds of Redis's clock."""

    worker: str
    state: str
    """``closed``, ``open`` or ``probing``."""
    cause: str
    """``deaths``, ``failures`` or ``operator``."""
    reason: str
    opened_at: float | None
    probes_at: float | None
    """When the next job runs as a probe."""
    opens: int
    """How often it has opened since it was closed."""
    probe: str
    """The id of the job that runs as a probe."""
    deaths: int
    """The deaths that count now."""


def encode_rule(rule: BreakAfter, steady_s: float) -> str:
    """Return the rule as the scripts read it; ``steady_s``: after so long without a gap in heartbeats a lapsed lease is a death."""
    return json.dumps(
        {
            "deaths": rule.deaths or 0,
            "failures": -1 if rule.failures is None else rule.failures,
            "within": rule.within.total_seconds(),
            "runs": rule.runs,
            "probe_after": rule.probe_after.total_seconds(),
            "longest_wait": rule.longest_wait.total_seconds(),
            "steady": steady_s,
        }
    )


def ask_start(
    client: "redis.Redis", worker: str, identity: str, jid: Jid, rule: str, ended: EndedRuns
) -> tuple[Answer, BreakerNews]:
    """Ask whether a job may start. Raises redis errors."""
    reply: Any = START(client, [breaker(worker)], [worker, identity, jid, rule, ended.runs, ended.failures])
    return _ANSWERS[int(reply[0])], _news(reply)


def tend(
    client: "redis.Redis", worker: str, identity: str, rule: str, ended: EndedRuns, *, runs: bool
) -> tuple[bool, bool, BreakerNews]:
    """Keep the breaker; return whether to release a held job as a probe, and whether it is closed. Raises redis errors."""
    reply: Any = TEND(
        client,
        [breaker(worker), keys.paused_jobs(worker), keys.pause_strategy(worker)],
        [
            *(worker, identity, rule, ended.runs, ended.failures),
            *(int(runs), ended.probe, ended.probe_end, MARKER_TTL_MS, MARKER),
        ],
    )
    return bool(reply[0]), not reply[5], _news(reply)


def _news(reply: list[Any]) -> BreakerNews:
    change, cause, reason, until = (decode_escaped(one) for one in reply[1:5])
    return BreakerNews(cast("Change", change), cause, stored_sentence(reason), timestamp(until))


def close_breaker(client: "redis.Redis", worker: str) -> bool:
    """Close the breaker of a class; return whether it was open. Raises redis errors."""
    return bool(CHANGE(client, [breaker(worker), keys.pause_strategy(worker)], [worker, "close", "", 0, 0]))


def open_breaker(client: "redis.Redis", worker: str, reason: str, probe_after_s: float) -> None:
    """Open the breaker of a class. Raises redis errors."""
    arguments = [worker, "open", reason, probe_after_s, round(_OPERATOR_TTL_S + probe_after_s)]
    CHANGE(client, [breaker(worker), keys.pause_strategy(worker)], arguments)


def read_breakers(client: "redis.Redis") -> list[BreakerState]:
    """Return the breakers of a shard that are open or count something. Raises redis errors."""
    names = sorted(map(decode_escaped, cast("set[bytes]", client.smembers(BREAKERS))))
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(breaker(name))
        pipeline.zcard(f"{breaker(name)}:deaths")
    replies = iter(cast("list[Any]", pipeline.execute()))
    return [_state(name, fields, deaths) for name, fields, deaths in zip(names, replies, replies, strict=True)]


def read_breaker(client: "redis.Redis", worker: str) -> BreakerState:
    """Return the breaker of a class, closed if there is none. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.hgetall(breaker(worker))
    pipeline.zcard(f"{breaker(worker)}:deaths")
    return _state(worker, *pipeline.execute())


def _state(worker: str, fields: dict[bytes, bytes], deaths: int) -> BreakerState:
    found = {decode_escaped(name): decode_escaped(value) for name, value in fields.items()}
    opens = found.get("opens", "")
    return BreakerState(
        worker,
        found.get("state") or "closed",
        found.get("cause", ""),
        stored_sentence(found.get("reason", "")),
        timestamp(found.get("opened_at")),
        timestamp(found.get("until")),
        int(opens) if opens.isdecimal() else 0,
        found.get("probe", ""),
        deaths,
    )
