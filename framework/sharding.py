"""Give application code access to a job Redis: for queue lengths, clean-ups, admin pages.

    from framework.sharding import router

    with router.via(ShipWorker) as pool:
        waiting = pool.llen(f"queue:{ShipWorker.route().queue}")

``pool`` is a ``redis.Redis`` of the shard on which that worker's jobs live. Every command on such a pool is checked: outside
of a block that enters its shard, it raises UnroutedCallError in development and test, and is reported in production. Pushes
need none of this: they are routed automatically.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import redis

from framework.declare import port
from framework.declare.worker import ApplicationWorker
from framework.errors import PushError
from framework.shard.routing_validator import RoutedScope, allow_unrouted
from framework.shard.shards import Shards
from framework.wiring.client import ProcessClient

__all__ = ["ShardRouter", "allow_unrouted", "router"]


class ShardRouter:
    """Route application code to the shard of a worker's jobs. Opens no connection before the first command of a pool.

    It shares configuration and connections with the pushes of this process.

    Raises:
        ConfigurationError: in every method, where the first push would raise it.
        UnknownShardError: config/redis.yml has no such shard.
    """

    def shard_for(self, worker: type[ApplicationWorker]) -> str:
        """Return the name of the shard to which today's rules route this class's jobs.

        Raises:
            TypeError: it is not a worker class.
            DeclarationError: it is abstract and has no jobs.
        """
        return port.current().route(_check_worker_class(worker).declaration()).shard

    @contextmanager
    def via(self, worker: type[ApplicationWorker]) -> "Generator[redis.Redis]":
        """Enter the shard of this class's jobs for the block and return its pool. Raises as ``shard_for``."""
        with self.via_shard(self.shard_for(worker)) as pool:
            yield pool

    @contextmanager
    def via_shard(self, name: str) -> "Generator[redis.Redis]":
        """Enter a shard by name for the block and return its pool, for example for an admin page that lists its queues."""
        shard = _bound_shards()[name]
        with RoutedScope((name,)):
            yield shard.pool

    @contextmanager
    def via_all(self) -> "Generator[Mapping[str, redis.Redis]]":
        """Enter all shards for the block and return their pools by name (GitLab's ``with_routed_client``)."""
        pools = {name: shard.pool for name, shard in _bound_shards().items()}
        with RoutedScope(tuple(pools)):
            yield pools

    def pool(self, name: str) -> "redis.Redis":
        """Return a shard's pool outside of any block. It may be kept, and used inside of blocks that enter its shard."""
        return _bound_shards()[name].pool


router = ShardRouter()
"""The router of this process."""


def _check_worker_class(worker: Any) -> type[ApplicationWorker]:
    if isinstance(worker, type) and issubclass(worker, ApplicationWorker) and worker is not ApplicationWorker:
        return worker
    hint = f"; pass its class, {type(worker).__name__}" if isinstance(worker, ApplicationWorker) else ""
    raise TypeError(f"{worker!r} is not a worker class (a subclass of ApplicationWorker){hint}")


def _bound_shards() -> Shards:
    bound = port.current()
    if isinstance(bound, ProcessClient):
        return bound.shards
    raise PushError(
        f"pushes of this process go through {type(bound).__qualname__}, which has no shards; the router shares those of the "
        "client that `import framework` or `framework.boot()` binds"
    )
