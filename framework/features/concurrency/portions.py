"""Divide limits that hold on all shards together: each shard uses a portion of the slots, and slots follow the waiting jobs.

One process of each shard, which has the turn, tells the shard with the role ``meta`` the slots that its shard has and needs of each
limit, and uses the portions that it gets (``scripts/divide.lua``, ``scripts/use_portion.lua``). A job asks its own shard only.

At a crash: a portion that was given out counts until the shard has said that it uses another one, so that the slots of all shards
never exceed the limit. Any number of processes may do this for one shard: a portion that comes late is older than the one in use.
A shard whose processes are silent is asked by those of a shard that needs its slots. Without a living process it needs only the
slots that are taken there: its waiting jobs would keep the others unused.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import redis
from redis.exceptions import RedisError, ResponseError

from framework.errors import FrameworkError
from framework.features.concurrency.store import DIVIDE, READ_PORTIONS, USE_PORTION
from framework.process.worker_parts import ProcessContext
from framework.shard.shards import Shards, open_shards
from framework.store.script import is_lasting
from framework.telemetry.logs import LogRateLimit
from framework.text import decode_escaped, decode_name
from framework.wire import keys
from framework.wire.json import stored_count

SILENT_AFTER_S = 8.0
"""A shard that said nothing about a limit for this long is asked by the processes of others."""

HOLD_AFTER_S = 60.0
"""How long a class with ``without_meta_shard = "hold"`` starts jobs without an answer of the shard with the role ``meta``."""

_REPEATED_AFTER_S = 4.0
"""A shard repeats what it said, so that it does not count as silent."""
_RENEWED_AFTER_S = 10.0
_TURN_MS = 5_000
_STEP_S, _LACKING_STEP_S, _IDLE_STEP_S = 1.0, 0.5, 2.0
_MOST_HANDED_OVER = 100
_UNANSWERED_REST_S = 15.0
"""How long a shard that did not answer is not asked: the wait for it delays the own shard."""

_LOG_INTERVAL_S = 60.0
_KEY_PREFIX = keys.limit("")


class PortionState(NamedTuple):
    """One limit on one shard, as ``read_portions.lua`` returns it."""

    name: str
    limit: int
    holds: bool
    """Whether its jobs hold while the shard with the role ``meta`` is away."""
    portion: int
    version: str
    taken: int
    waiting: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self | None:
        """Return the state in a row; ``None`` for a key that no process of ours has named."""
        name = decode_name(row[0])
        if name is None or not name.startswith(_KEY_PREFIX):
            return None
        return cls(name.removeprefix(_KEY_PREFIX), row[1], bool(row[2]), row[3], row[4].decode(), row[5], row[6])


class Portion(NamedTuple):
    """The answer of ``divide.lua``: what a shard may use, and the shards to ask first."""

    slots: int
    version: str
    lacks: bool
    """Whether the shard needs more slots."""
    to_ask: tuple[str, ...]

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Self:
        return cls(reply[0], str(reply[1]), bool(reply[2]), tuple(map(decode_escaped, reply[3:])))


class LimitDivider:
    """Divide limits between shards, of which ``meta`` has the division. For one thread."""

    def __init__(self, meta: "redis.Redis", shards: Sequence[str], silent_after_s: float = SILENT_AFTER_S) -> None:
        self._meta = meta
        self._shards = tuple(shards)
        self._silent_after_s = silent_after_s

    def divide(self, shard: str, states: Sequence[PortionState]) -> list[Portion | None]:
        """Say what a shard has and needs; return its portions, ``None`` for a limit whose key cannot be used. Raises redis errors."""
        replies = DIVIDE.each(self._meta, [self._call(shard, one) for one in states])
        return [None if _is_unusable(reply) else Portion.of(reply) for reply in replies]

    def _call(self, shard: str, state: PortionState) -> tuple[list[str], list[Any]]:
        words = [state.name, shard, state.limit, state.portion, state.version, state.taken, state.waiting]
        return [keys.portions(state.name), keys.PORTIONS], [*words, self._silent_after_s, *self._shards]


def read_portions(client: "redis.Redis", names: Iterable[str] = ()) -> list[PortionState]:
    """Return the limits of a shard that hold on all shards, and the named ones. Raises redis errors."""
    rows: Any = READ_PORTIONS(client, [keys.LIMITS_SHARED], [keys.limit(name) for name in names])
    return [state for row in rows if (state := PortionState.of(row)) is not None]


def use_portions(
    client: "redis.Redis", used: Sequence[tuple[PortionState, Portion]], most_handed_over: int = _MOST_HANDED_OVER
) -> list[PortionState]:
    """Use portions on a shard, and hand free slots to waiting jobs; return the limits as they are then. Raises redis errors."""
    calls: list[tuple[list[str], list[Any]]] = [
        (
            [keys.limit(state.name)],
            [portion.slots, portion.version, HOLD_AFTER_S if state.holds else "", most_handed_over],
        )
        for state, portion in used
    ]
    after: list[PortionState] = []
    for (state, portion), reply in zip(used, USE_PORTION.each(client, calls), strict=True):
        if _is_unusable(reply):
            continue
        is_used, taken = reply
        # Another process has used a later one: its next round tells.
        if is_used:
            after.append(state._replace(portion=portion.slots, version=portion.version, taken=taken))
    return after


def forget_shard(meta: "redis.Redis", shard: str, name: str | None = None) -> int:
    """Free what a shard that is gone has of every divided limit, or of the one; return the number of slots. Raises redis errors."""
    found: Any = [name.encode()] if name is not None else meta.smembers(keys.PORTIONS)
    forgotten = 0
    for one in sorted(map(decode_escaped, found)):
        fields = [f"{shard}:{field}" for field in ("granted", "portion", "version", "need", "limit", "at")]
        pipeline: Any = meta.pipeline()
        granted, _ = pipeline.hget(keys.portions(one), fields[0]).hdel(keys.portions(one), *fields).execute()
        forgotten += stored_count(granted)
    return forgotten


def _is_unusable(reply: Any) -> bool:
    """Return whether a reply is an error that lasts; raise one that may be temporary."""
    if isinstance(reply, ResponseError) and is_lasting(reply):
        return True
    if isinstance(reply, Exception):
        raise reply
    return False


class _Said(NamedTuple):
    state: PortionState
    lacks: bool
    at: float
    used_at: float


class _MetaAwayError(Exception):
    """The shard that has the divisions cannot be asked. Errors of the own shard are others: its process reports them itself."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class PortionKeeper:
    """Keep the portions of the shard of a process. For one thread."""

    def __init__(self, process: ProcessContext, meta: str) -> None:
        self._process = process
        self._meta = meta
        self._shards: Shards | None = None
        self._divider: LimitDivider | None = None
        self._said: dict[tuple[str, str], _Said] = {}
        self._asked_again_at: dict[str, float] = {}
        """When (monotonic seconds) a shard that did not answer is asked again."""
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        process.absent.watch(keys.LIMITS_SHARED)

    def step(self) -> float:
        """Divide the limits, if this process has the turn; return the seconds until the next step. Raises the redis errors of the own
        shard.
        """
        process, absent = self._process, self._process.absent
        if process.quiet or not absent.may_exist(keys.LIMITS_SHARED) or not self._has_turn():
            return _IDLE_STEP_S
        states = read_portions(process.upkeep)
        absent.note(keys.LIMITS_SHARED, found=bool(states))
        if not states:
            return _IDLE_STEP_S
        try:
            lacks = self._keep(process.shard.name, process.upkeep, states)
        except _MetaAwayError as away:
            error = away.error
            self._log_limit.warning(
                self._meta,
                f"the shard {self._meta} (role meta) cannot be asked, so that each shard keeps its portion of the limits that hold "
                "on all shards. Look at the error",
                "concurrency_limit.meta_away",
                error=error,
            )
            return _IDLE_STEP_S
        return _LACKING_STEP_S if lacks else _STEP_S

    def end(self) -> None:
        """Close the connections to the shards."""
        if self._shards is not None:
            self._shards.close()

    def _has_turn(self) -> bool:
        client, me = self._process.upkeep, self._process.identity
        holder: Any = client.get(keys.PORTIONS_TURN)
        if holder is not None and decode_escaped(holder) != me:
            return False
        return bool(client.set(keys.PORTIONS_TURN, me, px=_TURN_MS, nx=holder is None))

    def _opened(self) -> tuple[Shards, LimitDivider]:
        if self._shards is None or self._divider is None:
            settings = self._process.settings
            self._shards = open_shards(settings, role="limits")
            self._divider = LimitDivider(self._shards[self._meta].client, sorted(settings.shards))
        return self._shards, self._divider

    def _keep(self, shard: str, client: "redis.Redis", states: Sequence[PortionState]) -> bool:
        """Divide the limits of one shard; return whether one of them needs more slots than it gets."""
        shards, divider = self._opened()
        now = time.monotonic()
        due = [state for state in states if self._is_due(shard, state, now)]
        portions = self._said_and_used(divider, shard, client, due, now)
        asked = self._ask(shards, divider, shard, portions)
        if asked:
            again = [state for state in read_portions(client) if state.name in asked]
            self._said_and_used(divider, shard, client, again, now)
        current = {(shard, state.name) for state in states}
        return any(said.lacks for key, said in self._said.items() if key in current)

    def _is_due(self, shard: str, state: PortionState, now: float) -> bool:
        said = self._said.get((shard, state.name))
        return said is None or said.lacks or said.state != state or now - said.at >= _REPEATED_AFTER_S

    def _said_and_used(
        self,
        divider: LimitDivider,
        shard: str,
        client: "redis.Redis",
        states: Sequence[PortionState],
        now: float,
        most_handed_over: int = _MOST_HANDED_OVER,
    ) -> list[tuple[PortionState, Portion]]:
        """Say what the shard has and needs, use the portions it gets, and say at once that slots are free for other shards."""
        answered = self._say(divider, shard, states, now)
        new = [(state, portion) for state, portion in answered if self._is_to_use(shard, state, portion, now)]
        if new:
            try:
                after = use_portions(client, new, most_handed_over)
            except (RedisError, OSError):
                # The next step says it again, and gets the portions that are not in use yet.
                for state, _ in new:
                    del self._said[shard, state.name]
                raise
            given_up = {state.name for state, portion in new if portion.slots < state.portion}
            for state in after:
                self._said[shard, state.name] = self._said[shard, state.name]._replace(used_at=now)
            self._say(divider, shard, [state for state in after if state.name in given_up], now)
        return answered

    def _say(
        self, divider: LimitDivider, shard: str, states: Sequence[PortionState], now: float
    ) -> list[tuple[PortionState, Portion]]:
        answered: list[tuple[PortionState, Portion]] = []
        try:
            portions = divider.divide(shard, states) if states else []
        except (RedisError, OSError, FrameworkError) as error:
            raise _MetaAwayError(error) from error
        for state, portion in zip(states, portions, strict=True):
            if portion is None:
                self._log_unusable(state.name)
                continue
            before = self._said.get((shard, state.name))
            self._said[shard, state.name] = _Said(state, portion.lacks, now, before.used_at if before else 0.0)
            answered.append((state, portion))
        return answered

    def _is_to_use(self, shard: str, state: PortionState, portion: Portion, now: float) -> bool:
        if (state.portion, state.version) != (portion.slots, portion.version):
            return True
        return state.holds and now - self._said[shard, state.name].used_at >= _RENEWED_AFTER_S

    def _ask(
        self,
        shards: Shards,
        divider: LimitDivider,
        own: str,
        answered: Sequence[tuple[PortionState, Portion]],
    ) -> set[str]:
        """Divide limits for other shards, whose processes are silent; return the names of those that were heard anew."""
        names: dict[str, list[str]] = {}
        for state, portion in answered:
            for other in portion.to_ask:
                if other in shards and other != own and time.monotonic() >= self._asked_again_at.get(other, 0.0):
                    names.setdefault(other, []).append(state.name)
        heard: set[str] = set()
        for other, wanted in names.items():
            client = shards[other].client
            try:
                states = [state for state in read_portions(client, wanted) if state.name in wanted]
                most_handed_over = _MOST_HANDED_OVER
                if client.get(keys.PORTIONS_TURN) is None:
                    # No process of the shard had the turn for some seconds: none would run its jobs.
                    states = [state._replace(waiting=0) for state in states]
                    most_handed_over = 0
                self._said_and_used(divider, other, client, states, time.monotonic(), most_handed_over)
            except (RedisError, OSError) as error:
                self._asked_again_at[other] = time.monotonic() + _UNANSWERED_REST_S
                self._log_limit.warning(
                    f"shard {other}",
                    f"the shard {other} does not answer, so its slots of limits that hold on all shards stay with it. If it is "
                    "gone for good, run `jobs limits forget`",
                    "concurrency_limit.shard_silent",
                    error=error,
                )
                continue
            heard |= set(wanted)
        return heard

    def _log_unusable(self, name: str) -> None:
        self._log_limit.error(
            name,
            f"the key {keys.portions(name)} on the shard {self._meta} has the wrong type, or Redis refuses it: the shards keep their "
            "portions of the limit. Check it with TYPE",
            "concurrency_limit.unusable",
            limit=name,
        )
