"""Decide the queue and shard of a due job: today's route of its class, unless the push chose its queue or shard."""

from typing import Any

from framework.declare import registry
from framework.declare.declaration import Declaration, PerClass
from framework.errors import PayloadError
from framework.route.router import Router
from framework.route.topology import QueueLocation
from framework.types import Payload
from framework.wire.job import CHOSEN_QUEUE, CHOSEN_SHARD


class DestinationResolver:
    """Resolve destinations for the process that polls ``shard``; ``router`` has the routing rules of this process.

    A queue that routing could have given to the class or one of its aliases (the generated name, its own ``queue``, that of
    any matching rule) counts as routed and follows today's rules, unless the payload says that it was chosen
    (``set(queue=...)``, ``retry_queue``). Any other queue stays, also for classes that are not registered here. A chosen shard
    (``set(shard=...)``) overrides the rules while it exists; the queue follows them nevertheless.
    """

    def __init__(self, router: Router, shard: str) -> None:
        self._router = router
        self._shard = shard
        self._routable = PerClass(self._routable_queues)

    def resolve(self, payload: Payload) -> QueueLocation:
        """Return the destination of ``payload``.

        Raises:
            PayloadError: it has no queue name, and its class is not known here.
        """
        queue = payload.get("queue")
        named = queue if isinstance(queue, str) and queue else None
        chosen = payload.get(CHOSEN_SHARD)
        shard = chosen if self._router.has_shard(chosen) else None
        worker: Any = registry.find(payload["class"])
        if worker is None:
            if named is None:
                raise PayloadError("it has no queue name, and its class is not known here")
            return QueueLocation(named, shard or self._shard)
        declaration: Declaration = worker.declaration()
        chosen_queue = named is not None and named in (payload.get(CHOSEN_QUEUE), payload.get("retry_queue"))
        if named is not None and (chosen_queue or named not in self._routable.get(declaration)):
            return QueueLocation(named, shard or self._shard)
        route = self._router.route(declaration)
        return QueueLocation(route.queue, shard or route.shard)

    def stay(self, payload: Payload, destination: QueueLocation) -> QueueLocation:
        """Return the place on this shard of a job that must not leave it: the queue of its payload, else that of ``destination``."""
        queue = payload.get("queue")
        return QueueLocation(queue if isinstance(queue, str) and queue else destination.queue, self._shard)

    def _routable_queues(self, declaration: Declaration) -> frozenset[str]:
        # Jobs pushed under a former name were routed by that name, to a queue that may no longer be served.
        names = [declaration, *map(declaration.with_wire_name, declaration.aliases)]
        rules = [match.rule for one in names for match in self._router.explain(one) if match.matches]
        queues = {declaration.queue, *(one.generated_queue for one in names), *(rule.queue for rule in rules)}
        return frozenset(queue for queue in queues if queue)
