"""Find the queues of a process whose jobs wait in sub-queues, and refuse those that a Ruby process serves too."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.features.fairness.push import has_sub_queues
from framework.process.record import read_processes
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.route.router import Router


class _FairClass(NamedTuple):
    queue: str
    name: str
    attribute: str
    """Which makes its jobs wait in sub-queues."""
    shards: tuple[str, ...]
    """That get its jobs now."""


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of fairness in a worker process: the queues to which classes with ``fair_by`` or ``priority`` are routed."""
    found = list(_fair_classes(process.router))
    classes = [one for one in found if process.shard.name in one.shards]
    served = {name for plan in process.plans for name in plan.order.names}
    # A move may bring the jobs of a class here while the process runs, if it serves their queue.
    queues = frozenset(one.queue for one in found if one in classes or one.queue in served)
    return WorkerPart(sub_queues=queues, check=partial(_refuse_shared, process, classes))


def _refuse_shared(process: ProcessContext, classes: Iterable[_FairClass]) -> None:
    """Refuse to serve a queue with sub-queues that a Ruby process serves too: it would run jobs out of turn, and sees none."""
    served = {name for plan in process.plans for name in plan.order.names}
    wanted = [one for one in classes if one.queue in served]
    if not wanted:
        return
    ruby = {queue for process in read_processes(process.shard.client) if process.is_ruby for queue in process.queues}
    problems = [
        ConfigurationProblem(
            "config/routing.yml",
            "routing_rules",
            f"{name} declares {attribute}, and a Ruby process serves its queue {queue}: route the class to a queue of its own",
        )
        for queue, name, attribute, _ in wanted
        if queue in ruby
    ]
    if problems:
        raise ConfigurationError(problems)


def _fair_classes(router: Router) -> Iterator[_FairClass]:
    for worker in registry.workers():
        declaration: Declaration = worker.declaration()
        if has_sub_queues(declaration):
            attribute = "priority" if declaration.fair_by is None else "fair_by"
            queue, shards = router.route(declaration).queue, router.shards_of(declaration)
            yield _FairClass(queue, declaration.wire_name, attribute, shards)
