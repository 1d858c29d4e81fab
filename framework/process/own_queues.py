"""Choose the queues of a worker process: from options, a file, the environment, or the loaded classes."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from framework.command_line import command
from framework.declare import queue_facts, registry
from framework.declare.declaration import Declaration
from framework.fetch.queues import QueueOrder
from framework.route.router import Router
from framework.route.rule_checks import serves
from framework.route.topology import QueueLocation, former_locations, locations_of, queues_on
from framework.settings.files import YamlError, all_queues_path, read_entries, read_released_queues
from framework.settings.model import MAX_CONCURRENCY, CoreSettings
from framework.telemetry import logs
from framework.text import join_names
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT

DEFAULT_CAPSULE = "default"
"""The name of the capsule that serves the process's own queues, as in Sidekiq."""

_CAPSULE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}", re.ASCII)
MAX_CAPSULES = 20
"""The most capsules of a process: each has threads, and a connection for each of its queues."""

FROM_CLASSES = "the loaded classes"
Weights: TypeAlias = tuple[tuple[str, int], ...]

_NO_QUEUES: Weights = (("default", 0),)


class OwnQueues(NamedTuple):
    """The queues of a process with their weights, and the source of them."""

    weights: Weights
    source: str
    added: tuple[str, ...] = ()
    """The queues that the generated file lacks, of classes that are newer than the file."""
    is_implicit: bool = False
    """Whether the process was given no queues, so that these are all of its classes or of the generated file."""


class CapsuleOptions(NamedTuple):
    """A further capsule as it is configured: its name, its queues and namespaces, and its slots."""

    name: str
    queues: Weights
    slots: int
    no_namespaces: bool = False
    """Whether names are queues only."""


class CapsulePlan(NamedTuple):
    """A capsule that a process runs."""

    name: str
    order: QueueOrder
    slots: int


def check_capsules(capsules: Sequence[CapsuleOptions], *, default_allowed: bool = False) -> tuple[CapsuleOptions, ...]:
    """Return the capsules. Raises ValueError for a wrong name, a repeated one, or too many."""
    seen: set[str] = set()
    for one in capsules:
        if _CAPSULE_NAME.fullmatch(one.name) is None:
            raise ValueError(
                f"{one.name!r} is not a name of a capsule: use 1 to 40 of A-Z a-z 0-9 _ -, without a - in front"
            )
        if one.name == DEFAULT_CAPSULE and not default_allowed:
            raise ValueError(
                f"{one.name!r} is the capsule of the process's own queues: give those outside of the capsules"
            )
        if one.name in seen:
            raise ValueError(f"the capsule {one.name!r} is given twice: give it once, with all its queues")
        seen.add(one.name)
    if len(capsules) > MAX_CAPSULES:
        raise ValueError(f"{len(capsules)} capsules are too many: a process has at most {MAX_CAPSULES}")
    return tuple(capsules)


def checked_capsules(
    capsules: Mapping[str, tuple[int, Sequence[str | tuple[str, int]]]],
) -> tuple[CapsuleOptions, ...]:
    """Return the capsules that the code of an application gives. Raises ValueError and TypeError."""
    found = [CapsuleOptions(name, checked_queues(queues), slots) for name, (slots, queues) in capsules.items()]
    for one in found:
        if not 1 <= one.slots <= MAX_CONCURRENCY:
            raise ValueError(
                f"the concurrency of the capsule {one.name!r} must be a whole number from 1 to {MAX_CONCURRENCY:,}, not {one.slots!r}"
            )
        if not one.queues:
            raise ValueError(f"the capsule {one.name!r} has no queues: name those that it serves")
    return check_capsules(found)


def checked_queues(queues: Sequence[str | tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the queues that the code of an application gives, with their weights. Raises ValueError and TypeError."""
    if isinstance(queues, str):
        raise TypeError(f"queues must be a list of names, for example [{queues!r}]")
    pairs = tuple((one, 0) if isinstance(one, str) else one for one in queues)
    for name, weight in pairs:
        if QUEUE_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a queue name: {QUEUE_NAME_FORMAT}")
        if weight < 0:
            raise ValueError(f"the weight of the queue {name!r} must be a whole number from 1 on, not {weight}")
    return pairs


def without_capsules(own: Weights, capsules: Collection[CapsuleOptions]) -> Weights:
    """Return the queues that no capsule names; for queues that the process has not been given itself."""
    taken = {name for capsule in capsules for name, _ in capsule.queues}
    return tuple((name, weight) for name, weight in own if name not in taken)


def plan_capsules(
    own: Weights, slots: int, capsules: Sequence[CapsuleOptions], known: Collection[str], *, no_namespaces: bool = False
) -> list[CapsulePlan]:
    """Return the capsules of a process: ``default`` with its own queues if it has any, then the others.

    A queue that a capsule names is not served as a part of a namespace by another.
    """
    given = [CapsuleOptions(DEFAULT_CAPSULE, own, slots, no_namespaces)] if own else []
    given += capsules
    named = {name for one in given for name, _ in one.queues}
    return [CapsulePlan(one.name, _order_of(one, known, named), one.slots) for one in given]


def _order_of(capsule: CapsuleOptions, known: Collection[str], named: Collection[str]) -> QueueOrder:
    if capsule.no_namespaces:
        return QueueOrder.of(capsule.queues)
    literal = {name for name, _ in capsule.queues}
    return expand_queues(capsule.queues, {name for name in known if name in literal or name not in named})


# The default, so that the shortest setup, one file and one process, runs its jobs.
def of_loaded_classes(settings: CoreSettings, router: Router, shard: str) -> OwnQueues:
    """Return the queues of the loaded classes on a shard with the generated weights, or ``default`` when there are none.

    The queues of earlier releases are included: jobs may be left there after a rule has moved a class.
    """
    found = queues_on(router, _declarations(), shard)
    for place, users in former_queues(settings, router, _declarations()).items():
        if place.shard == shard:
            found.setdefault(place.queue, users)
    weights = tuple((queue, _weight(settings, users)) for queue, users in sorted(found.items()))
    return OwnQueues(weights or _NO_QUEUES, FROM_CLASSES, is_implicit=True)


def of_file(settings: CoreSettings, router: Router, shard: str) -> OwnQueues:
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
    return OwnQueues(tuple(weights), settings.config_file_label("queues.yml"), tuple(added), is_implicit=True)


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


def former_queues(
    settings: CoreSettings, router: Router, declarations: Sequence[Declaration]
) -> dict[QueueLocation, list[Declaration]]:
    """Return the queues of earlier releases that receive no more jobs of these classes; none if the manifest is malformed."""
    try:
        return former_locations(router, declarations, read_released_queues(settings))
    # ``check-compat`` and ``cluster`` report it.
    except (YamlError, OSError):
        return {}


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


def _weight(settings: CoreSettings, users: Sequence[Declaration]) -> int:
    weights = (queue_facts.effective_weight(one, settings.namespace_weights).value for one in users)
    return max(weights, default=1)


def _is_newer(router: Router, declaration: Declaration, names: Collection[str], known: Collection[str] | None) -> bool:
    if known is not None and declaration.wire_name not in known:
        return True
    return any(serves(names, queue) for queue in router.queues_of(declaration))


def _known_classes(settings: CoreSettings) -> frozenset[str] | None:
    """Return the classes of all_queues.yml; ``None`` when it is missing or malformed."""
    path = all_queues_path(settings)
    if not path.exists():
        return None
    try:
        return frozenset(str(entry.get("worker_name")) for entry in read_entries(path))
    except (YamlError, OSError):
        return None
