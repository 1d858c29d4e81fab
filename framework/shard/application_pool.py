"""A client for application code: a plain redis-py client whose connections ask the validator before anything leaves.

The connection is the one place that every command of redis-py passes, whether of a pipeline, a transaction, a script, a
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
        f"Judged{kind.__name__}", (_ValidatedConnection, kind), {"shard": shard, "validator": validator}
    )
    return client


class _ValidatedConnection(AbstractConnection):
    """Mixed into the class of a pool's connections."""

    shard: str
    validator: RoutingValidator
    _in_handshake = False
    """What is sent belongs to the connection itself: credentials, its name."""

    def connect(self) -> None:
        # A pool connects before it knows the command. One that will be refused needs no connection, and is named then.
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
