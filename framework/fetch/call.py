"""The one script call of the hot path, sent now and read later: acknowledge what has ended, and fetch."""

from dataclasses import dataclass
from typing import Any, cast

import redis
from redis.exceptions import NoScriptError

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.channel import Channel
from framework.store.script import FETCH
from framework.wire import keys

LEASE_MS = 15_000
"""How long a process that stopped beating keeps its working list (design: recovery within 25 s)."""


@dataclass(slots=True)
class FetchReply:
    """What one call brought."""

    lease_held: bool
    """Whether our lease is held; if not, the working list is anybody's."""
    fenced: list[int]
    """Positions, from 1, of acknowledgements that were not ours any more."""
    wrong_type_queues: list[str]
    """Queues whose key is no list."""
    units: list[UnitOfWork]
    source_queues: list[str]
    """The queues that gave them."""
    wanted: int


@dataclass(slots=True)
class _FetchRequest:
    queues: list[str]
    wanted: int
    arguments: tuple[Any, ...]
    sent_at: float


class FetchCall:
    """One connection with at most one call under way. For one thread at a time; raises redis errors."""

    def __init__(self, client: "redis.Redis", identity: str, *, read_timeout_s: float) -> None:
        self._channel = Channel(client, read_timeout_s=read_timeout_s)
        self._lease = keys.lease(identity)
        self._working = keys.working(identity)
        self._request: _FetchRequest | None = None

    @property
    def pending(self) -> bool:
        """Whether a call has been sent and its reply not been read."""
        return self._request is not None

    def send(self, ended: list[UnitOfWork], queues: list[tuple[str, int]], wanted: int, now: float) -> None:
        """Acknowledge ``ended`` and ask ``queues`` (name, quota) for ``wanted`` jobs; they will count as fetched ``now``."""
        names = [name for name, _ in queues]
        arguments = (
            2 + len(names),
            self._lease,
            self._working,
            *map(keys.queue, names),
            LEASE_MS,
            wanted,
            len(ended),
            *[unit.data for unit in ended],
            *[quota for _, quota in queues],
        )
        self._channel.send(("EVALSHA", FETCH.digest, *arguments))
        self._request = _FetchRequest(names, wanted, arguments, now)

    def read(self) -> FetchReply:
        """Wait for the reply and return it; after an error it is not known whether the call was heard."""
        asked = self._request
        assert asked is not None, "nothing was sent"  # noqa: S101
        try:
            reply = self._read(asked)
        finally:
            self._request = None  # pending until now: who wants to know whether all has arrived must wait
        return _parse_reply(asked, reply)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._request = None
        self._channel.close()

    def _read(self, request: "_FetchRequest") -> list[Any]:
        try:
            return cast("list[Any]", self._channel.read())
        except NoScriptError:
            return cast("list[Any]", self._channel.call("EVAL", FETCH.source, *request.arguments))


def _parse_reply(request: _FetchRequest, reply: list[Any]) -> FetchReply:
    units: list[UnitOfWork] = []
    given: list[str] = []
    for position in range(3, len(reply), 2):
        queue = request.queues[int(reply[position]) - 1]
        given.append(queue)
        units += [UnitOfWork(queue, data, request.sent_at) for data in reply[position + 1]]
    refused = [request.queues[int(position) - 1] for position in reply[2]]
    return FetchReply(bool(reply[0]), reply[1], refused, units, given, request.wanted)
