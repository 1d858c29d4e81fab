"""Record each action of an operator on the shard that it changes, and read these records.

``audited`` is the only way to an action: it wraps the step that changes a shard, for ``framework.admin`` and for commands. The record
is written before the step, and its end after it. At a crash in between, the record has no end: the action may have been carried out,
in part or not at all. So there is no action without a record, but for a Redis that refuses the record (a missing right, a key of
another type): then the action goes on, because an operator may need it at once, and a warning says that nothing was recorded.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import redis
from redis.exceptions import ResponseError

from framework.admin.access import Listing, ask, check_writable
from framework.async_twin import async_twin
from framework.known_secrets import known_secrets
from framework.process.identity import operator_name
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import NO_KEY, RECORD_ACTION, is_wrong_type
from framework.telemetry import logs
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.json import loads_object

T = TypeVar("T")

MOST_ENTRIES, MAX_AGE_S = 20_000, 90 * 86_400
"""The bounds of the log of a shard: an action has two entries, its record and its end. Redis trims whole nodes, of 100 entries."""

_MOST_TEXT = 200
"""Characters of one detail."""
_PAGE = 500

ActionSource: TypeAlias = Literal["api", "command", "dashboard"]
ActionEnd: TypeAlias = Literal["done", "failed", "unknown"]


class Actor(NamedTuple):
    """The person or program that acts, and from where."""

    name: str
    """``user@host`` of the process, or the name that the dashboard knows."""
    source: ActionSource = "api"
    address: str = ""
    """The address of the browser, if the dashboard knows it."""


_actor: ContextVar[Actor | None] = ContextVar("framework_admin_actor", default=None)


@contextmanager
def acting_as(name: str, source: ActionSource = "api", address: str = "") -> Generator[None]:
    """Record the actions of ``framework.admin`` within the block, in this thread or task, under this name.

    Without it the name is ``user@host`` of the process.
    """
    token = _actor.set(Actor(name, source, address))
    try:
        yield
    finally:
        _actor.reset(token)


def acting_name() -> str:
    """Return the name under which actions are recorded now: that of ``acting_as``, else ``user@host`` of the process."""
    actor = _actor.get()
    return operator_name() if actor is None else actor.name


def audited(
    action: str,
    step: Callable[[Shard], T],
    what: Mapping[str, object],
    count: Callable[[T], int | None] | None = None,
) -> Callable[[Shard], T]:
    """Return the step with a record before it and the end after it, on the shard that it changes.

    ``what`` names the object of the action. ``count`` returns the number of changed things; without it a number or a truth
    that the step returns counts.

    Raises:
        ReadOnlyError: inside of a ``read_only`` block.
    """
    check_writable(f"{action}()")

    def run(shard: Shard) -> T:
        record = _begin(shard, action, what)
        try:
            result = step(shard)
        except BaseException as error:
            # A step whose reply was lost may have been carried out.
            _end(shard, record, {"error": type(error).__name__})
            raise
        number = _number(result) if count is None else count(result)
        _end(shard, record, {} if number is None else {"count": str(number)})
        return result

    return run


def _number(result: object) -> int | None:
    return int(result) if isinstance(result, int) else None


def _begin(shard: Shard, action: str, what: Mapping[str, object]) -> str | None:
    """Write the record; return its id, ``None`` if Redis refuses it. Raises the errors of the connection."""
    actor = _actor.get() or Actor(operator_name())
    details = {name: _detail(value) for name, value in what.items() if value not in (None, "", (), [], {})}
    fields = {"actor": actor.name, "source": actor.source, "address": actor.address, "action": action}
    return _write(shard, {**fields, "what": json.dumps(details, ensure_ascii=False)})


def _end(shard: Shard, record: str | None, fields: Mapping[str, str]) -> None:
    if record is None:
        return
    try:
        _write(shard, {"end_of": record, **fields})
    # The record stays without an end.
    except (redis.RedisError, OSError):
        logs.logger(shard=shard.name).warning(
            "The end of an operator's action was not written into the audit log, because Redis does not answer.",
            event_name="audit.not_written",
        )


def _detail(value: object) -> str:
    several = isinstance(value, list | tuple | set | frozenset)
    text = ", ".join(map(str, cast("Iterable[object]", value))) if several else str(value)
    shown = known_secrets.masked(text).encode(errors="backslashreplace").decode()
    return shown if len(shown) <= _MOST_TEXT else f"{shown[:_MOST_TEXT]}..."


def _write(shard: Shard, fields: Mapping[str, str]) -> str | None:
    words = [word for pair in fields.items() for word in pair]
    try:
        reply: Any = RECORD_ACTION(shard.client, [NO_KEY, keys.AUDIT], [MOST_ENTRIES, MAX_AGE_S, *words])
    except ResponseError as error:
        logs.logger(shard=shard.name).warning(
            f"Redis refused the record of an operator's action, which goes on without it: {error}. "
            "Give the user the rights of `acl operator`; `aw:audit` must be a stream.",
            event_name="audit.not_written",
        )
        return None
    return decode_escaped(reply)


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One action of an operator on one shard."""

    shard: str
    id: str
    """Its id in the stream of the shard."""
    at: float
    """The time of Redis's clock, in epoch seconds."""
    actor: str
    source: str
    """``command``, ``api`` or ``dashboard``."""
    address: str
    action: str
    """A command such as ``jobs pause``, or a method such as ``Queue.pause``."""
    what: Mapping[str, str]
    """The object of the action: its options and names."""
    end: ActionEnd
    """``unknown``: it goes on, or its process died; it may have been carried out."""
    count: int | None
    """The number of changed jobs, or other things."""
    error: str
    """The class of the error of a failed action, which may have been carried out in part."""


