"""Join the database of tasks, its writer, and its spool in Redis. Loads SQLAlchemy."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import redis

from framework.errors import MissingKeyError, PayloadError
from framework.features.tasks.apply import write_changes
from framework.features.tasks.change import EventChange, decode_change
from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.recorder import EventRecorder
from framework.features.tasks.settings import TaskSettings
from framework.features.tasks.writer import SPOOL_PLACE, EventWriter, ShardSpool
from framework.process_clock import process_clock
from framework.push.protection import NO_PROTECTION, PayloadProtection
from framework.settings.model import CoreSettings
from framework.shard.shards import Shards
from framework.telemetry.logs import LogRateLimit
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import loads
from framework.wire.malformed import dead_set_entry
from framework.wire.protected import UNSIGNED_STATE, StateSignatures


class TaskStore(NamedTuple):
    """The database, the thread that writes to it, and the recorder in front."""

    database: TaskDatabase
    writer: EventWriter
    recorder: EventRecorder
    state_signatures: StateSignatures
    """Sign and check what the spool keeps."""

    def recorder_of(self, shard: str) -> EventRecorder:
        """Return the recorder of a worker process of this shard."""
        return self.recorder.of(shard)

    def close(self) -> None:
        """End the thread of the writer after its last batch, and close the connections."""
        self.writer.close()
        self.database.dispose()


def open_store(
    settings: CoreSettings, shards: Shards, protection: PayloadProtection, url: str | None = None
) -> TaskStore:
    """Return the store of the settings; ``url`` names another database. Opens no connection."""
    chosen, state = TaskSettings.of(settings), protection.state
    database = TaskDatabase(url or chosen.tasks_url)
    writer = EventWriter(database, ShardSpool(shards, state), chosen.tasks.database_down)
    recorder = EventRecorder(
        writer,
        chosen.tasks.params,
        keeps_payloads=chosen.tasks.ledger != "none",
        # Another database is that of a test, whose jobs in memory are not signed.
        protection=protection if url is None else NO_PROTECTION,
    )
    return TaskStore(database, writer, recorder, state)


_PAGE = 500
_rate = LogRateLimit(30.0)
_PUSHED = b'{"pushed":'
"""The beginning of an entry that a script has written: a job, its queue, and the time."""


def drain(
    client: "redis.Redis",
    database: TaskDatabase,
    pushes: EventRecorder,
    signatures: StateSignatures = UNSIGNED_STATE,
) -> int:
    """Write every change in the spool of a shard to the database; return their number. Raises SQLAlchemyError and redis errors.

    An entry that is no change, or is not signed as it must be, goes to the dead set, in one step. One that is signed with a key
    that this process lacks stays.
    """
    written = kept = 0
    while members := _page(client, kept):
        changes: list[EventChange] = []
        done: list[bytes] = []
        refused: dict[bytes, Exception] = {}
        for member in members:
            try:
                change = _decode(member, pushes, signatures)
            except MissingKeyError as error:
                _rate.error("key", str(error), "signature.key_missing", key=keys.TASK_EVENTS)
                kept += 1
            except (PayloadError, AttributeError, TypeError, KeyError, ValueError) as error:
                refused[member] = error
            else:
                done.append(member)
                changes += [] if change is None else [change]
        write_changes(database, changes, late=True)
        if done or refused:
            # One step: a crash leaves a refused entry here, or in the dead set.
            pipeline: Any = client.pipeline(transaction=True)
            if refused:
                pipeline.zadd(keys.DEAD, _dead_set_entries(refused, process_clock.now()))
            pipeline.zrem(keys.TASK_EVENTS, *done, *refused)
            pipeline.execute()
        written += len(done)
    return written


def count_changes(client: "redis.Redis") -> int:
    """Return how many entries of the spool may change an event that the database has: not those of pushes. Raises redis errors."""
    found = start = 0
    while members := _page(client, start):
        found += sum(not member.startswith(_PUSHED) for member in members)
        start += len(members)
    return found


def _page(client: "redis.Redis", start: int) -> list[bytes]:
    found: Any = client.zrange(keys.TASK_EVENTS, start, start + _PAGE - 1)
    return cast("list[bytes]", found)


def _decode(member: bytes, pushes: EventRecorder, signatures: StateSignatures) -> EventChange | None:
    if member.startswith(_PUSHED):
        entry: Any = loads(member, None)
        payload: Payload = loads(entry["pushed"].encode(), None)
        # A script cannot sign: the job has the signature of its push.
        return pushes.pushed_by_script(payload, entry["queue"], float(entry["at"]))
    return decode_change(signatures.open(SPOOL_PLACE, member))


def _dead_set_entries(refused: Mapping[bytes, Exception], now: float) -> dict[bytes, float]:
    """Return the entries of the dead set that keep refused entries, and log them."""
    dead: dict[bytes, float] = {}
    for member, error in refused.items():
        _rate.error(
            "malformed",
            "an entry of aw:task_events is no change of an event, or is not signed as it must be: it was moved to the dead set. Find "
            "the program that wrote it",
            "task_event.malformed",
            error=error,
        )
        reason = error if isinstance(error, PayloadError) else PayloadError(f"it is no change of an event: {error!r}")
        dead[dead_set_entry(member, reason, now)] = now
    return dead
