"""Choose the queues of a worker process: from options, a file, the environment, or the loaded classes."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias, cast

from framework.command_line import command
from framework.declare import queue_facts, registry
from framework.declare.declaration import Declaration
from framework.fetch.queues import QueueOrder
from framework.messages import join_names
from framework.route.router import Router
from framework.route.rule_checks import serves
from framework.route.topology import locations_of, queues_on
from framework.settings.all_queues import all_queues_path, read_entries
from framework.settings.model import Settings
from framework.settings.yaml_file import YamlError
from framework.telemetry import logs

FROM_CLASSES = "the loaded classes"
Weights: TypeAlias = tuple[tuple[str, int], ...]

_NO_QUEUES: Weights = (("default", 0),)


class OwnQueues(NamedTuple):
    """The queues of a process with their weights, and the source of them."""

    weights: Weights
    source: str
    added: tuple[str, ...] = ()
    """The queues that the generated file lacks, of classes that are newer than the file."""


# Decision 194: a process serves the queues of its loaded classes by default.
def of_loaded_classes(settings: Settings, router: Router, shard: str) -> OwnQueues:
    """Return the queues of the loaded classes on a shard with the generated weights, or ``default`` when there are none."""
    found = queues_on(router, _declarations(), shard)
    weights = tuple((queue, _weight(settings, users)) for queue, users in sorted(found.items()))
    return OwnQueues(weights or _NO_QUEUES, FROM_CLASSES)


def of_file(settings: Settings, router: Router, shard: str) -> OwnQueues:
    """Return the queues of config/queues.yml and those of classes that are newer than the generated files.

    A class is newer when all_queues.yml exists and does not name it, or when the file serves another of its queues, because a
    rule has moved it since. Any other class that the file leaves out stays out: its author has removed it.
    """
    names = [line.name for line in settings.queues]
    wanted = {
        place.queue: users for place, users in locations_of(router, _declarations()).items() if place.shard == shard
    }
    lacking = {queue: users for queue, users in sorted(wanted.items()) if not serves(names, queue)}
    known = _known_classes(settings) if lacking else None
    added = {
        queue: users for queue, users in lacking.items() if any(_is_newer(router, one, names, known) for one in users)
    }
    weights = [(line.name, line.weight) for line in settings.queues]
    weights += [(queue, _weight(settings, users)) for queue, users in added.items()]
    return OwnQueues(tuple(weights), settings.config_file_label("queues.yml"), tuple(added))


def known_queues(router: Router) -> set[str]:
    """Return every queue that jobs of the registered workers may wait in."""
    return {queue for declaration in _declarations() for queue in router.queues_of(declaration)}


def expand_queues(queues: Weights, known: Collection[str]) -> QueueOrder:
    """Return the order for queues and namespaces: a namespace means itself and every known ``namespace:*``.

    A queue that is also given literally has the position and the weight of its literal entry.
    """
    given = {name for name, _ in queues}
    return QueueOrder.of(
        [
            (name, weight)
            for own, weight in queues
            for name in queue_facts.expand_namespaces([own], known)
            if name == own or name not in given
        ]
    )


def warn_own_queues(own: OwnQueues, shard: str) -> None:
    """Warn of a file that lacks queues of loaded classes, and of a process whose shard receives no job of a loaded class."""
    if own.added:
        logs.logger().warning(
            f"{own.source} lacks the queue{'s' * (len(own.added) > 1)} {join_names(own.added, max_names=5)} of loaded classes; "
            f"this process serves them anyway. Run `{command('generate-queues')}` and commit the files",
            event_name="queues.stale",
            queues=list(own.added[:50]),
        )
    if own.source == FROM_CLASSES and own.weights == _NO_QUEUES and registry.workers():
        logs.logger().warning(
            f"the routing rules send no job of a loaded class to the shard {shard}, so this process serves the queue 'default' "
            "there. Name queues with -q, or another shard with --shard",
            event_name="boot.no_queues",
            shard=shard,
        )


def _declarations() -> list[Declaration]:
    return [cast("Declaration", worker.declaration()) for worker in registry.workers()]


def _weight(settings: Settings, users: Sequence[Declaration]) -> int:
    return max(queue_facts.effective_weight(one, settings.namespace_weights).value for one in users)


def _is_newer(router: Router, declaration: Declaration, names: Collection[str], known: Collection[str] | None) -> bool:
    if known is not None and declaration.wire_name not in known:
        return True
    return any(serves(names, queue) for queue in router.queues_of(declaration))


def _known_classes(settings: Settings) -> frozenset[str] | None:
    """Return the classes of all_queues.yml; ``None`` when it is missing or malformed."""
    path = all_queues_path(settings)
    if not path.exists():
        return None
    try:
        return frozenset(str(entry.get("worker_name")) for entry in read_entries(path))
    except (YamlError, OSError):
        return None
