"""The poller: moves due jobs of one shard from the retry and schedule sets to their queues.

Redis's clock decides what is due. The client middleware runs again for every job that moves (Sidekiq's contract), then
one script moves it: whoever's ZREM finds the member writes it to its queue, so any number of pollers may race and a death
before the script leaves the job where it was.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis

from framework.declare import registry
from framework.errors import PayloadError
from framework.middleware.chain import Call, Passage
from framework.store.script import DUE, PROMOTE
from framework.types import Payload
from framework.wire import keys
from framework.wire.compress import COMPRESSED, decompress_arguments
from framework.wire.job import decode, stamp
from framework.wire.json import dumps

PAGE = 100
"""Jobs moved by one script: a million due at once must not stall Redis."""

SETS = (keys.RETRY, keys.SCHEDULE)

FAILED_PAUSE_S = 60.0
"""How long a job whose client middleware raised steps aside: a page of such jobs must not hide all that is due behind it."""


class PollEvents(Protocol):
    """What the poller tells."""

    def due_job_unreadable(self, source: str, data: bytes, error: BaseException) -> None:
        """A member could not be read and went to the dead set as it was."""

    def due_job_failed(self, source: str, error: BaseException) -> None:
        """A client middleware raised for a due job; the job stays in its set and is due again in a minute."""

    def due_job_dropped(self, source: str, payload: Payload) -> None:
        """A client middleware did not yield for a due job: it is gone, as at a push."""


@dataclass(frozen=True, slots=True)
class _Move:
    member: bytes
    data: bytes
    queue: str
    """Empty: the member cannot be read, its bytes go to the dead set."""


class Poller:
    """Promotes due jobs; ``poll`` is one look."""

    def __init__(
        self,
        client: "redis.Redis",
        events: PollEvents,
        *,
        middleware: tuple[Call, ...] = (),
        decompressed_limit: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._events = events
        self._middleware = middleware
        self._decompressed_limit = decompressed_limit
        self._clock = clock

    def poll(self) -> int:
        """Move what is due, at most a page per set; return how many moved. Raises redis errors."""
        pages: Any = DUE(self._client, list(SETS), [PAGE])
        return sum(self._promote(source, members) for source, members in zip(SETS, pages, strict=True) if members)

    def _promote(self, source: str, members: Sequence[bytes]) -> int:
        moves = [move for member in members if (move := self._prepare(source, member)) is not None]
        if not moves:
            return 0
        targets = [keys.queue(move.queue) if move.queue else keys.DEAD for move in moves]
        moved: Any = PROMOTE(
            self._client,
            [source, keys.QUEUES, *targets],
            [len(moves), *(m.member for m in moves), *(m.data for m in moves), *(m.queue for m in moves)],
        )
        return int(moved)

    def _prepare(self, source: str, member: bytes) -> _Move | None:
        """Work out what to write before anything is removed; ``None``: the middleware dropped it, or it steps aside."""
        try:
            payload = decode(member)
            queue = payload.get("queue")
            if not isinstance(queue, str) or not queue:
                raise PayloadError("it names no queue")
            payload.pop("at", None)
            payload["enqueued_at"] = stamp(self._clock())
            if self._middleware and not self._pass(payload):
                self._client.zrem(source, member)
                self._events.due_job_dropped(source, payload)
                return None
            return _Move(member, dumps(payload), str(payload["queue"]))
        except PayloadError as error:
            self._events.due_job_unreadable(source, member, error)
            return _Move(member, member, "")
        except Exception as error:  # noqa: BLE001 - one job's middleware must not stop the clock for all
            # Its own OSError too (a file, another server). If it is our server that is away, the next line says so.
            # XX: a member that somebody else has moved meanwhile is not brought back.
            self._client.zadd(source, {member: self._clock() + FAILED_PAUSE_S}, xx=True)
            self._events.due_job_failed(source, error)
            return None

    def _pass(self, payload: Payload) -> bool:
        """Run the client middleware over the payload, with its arguments as the application knows them."""
        stored = payload.get("args")
        compressed = {name: payload[name] for name in (COMPRESSED, "original_job_size_bytes") if name in payload}
        decompress_arguments(payload, self._decompressed_limit)
        shown = payload["args"]
        worker = registry.find(payload["class"])
        with Passage(self._middleware, worker or payload["class"], payload, payload["queue"], self._client) as open_:
            pass
        if compressed and payload["args"] is shown:
            payload.update(compressed, args=stored)  # not compressed a second time: the bytes stay as they were
        return open_
