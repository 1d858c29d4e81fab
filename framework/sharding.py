"""Give application code access to a shard: for queue lengths, clean-ups, admin pages.

    from framework.sharding import router

    with router.via(ShipWorker) as pool:
        waiting = pool.llen(f"queue:{ShipWorker.route().queue}")

``pool`` is a ``redis.Redis`` of the shard of that worker's jobs. Every command on it is checked: outside of a block that enters its
shard, it raises UnroutedCallError in development and test, and is reported in production. Pushes need no router.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import redis

from framework.application_worker import ApplicationWorker
from framework.declare import port
from framework.function_jobs import BackgroundFunction
from framework.shard.routing_validator import RoutedScope, allow_unrouted
from framework.wiring.client import process_client

__all__ = ["ShardRouter", "allow_unrouted", "router"]


class ShardRouter:
    """Route application code to the shard of a worker's jobs. A pool connects at its first command.

    The router shares the configuration with the pushes of this process.

    Raises:
        ConfigurationError: every method raises it for an invalid configuration.
        UnknownShardError: config/redis.yml has no such shard.
    """

    def shard_for(self, worker: type[ApplicationWorker]) -> str:
        """Return the name of the shard to which the rules route this class's jobs: the first one, if they are on several.

        Raises:
            TypeError: ``worker`` is no worker class.
            DeclarationError: the class is abstract and has no jobs.
        """
        return port.current().route(_check_worker_class(worker).declaration()).shard

    def shards_for(self, worker: type[ApplicationWorker]) -> tuple[str, ...]:
        """Return the names of all shards that get jobs of this class: ``spread(...)`` names several. Raises as ``shard_for``."""
        return port.current().shards_of(_check_worker_class(worker).declaration())

    @contextmanager
    def via(self, worker: type[ApplicationWorker]) -> "Generator[redis.Redis]":
        """Enter the shard of this class's jobs for the block and return its pool. The errors are those of ``shard_for``."""
        with self.via_shard(self.shard_for(worker)) as pool:
            yield pool

    @contextmanager
    def via_shard(self, name: str) -> "Generator[redis.Redis]":
        """Enter a shard by name for the block and return its pool, for example for an admin page that lists its queues."""
        shard = process_client.current().shards[name]
        with RoutedScope((name,)):
            yield shard.pool

    @contextmanager
    def via_all(self) -> "Generator[Mapping[str, redis.Redis]]":
        """Enter all shards for the block and return their pools by name (GitLab's ``with_routed_client``)."""
        pools = {name: shard.pool for name, shard in process_client.current().shards.items()}
        with RoutedScope(tuple(pools)):
            yield pools

    def pool(self, name: str) -> "redis.Redis":
        """Return a shard's pool to keep. Use it inside of blocks that enter its shard."""
        return process_client.current().shards[name].pool


router = ShardRouter()
"""The router of this process."""


def _check_worker_class(worker: Any) -> type[ApplicationWorker]:
    if isinstance(worker, type) and issubclass(worker, ApplicationWorker) and worker is not ApplicationWorker:
        return worker
    if isinstance(worker, BackgroundFunction):
        return cast("BackgroundFunction[..., Any]", worker).worker
    hint = f"; pass its class, {type(worker).__name__}" if isinstance(worker, ApplicationWorker) else ""
    raise TypeError(f"{worker!r} is not a worker class (a subclass of ApplicationWorker){hint}")
