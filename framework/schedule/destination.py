"""Where a due job goes: as its class is routed now, unless its queue or its shard was somebody's own choice."""

from typing import Any, NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.route.router import Router
from framework.types import Payload
from framework.wire.job import CHOSEN_QUEUE, CHOSEN_SHARD


class Destination(NamedTuple):
    """A queue on a shard."""

    queue: str
    shard: str


class DestinationResolver:
    """Answers for one process and the ``shard`` whose sets it polls; ``router`` has the rules of this process.

    A queue that routing could have given to the class, or to one of its aliases (the generated name, its own ``queue``,
    that of any rule which matches it), is taken for routed and follows today's rules, unless the payload says that it was
    chosen (``set(queue=...)``, ``retry_queue``). Any other stays, and so do jobs of classes that are not registered here. A
    shard that the push named (``set(shard=...)``) stands over the rules as long as it exists; the queue follows them all the
    same.
    """

    def __init__(self, router: Router, shard: str) -> None:
        self._router = router
        self._shard = shard
        self._routable: dict[str, tuple[Declaration, frozenset[str]]] = {}

    def resolve(self, payload: Payload) -> Destination:
        """Return where ``payload`` goes. Raises PayloadError when nothing says so."""
        queue = payload.get("queue")
        named = queue if isinstance(queue, str) and queue else None
        chosen = payload.get(CHOSEN_SHARD)
        shard = chosen if self._router.has_shard(chosen) else None
        worker: Any = registry.find(payload["class"])
        if worker is None:
            if named is None:
                raise PayloadError("it names no queue, and its class is not known here")
            return Destination(named, shard or self._shard)
        declaration: Declaration = worker.declaration()
        chosen_queue = named is not None and named in (payload.get(CHOSEN_QUEUE), payload.get("retry_queue"))
        if named is not None and (chosen_queue or named not in self._routable_queues(declaration)):
            return Destination(named, shard or self._shard)
        route = self._router.route(declaration)
        return Destination(route.queue, shard or route.shard)

    def _routable_queues(self, declaration: Declaration) -> frozenset[str]:
        known = self._routable.get(declaration.wire_name)
        if known is None or known[0] is not declaration:
            # Jobs pushed under a former name were routed by it, to a queue that nobody may serve any more.
            names = [declaration, *map(declaration.with_wire_name, declaration.aliases)]
            rules = [verdict.rule for one in names for verdict in self._router.explain(one) if verdict.matches]
            queues = {declaration.queue, *(one.generated_queue for one in names), *(rule.queue for rule in rules)}
            known = (declaration, frozenset(queue for queue in queues if queue))
            self._routable[declaration.wire_name] = known
        return known[1]
