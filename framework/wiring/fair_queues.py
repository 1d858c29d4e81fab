"""Find the queues of a process whose jobs wait in sub-queues, and refuse those that a Ruby process serves too."""

from collections.abc import Collection, Iterator

import redis

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.process.record import read_processes
from framework.push.sub_queue_payloads import has_sub_queues
from framework.route.router import Router


def fair_queues(router: Router, shard: str) -> frozenset[str]:
    """Return the queues of a shard to which classes with ``fair_by`` or ``priority`` are routed."""
    return frozenset(queue for queue, _, _ in _fair_classes(router, shard))


def refuse_shared_fair_queues(client: "redis.Redis", router: Router, shard: str, served: Collection[str]) -> None:
    """Refuse to serve a queue with sub-queues that a Ruby process serves too: it would run jobs out of turn, and sees no sub-queue.

    Raises:
        ConfigurationError: there is such a queue.
        RedisError: Redis does not answer.
    """
    wanted = [found for found in _fair_classes(router, shard) if found[0] in served]
    if not wanted:
        return
    ruby = {queue for process in read_processes(client) if process.is_ruby for queue in process.queues}
    problems = [
        ConfigurationProblem(
            "config/routing.yml",
            "routing_rules",
            f"{name} declares {attribute}, and a Ruby process serves its queue {queue}: route the class to a queue of its own",
        )
        for queue, name, attribute in wanted
        if queue in ruby
    ]
    if problems:
        raise ConfigurationError(problems)


def _fair_classes(router: Router, shard: str) -> Iterator[tuple[str, str, str]]:
    """Yield the queue, the name and the attribute of each class with sub-queues."""
    for worker in registry.workers():
        declaration: Declaration = worker.declaration()
        if has_sub_queues(declaration):
            route = router.route(declaration)
            if route.shard == shard:
                yield route.queue, declaration.wire_name, "priority" if declaration.fair_by is None else "fair_by"