def audit_log(
    *,
    since: timedelta | float | None = None,
    actor: str | None = None,
    action: str | None = None,
    limit: int = 100,
    shard: str | None = None,
) -> Listing[AuditRecord]:
    """Return the last actions of operators on all shards, the newest first, at most ``limit``.

    ``since`` is an age in seconds; ``actor`` and ``action`` select records with this text in them.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    age = since.total_seconds() if isinstance(since, timedelta) else since
    answers = ask(shard, lambda one: read_audit_log(one, age, actor or "", action or "", limit))
    found = [record for records in answers.by_shard.values() for record in records]
    return Listing(sorted(found, key=lambda one: one.at, reverse=True)[:limit], answers.unanswered)


aaudit_log = async_twin(audit_log)


def read_audit_log(shard: Shard, age_s: float | None, actor: str, action: str, limit: int) -> list[AuditRecord]:
    """Return the last actions on a shard, the newest first. Raises redis errors."""
    found: list[AuditRecord] = []
    ends: dict[str, Mapping[str, str]] = {}
    for id_, fields in _entries(shard, age_s):
        if "end_of" in fields:
            ends[fields["end_of"]] = fields
            continue
        record = _record(shard.name, id_, fields, ends.pop(id_, None))
        if actor in record.actor and action in record.action:
            found.append(record)
            if len(found) == limit:
                break
    return found


def _entries(shard: Shard, age_s: float | None) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the entries, the newest first: the end of an action comes before its record."""
    oldest = "-" if age_s is None else f"{max(0.0, server_time(shard.client) - age_s) * 1000:.0f}"
    newest = "+"
    while True:
        try:
            reply: Any = shard.client.xrevrange(keys.AUDIT, newest, oldest, count=_PAGE)
        except ResponseError as error:
            # A key of another type has no records.
            if is_wrong_type(error):
                return
            raise
        for id_, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", reply):
            newest = f"({decode_escaped(id_)}"
            yield (
                decode_escaped(id_),
                {decode_escaped(name): value.decode(errors="replace") for name, value in fields.items()},
            )
        if len(reply) < _PAGE:
            return


def _record(shard: str, id_: str, fields: Mapping[str, str], end: Mapping[str, str] | None) -> AuditRecord:
    what = loads_object(fields.get("what", "").encode())
    count, error = ("", "") if end is None else (end.get("count", ""), end.get("error", ""))
    return AuditRecord(
        shard,
        id_,
        int(id_.partition("-")[0]) / 1000,
        fields.get("actor", ""),
        fields.get("source", ""),
        fields.get("address", ""),
        fields.get("action", ""),
        {name: str(value) for name, value in what.items()},
        "unknown" if end is None else "failed" if error else "done",
        int(count) if count.isascii() and count.isdigit() else None,
        error,
    )
