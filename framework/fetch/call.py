"""Send the one script call of the hot path and read its reply later: acknowledge ended jobs, and fetch."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, cast

import redis
from redis.exceptions import NoScriptError

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.channel import Channel
from framework.store.script import FETCH
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.json import dumps_known


@dataclass(slots=True)
class FetchReply:
    """The reply of one call."""

    lease_held: bool
    """Whether the lease of this process is held; if not, any process may take the working list over."""
    fenced: list[int]
    """Positions, from 1, of acknowledgements of jobs that another process owns."""
    wrong_type_queues: list[str]
    """Queues whose key is not a list."""
    units: list[UnitOfWork]
    source_queues: list[str]
    """The queues that the units came from."""
    wanted: int
    release_errors: list[str]
    """Errors of locks, slots or statuses that acknowledged jobs did not release or write."""


@dataclass(slots=True)
class _FetchRequest:
    queues: list[str]
    wanted: int
    arguments: tuple[Any, ...]
    sent_at: float


class FetchCall:
    """A connection with at most one call under way. For one thread at a time; raises redis errors."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        *,
        read_timeout_s: float,
        lease_ms: int,
        fair_queues: AbstractSet[str] = frozenset(),
    ) -> None:
        self._fair_queues = fair_queues
        self._channel = Channel(client, read_timeout_s=read_timeout_s)
        self._lease = keys.lease(identity)
        self._working = keys.working(identity)
        self._lease_ms = lease_ms
        self._request: _FetchRequest | None = None

    @property
    def pending(self) -> bool:
        """Whether a call has been sent and its reply has not been read."""
        return self._request is not None

    def send(self, ended: list[UnitOfWork], queues: list[tuple[str, int]], wanted: int, now: float) -> None:
        """Acknowledge ``ended`` and request ``wanted`` jobs from ``queues`` (name, quota); ``now`` becomes their ``fetched_at``."""
        names = [name for name, _ in queues]
        arguments: tuple[Any, ...] = (
            # The number of keys: the lease, the working list and the queues.
            2 + len(names),
            self._lease,
            self._working,
            *map(keys.queue, names),
            self._lease_ms,
            wanted,
            len(ended),
            *[unit.data for unit in ended],
            *([quota for _, quota in queues] if not self._fair_queues else map(self._quota, queues)),
        )
        # Last and only where needed, so that a job that holds nothing costs no argument; as one text, which costs less than many.
        held = [
            (position, unit.released_on_ack)
            for position, unit in enumerate(ended, 1)
            if unit.released_on_ack is not None
        ]
        if held:
            arguments += (dumps_known(held),)
        self._channel.send(FETCH.by_digest(*arguments))
        self._request = _FetchRequest(names, wanted, arguments, now)

    def _quota(self, queue: tuple[str, int]) -> str | int:
        """Return the argument for a queue and its quota: ``fetch.lua`` looks for sub-queues where it is marked."""
        name, quota = queue
        return f"~{quota}" if name in self._fair_queues else quota

    def read(self) -> FetchReply:
        """Wait for the reply and return it; after an error the call may or may not have run."""
        request = self._request
        assert request is not None, "nothing was sent"  # noqa: S101
        try:
            reply = self._read(request)
        finally:
            # Only now: `pending` must stay true until the reply has been read.
            self._request = None
        return _parse_reply(request, reply)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._request = None
        self._channel.close()

    def _read(self, request: "_FetchRequest") -> list[Any]:
        try:
            return cast("list[Any]", self._channel.read())
        except NoScriptError:
            return cast("list[Any]", self._channel.call(*FETCH.by_source(*request.arguments)))


def _parse_reply(request: _FetchRequest, reply: list[Any]) -> FetchReply:
    units: list[UnitOfWork] = []
    source_queues: list[str] = []
    release_errors: list[str] = []
    # Behind three fixed values the reply has pairs: the position of a queue, from 1, and its jobs; or 0 and an error.
    for position in range(3, len(reply), 2):
        if not reply[position]:
            release_errors.append(decode_escaped(reply[position + 1]))
            continue
        queue = request.queues[int(reply[position]) - 1]
        source_queues.append(queue)
        units += [UnitOfWork(queue, data, request.sent_at) for data in reply[position + 1]]
    wrong_type = [request.queues[int(position) - 1] for position in reply[2]]
    return FetchReply(bool(reply[0]), reply[1], wrong_type, units, source_queues, request.wanted, release_errors)
