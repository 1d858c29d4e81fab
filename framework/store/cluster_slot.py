"""Find the node of a cluster that holds the slot of a shard, and connect to it; after a change, connect to the next one.

All keys of a shard are in one slot, so a shard needs ordinary connections to one node, and no client for a whole cluster. Each new
connection asks the node for a key of the slot. The node itself says whether it holds the slot, or which other one does.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias, cast
from weakref import WeakSet

import redis
from redis.connection import Connection, DefaultParser, SSLConnection
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError as RedisReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.store.deadline import BoundedConnection, Deadline
from framework.store.key_prefix import NAMED_IN_REPLY, KeyPrefix, key_prefix
from framework.wire import keys

Address: TypeAlias = tuple[str, int]

MOVING_WAIT_S = 2.0
"""How long a new connection waits while the slot is on its way to another node."""

NODE_TIMEOUT_S = 2.0
"""How long a new connection waits for one node. A frozen node takes connections, and never answers."""

_ASK_AGAIN_S = 0.02
_LEARN_PERIOD_S = 10.0
_MAX_REDIRECTS = 16


# Nothing was executed, as when a replica refuses a write. So it is that error, and its rules hold: connect again, send again.
class SlotMovedError(RedisReadOnlyError):
    """The node did not execute the command: another node holds the slot, the slot is on its way, or no node holds it."""


class ClusterParser(cast("Any", DefaultParser)):  # type: ignore[misc]
    """Read the replies of a node."""

    EXCEPTION_CLASSES = {
        **DefaultParser.EXCEPTION_CLASSES,
        **dict.fromkeys(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"), SlotMovedError),
    }


class ClusterSlot:
    """The slot of one shard, and the nodes that may hold it. One object serves all connections of a process to the shard."""

    def __init__(self, nodes: tuple[Address, ...], tag: str) -> None:
        self.prefix = KeyPrefix(key_prefix(tag))
        self.holder: Address | None = None
        """The node that held the slot when a connection was opened last."""
        self._slot = key_slot(self.prefix.encoded)
        self._nodes = nodes
        self._learned: tuple[Address, ...] = ()
        self._learned_at = float("-inf")
        self._silent: frozenset[Address] = frozenset()
        """The nodes that did not answer when they were asked last: others are asked first."""
        self.reset_after_fork()

    def connect(self, connection: "ClusterConnection", connect_once: Callable[[], None]) -> None:
        """Connect to the node that holds the slot. Raises redis errors: the last one, when no node does.

        While the slot is on its way from one node to another, it waits for ``MOVING_WAIT_S``.
        """
        until = time.monotonic() + MOVING_WAIT_S
        while True:
            try:
                self._connect_to_holder(connection, connect_once)
            except SlotMovedError as error:
                if error.status_code == "CLUSTERDOWN" or time.monotonic() >= until:
                    raise
                # The deadline of the call may be nearer.
                _left_s(connection.deadline)
                time.sleep(_ASK_AGAIN_S)
            else:
                return

    def _connect_to_holder(self, connection: "ClusterConnection", connect_once: Callable[[], None]) -> None:
        waiting, before = list(self._candidates()), self.holder
        moved: dict[Address, SlotMovedError] = {}
        unanswered: dict[Address, Exception] = {}
        named: list[Address] = []
        while waiting and len(moved) + len(unanswered) < _MAX_REDIRECTS:
            address = waiting.pop(0)
            if address in moved or address in unanswered:
                continue
            try:
                self._connect_to(address, connection, connect_once)
            except AuthenticationError:
                raise
            except SlotMovedError as error:
                moved[address] = error
                if error.status_code == "MOVED":
                    named.append(_redirected(str(error), address))
                    waiting.insert(0, named[-1])
                # The slot leaves this node, which holds it until it has left.
                elif error.status_code != "CLUSTERDOWN":
                    raise
            except (RedisConnectionError, RedisTimeoutError) as error:
                unanswered[address] = error
            else:
                self._found(address, connection)
                if before != address and before in self._silent:
                    self._leave(before)
                return
        # The holder is known and does not answer: its replica may not have taken over yet, and to wait for it would cost each caller
        # seconds. Else, what a node says about the slot tells more than a node that does not answer.
        errors = [*(unanswered[one] for one in named if one in unanswered), *moved.values(), *unanswered.values()]
        raise errors[0] if errors else RedisConnectionError("the cluster has no nodes")

    def _connect_to(self, address: Address, connection: "ClusterConnection", connect_once: Callable[[], None]) -> None:
        """Connect to a node within its share of the call's time."""
        connection.host, connection.port = address
        whole = connection.deadline
        connection.deadline = Deadline(time.monotonic(), min(NODE_TIMEOUT_S, _left_s(whole)))
        try:
            connect_once()
        except (RedisConnectionError, RedisTimeoutError):
            self._silent |= {address}
            raise
        finally:
            connection.deadline = whole

    def _found(self, address: Address, connection: "ClusterConnection") -> None:
        self.holder = address
        self._silent -= {address}
        with self._lock:
            self._connections.add(connection)

    def _leave(self, address: Address) -> None:
        """Shut down the connections to a node whose slot another one has taken over. Their users see a lost connection.

        A frozen node does not end them, and each would cost a caller its whole timeout. When the node goes on, it takes their
        commands for a moment, and forgets them as soon as it hears of its successor.
        """
        with self._lock:
            connections = list(self._connections)
        for one in connections:
            if (one.host, one.port) == address:
                one.shut_down()

    def reset_after_fork(self) -> None:
        """Forget the connections: after a fork they are the parent's."""
        self._lock = threading.Lock()
        self._connections: WeakSet[ClusterConnection] = WeakSet()

    def _candidates(self) -> Iterator[Address]:
        known = () if self.holder is None else (self.holder,)
        found = dict.fromkeys((*known, *self._learned, *self._nodes))
        silent = self._silent
        yield from sorted(found, key=silent.__contains__)

    def ask(self, connection: "ClusterConnection") -> None:
        """Ask the node at the other end whether it holds the slot. Raises SlotMovedError if it does not, or if the slot leaves it."""
        # A command that every role may send, on a key that never exists: so the reply to a slot that leaves is ASK.
        asked: Any = connection
        asked.send_command("TTL", keys.pushed(""), check_health=False)
        asked.read_response()
        now = time.monotonic()
        if now - self._learned_at > _LEARN_PERIOD_S:
            self._learned_at = now
            self._learn(asked)

    def _learn(self, connection: Any) -> None:
        """Read which nodes there are, for the time after the nodes of the settings. An ACL may refuse it."""
        connection.send_command("CLUSTER", "SLOTS", check_health=False)
        with suppress(ResponseError):
            reply: Any = connection.read_response()
            near: list[Address] = []
            far: list[Address] = []
            for first, last, *nodes in reply:
                places = [(_text(node[0]) or connection.host, int(node[1])) for node in nodes]
                (near if first <= self._slot <= last else far).extend(places)
            self._learned = tuple(dict.fromkeys((*near, *far)))


