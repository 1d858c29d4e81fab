"""Read and write the states of cron entries, the operators' orders and the last ticks, on one shard."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import redis

from framework.errors import MissingKeyError, StateRefusedError
from framework.features.cron import keys as cron_keys
from framework.features.cron.entries import NO_ORDER, CronEntry, Order, Overlap, added_place, decode_order
from framework.push.push_plan import PreparedJob
from framework.store.connect import epoch_s
from framework.store.script import LOCK_PARTS, Script
from framework.text import decode_escaped
from framework.types import Jid
from framework.wire import keys
from framework.wire.protected import UNSIGNED_STATE, StatePlace, StateSignatures

CRON_PUSH = Script("cron/push", "time", late=(*LOCK_PARTS[1:], "recorded", "turns", "backlog_limit"))
KEPT_TICKS = 50
"""The most settled ticks that an entry shows."""

_KEPT_MS = 90 * 86_400_000
_OVERLAPS: Mapping[Overlap, str] = {"run": "", "skip": "1", "queue": "queue"}
"""The word of the script for each policy."""


class EntryState(NamedTuple):
    """The state of one entry: its last settled tick, the fingerprint of the entry then, and the jid of its last job."""

    tick: int
    fingerprint: str
    jid: Jid
    raw: bytes
    """The stored bytes, which the next step compares."""
    waits: bool = False
    """Whether a run waits for the end of the last job (``overlap: queue``)."""


class SettledTick(NamedTuple):
    """One settled tick: when, which tick (None for a job between ticks), what happened, and the jid that belongs to it."""

    at: float
    tick: int | None
    outcome: str
    jid: Jid


class Settlement(NamedTuple):
    """The result of one step: what happened, and the job that waits, runs or has the lock."""

    outcome: str
    other: Jid = ""
    state: bytes = b""
    """The state of the entry after the step."""


FIRST_ELSEWHERE = Settlement("first_elsewhere")
"""Another process has settled a tick of the entry since its state was read."""

TOO_EARLY = Settlement("too_early")
"""The tick is in the future of the server's clock."""

HELD_BACK: Final = "held_back"
"""The outcome of a tick that is not settled: the backlog of its class is full."""


class Snapshot(NamedTuple):
    """The states and the orders of one read, and the time of the server's clock."""

    now: float
    states: Mapping[str, EntryState | None]
    """``None`` for a state that cannot be read."""
    orders: Mapping[str, Order | None]
    """``None`` for an order that cannot be read, or is not signed as it must be."""
    raw: Mapping[str, bytes]
    added: Mapping[str, bytes]
    """The entries that were added at run time, as they are stored."""


