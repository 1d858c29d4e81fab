"""Make redis-py clients for application code whose connections check the routing of every command before sending it.

The connection is the one place that every command of redis-py passes: of a pipeline, a transaction, a script, a
subscription or a module's own client.
"""

from typing import Any

import redis
from redis.connection import AbstractConnection

from framework.shard.routing_validator import RoutingValidator


def validated_client(client: "redis.Redis", shard: str, validator: RoutingValidator) -> "redis.Redis":
    """Return ``client``, which has not connected yet, as a client of application code for ``shard``."""
    pool: Any = client.connection_pool
    kind = pool.connection_class
    pool.connection_class = type(
        f"Validated{kind.__name__}", (_ValidatedConnection, kind), {"shard": shard, "validator": validator}
    )
    return client


class _ValidatedConnection(AbstractConnection):
    """Check the routing of every command; mixed into the connection class of a pool."""

    shard: str
    validator: RoutingValidator
    _in_handshake = False
    """Whether the connection sends its own commands (credentials, its name), which are not checked."""

    def connect(self) -> None:
        # A pool connects before it knows the command. A refused command needs no connection; `check` names it when it is sent.
        if self.is_connected or self.validator.refuses(self.shard):
            return
        self._in_handshake = True
        try:
            super().connect()  # type: ignore[no-untyped-call]
        finally:
            self._in_handshake = False

    def can_read(self, timeout: float = 0) -> bool:
        if not self.is_connected and self.validator.refuses(self.shard):
            return False
        return super().can_read(timeout)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        if not self._in_handshake:
            self.validator.check(self.shard, command)
            self.connect()
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]