def _redirected(text: str, asked: Address) -> Address:
    """Return the address in the text of a MOVED reply, ``SLOT HOST:PORT``; without a host it is that of the node that was asked."""
    host, _, port = text.split(" ")[1].rpartition(":")
    return host.strip("[]") or asked[0], int(port)


def _left_s(deadline: Deadline) -> float:
    """Return the remaining time of a call. Raises redis's TimeoutError after its end."""
    try:
        return deadline.left_s()
    except TimeoutError as error:
        raise RedisTimeoutError(str(error)) from None


def _text(value: bytes | None) -> str:
    # Redis writes a question mark where it does not know the name of a node.
    found = (value or b"").decode(errors="replace")
    return "" if found == "?" else found


class ClusterConnection(BoundedConnection, Connection):
    """A connection to the node that holds the slot of a shard."""

    _moved = False
    """Whether the node has said that it does not hold the slot: the connection is of no use after the replies that are due."""

    def __init__(self, *, slot: ClusterSlot, **settings: Any) -> None:
        super().__init__(parser_class=ClusterParser, **settings)  # type: ignore[no-untyped-call]
        self.slot = slot

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        if self.is_connected:
            return
        self._moved = False
        connect_once = super().connect_check_health
        with self.connecting():
            self.slot.connect(self, lambda: connect_once(*args, **options))

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        # A pipeline still reads the replies to its further commands.
        if self._moved and not self.in_call:
            self.disconnect()
        packet = (
            command.encode()
            if isinstance(command, str)
            else command
            if isinstance(command, bytes)
            else b"".join(command)
        )
        super().send_packed_command([self.slot.prefix.packed(packet)], check_health)

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        except SlotMovedError:
            self._moved = True
            raise


class ClusterSSLConnection(ClusterConnection, SSLConnection):
    """The same with TLS."""


class ClusterClient(redis.Redis):
    """A client of a shard on a cluster: it knows keys without their prefix, also where a reply names one."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        execute = cast("Callable[..., Any]", super().execute_command)
        try:
            return execute(*args, **options)
        except SlotMovedError:
            # Nothing was executed, and the connection asks for the node again.
            return execute(*args, **options)


def cluster_client(pool: Any, slot: ClusterSlot) -> "redis.Redis":
    """Return a client of the pool, which owns it."""
    client: Any = ClusterClient.from_pool(pool)
    for command, change in _REPLIES.items():
        before = client.response_callbacks.get(command)
        client.set_response_callback(command, _Named(slot.prefix, change, before))
    return cast("redis.Redis", client)


class _Named:
    """A callback of redis-py that takes the prefix from the keys of a reply."""

    def __init__(self, prefix: KeyPrefix, change: Callable[[KeyPrefix, Any], Any], before: Any) -> None:
        self._prefix, self._change, self._before = prefix, change, before

    def __call__(self, reply: Any, **options: Any) -> Any:
        found = self._change(self._prefix, reply) if reply else reply
        return found if self._before is None else self._before(found, **options)


def _keys(prefix: KeyPrefix, reply: Any) -> Any:
    return [key for one in reply if (key := prefix.without(one)) is not None]


def _page(prefix: KeyPrefix, reply: Any) -> Any:
    return [reply[0], _keys(prefix, reply[1])]


def _first(prefix: KeyPrefix, reply: Any) -> Any:
    return [prefix.without(reply[0]), *reply[1:]]


_REPLIES: dict[str, Callable[[KeyPrefix, Any], Any]] = {
    "SCAN": _page,
    "KEYS": _keys,
    "RANDOMKEY": KeyPrefix.without,
    **dict.fromkeys((name.decode() for name in NAMED_IN_REPLY), _first),
}

_slots: dict[tuple[tuple[Address, ...], str], ClusterSlot] = {}


def cluster_slot(nodes: tuple[Address, ...], tag: str) -> ClusterSlot:
    """Return the process's slot of a shard; the first call sets its nodes."""
    return _slots.setdefault((nodes, tag), ClusterSlot(nodes, tag))


def _reset_all_after_fork() -> None:
    for one in _slots.values():
        one.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