class CronStates:
    """The states of one application on one shard. Every method raises redis errors."""

    def __init__(self, client: "redis.Redis", application: str, signatures: StateSignatures = UNSIGNED_STATE) -> None:
        """``signatures`` sign what is stored here, and check the orders; ``AddedEntries`` checks the entries."""
        self._client = client
        self._application = application
        self._signatures = signatures
        self._states = cron_keys.cron_states(application)
        self._orders = cron_keys.cron_orders(application)
        self._entries = cron_keys.cron_entries(application)

    def read(self) -> Snapshot:
        """Read all states, orders and added entries, in one round trip."""
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.time()
        pipeline.hgetall(self._states)
        pipeline.hgetall(self._orders)
        pipeline.hgetall(self._entries)
        now, states, orders, added = pipeline.execute()
        return decode_snapshot(self._application, self._signatures, epoch_s(now), states, orders, added)

    def read_added(self) -> dict[str, bytes]:
        """Return the entries that were added at run time, as they are stored."""
        found = cast("dict[bytes, bytes]", self._client.hgetall(self._entries))
        return {decode_escaped(name): value for name, value in found.items()}

    def add(self, name: str, data: bytes) -> bool:
        """Store an entry, unless one of this name is stored; return whether it was stored.

        One transaction, so that of two operators one adds. A crash before EXEC stores nothing; after it, the leader reads the entry.
        """
        sealed = self._signatures.seal(added_place(self._application, name), data)

        def change(pipeline: Any) -> None:
            found = pipeline.hget(self._entries, name)
            pipeline.multi()
            if found is None:
                pipeline.hset(self._entries, name, sealed)

        return bool(self._client.transaction(change, self._entries))

    def remove(self, name: str) -> bool:
        """Remove an added entry with its state, its order and its last ticks; return whether there was one.

        One transaction: a crash leaves all of it, or none. A leader that still knows the entry pushes no job
        of it: its state is gone.
        """

        def change(pipeline: Any) -> None:
            found = pipeline.hget(self._entries, name)
            pipeline.multi()
            # An entry of the configuration keeps its state: without it, missed ticks would be forgotten.
            if found is not None:
                pipeline.hdel(self._entries, name)
                self._queue_forget(pipeline, name)

        return bool(self._client.transaction(change, self._entries))

    def settle(self, name: str, old: bytes, tick: int, fingerprint: str, outcome: str) -> Settlement:
        """Settle a tick without a job, for the reason ``outcome``; ``begun`` marks the start of a new or changed entry."""
        return self._run(name, old, str(tick), fingerprint, (outcome, "", "", "", "", "", 0), "", b"")

    def push(
        self, name: str, old: bytes, tick: int | None, fingerprint: str, job: PreparedJob, overlap: Overlap
    ) -> Settlement:
        """Settle a tick by a push of its job; without a ``tick``, push a job between ticks.

        Unless ``overlap`` is ``run``, no job is pushed while the last one of the entry waits or runs. While the backlog of the class
        is full, a class that drops jobs then has its tick settled without a job (``full``), and any other class not (``held_back``).
        """
        more = ("", job.jid, job.payload, job.queue, job.lock_request, _OVERLAPS[overlap], job.status_ttl_s)
        return self._run(name, old, "" if tick is None else str(tick), fingerprint, more, job.queue, job.room)

    def _run(
        self, name: str, old: bytes, tick: str, fingerprint: str, more: Sequence[Any], queue: str, room: bytes
    ) -> Settlement:
        names = [self._states, cron_keys.cron_ticks(self._application, name), keys.QUEUES, keys.queue(queue)]
        reply: Any = CRON_PUSH(self._client, names, [name, old, tick, fingerprint, *more, KEPT_TICKS, _KEPT_MS, room])
        if isinstance(reply, int):
            return TOO_EARLY if reply else FIRST_ELSEWHERE
        outcome, other, state = reply
        return Settlement(outcome.decode(), decode_escaped(other), state)

    def leader(self) -> str:
        """Return the identity of the process that leads the application, empty if none does."""
        found = cast("bytes | None", self._client.get(cron_keys.leader(self._application)))
        return decode_escaped(found or b"")

    def has_ended(self, jid: Jid) -> bool:
        """Return whether the job neither waits nor runs, by its state."""
        found = cast("bytes | None", self._client.get(keys.status(jid)))
        return found is None or found.decode() not in ("queued", "running", "retrying")

    def last_ticks(self, name: str, count: int = KEPT_TICKS) -> list[SettledTick]:
        """Return the last settled ticks of an entry, the newest first."""
        lines: Any = self._client.lrange(cron_keys.cron_ticks(self._application, name), 0, count - 1)
        return [tick for tick in map(_decode_tick, lines) if tick is not None]

    def change_order(self, name: str, change: Callable[[Order, float], Order]) -> None:
        """Write what ``change`` returns for the operators' order for an entry, and the time; an empty order removes it.

        One transaction, so that of two operators none undoes what the other has ordered: ``change`` is then called again.
        """

        def write(pipeline: Any) -> None:
            # An order that is not signed as it must be counts as not given: it must not get a signature here.
            kept = read_order(self._application, self._signatures, name, pipeline.hget(self._orders, name))
            order = change(kept or NO_ORDER, epoch_s(pipeline.time()))
            pipeline.multi()
            if order.is_empty:
                pipeline.hdel(self._orders, name)
            else:
                pipeline.hset(
                    self._orders, name, self._signatures.seal(_order_place(self._application, name), order.encode())
                )

        self._client.transaction(write, self._orders)

    def forget(self, name: str) -> bool:
        """Remove the state, the order and the last ticks of an entry; return whether there were any."""
        pipeline: Any = self._client.pipeline(transaction=True)
        self._queue_forget(pipeline, name)
        return any(pipeline.execute())

    def _queue_forget(self, pipeline: Any, name: str) -> None:
        pipeline.hdel(self._states, name)
        pipeline.hdel(self._orders, name)
        pipeline.delete(cron_keys.cron_ticks(self._application, name))


def decode_snapshot(
    application: str,
    signatures: StateSignatures,
    now: float,
    states: Mapping[bytes, bytes],
    orders: Mapping[bytes, bytes],
    added: Mapping[bytes, bytes],
) -> Snapshot:
    """Return what the three HASHes of an application say."""
    raw = {decode_escaped(name): value for name, value in states.items()}
    given = {decode_escaped(name): value for name, value in orders.items()}
    return Snapshot(
        now,
        {name: _decode_state(value) for name, value in raw.items()},
        {name: read_order(application, signatures, name, value) for name, value in given.items()},
        raw,
        {decode_escaped(name): value for name, value in added.items()},
    )


def read_order(application: str, signatures: StateSignatures, name: str, sealed: bytes | None) -> Order | None:
    """Return the operators' order for an entry; ``None`` if it cannot be read, or is not signed as it must be."""
    if sealed is None:
        return NO_ORDER
    try:
        return decode_order(signatures.open(_order_place(application, name), sealed))
    except (StateRefusedError, MissingKeyError):
        return None


def _order_place(application: str, name: str) -> StatePlace:
    return StatePlace("cron order", cron_keys.cron_orders(application), (name,))


def next_tick(entry: CronEntry, state: EntryState | None, now: float) -> int | None:
    """Return the next tick whose job is not pushed yet, ``None`` for a disabled entry."""
    if not entry.enabled:
        return None
    passed = int(now) - entry.offset_s
    settled = state.tick if state is not None and state.fingerprint == entry.fingerprint else passed
    return entry.expression.next_after(max(settled, passed))


def last_tick(state: EntryState | None) -> int | None:
    """Return the last settled tick of an entry that has pushed a job, ``None`` without one."""
    return state.tick if state is not None and state.jid else None


def _decode_state(raw: bytes) -> EntryState | None:
    # The state of a waiting run ends in " +".
    parts = decode_escaped(raw).removesuffix(" +").split(" ", 2)
    if len(parts) == 3 and parts[0].isascii() and parts[0].isdigit() and len(parts[0]) <= 12:
        return EntryState(int(parts[0]), parts[1], parts[2], raw, raw.endswith(b" +"))
    return None


def _decode_tick(line: bytes) -> SettledTick | None:
    parts = decode_escaped(line).split(" ", 3)
    try:
        at, tick, outcome, jid = parts
        return SettledTick(float(at), None if tick == "-" else int(tick), outcome, jid)
    except ValueError:
        return None
