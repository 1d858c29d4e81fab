"""The facts of each worker that routing rules, queue selectors and ``all_queues.yml`` ask about, and the weight of its queue."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.declare.options import PRIORITIES, TRACKED
from framework.types import Urgency

_OWN_OPTIONS = (TRACKED.name, PRIORITIES.name)

QueueFacts: TypeAlias = dict[str, Any]
"""One worker's entry in the file: GitLab's fields first, then the framework's own."""

URGENCY_WEIGHTS: Mapping[Urgency, int] = {"high": 3, "low": 1, "throttled": 1}
"""The weight of a worker without one of its own or its namespace's (GitLab's legend: 1 is low, 3 is high)."""


class EffectiveWeight(NamedTuple):
    """How often a worker's queue is fetched from, and which of the three rules decided."""

    value: int
    source: Literal["attribute", "namespace_weights", "urgency"]


class QueueFileDiff(NamedTuple):
    """How a file differs from the workers: names of missing and surplus entries, and the changed fields of the others."""

    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.missing or self.surplus or self.changed)


def effective_weight(declaration: Declaration, namespace_weights: Mapping[str, int]) -> EffectiveWeight:
    """Return the class's own weight, else its namespace's, else its urgency's (GitLab has 1 in place of the last)."""
    if declaration.weight is not None:
        return EffectiveWeight(declaration.weight, "attribute")
    namespace = declaration.queue_namespace
    if namespace is not None and namespace in namespace_weights:
        return EffectiveWeight(namespace_weights[namespace], "namespace_weights")
    return EffectiveWeight(URGENCY_WEIGHTS[declaration.urgency], "urgency")


def queue_facts(declaration: Declaration, namespace_weights: Mapping[str, int]) -> QueueFacts:
    """Return one worker's facts in plain values; ``weight`` is the effective one."""
    limit = declaration.facts.get("concurrency_limit")
    health = declaration.facts.get("defer_on_health")
    facts: QueueFacts = {
        "name": declaration.generated_queue,
        "worker_name": declaration.wire_name,
        "feature_category": declaration.feature_category,
        "has_external_dependencies": declaration.has_external_dependencies,
        "urgency": declaration.urgency,
        "resource_boundary": declaration.resource_boundary,
        "weight": effective_weight(declaration, namespace_weights).value,
        "idempotent": declaration.idempotent,
        "tags": list(declaration.tags),
        "queue_namespace": declaration.queue_namespace,
        "version": declaration.version,
        "retry": declaration.retry,
        "concurrency_limit": "computed" if callable(limit) else limit,
        "deduplicate": declaration.deduplicate.strategy if declaration.deduplicate else None,
        "defer_on_health": health.database if health else None,
        "data_consistency": declaration.facts.get("data_consistency"),
        "pause_control": declaration.facts.get("pause_control"),
        "shard": declaration.shard,
        "queue": declaration.queue,
        "retry_queue": declaration.retry_queue,
        "aliases": list(declaration.aliases),
    }
    # Only where a class has some: most applications have none.
    if declaration.several_shards is not None:
        facts["spread"] = list(declaration.several_shards.shards)
    if declaration.chosen_queues:
        facts["chosen_queues"] = list(declaration.chosen_queues)
    if options := {name: value for name, value in declaration.options.items() if name not in _OWN_OPTIONS}:
        facts["options"] = options
    return facts


def all_queue_facts(declarations: Iterable[Declaration], namespace_weights: Mapping[str, int]) -> list[QueueFacts]:
    """Return one entry per worker: namespaced ones first, then by queue and class (GitLab's order)."""
    return [queue_facts(declaration, namespace_weights) for declaration in sorted(declarations, key=facts_order)]


def diff_queue_facts(expected: Sequence[QueueFacts], found: Sequence[Mapping[str, Any]]) -> QueueFileDiff:
    """Compare ``found`` (a file) with ``expected`` (the workers), by class name."""
    wanted = {str(item["worker_name"]): item for item in expected}
    present = {str(item.get("worker_name")): item for item in found}
    changed = [
        f"{name}: {field} is {present[name].get(field)!r} in the file, {wanted[name].get(field)!r} in the class"
        for name in sorted(wanted.keys() & present.keys())
        for field in (*wanted[name], *(key for key in present[name] if key not in wanted[name]))
        if not _same_value(wanted[name], present[name], field)
    ]
    return QueueFileDiff(
        missing=tuple(sorted(wanted.keys() - present.keys())),
        surplus=tuple(sorted(present.keys() - wanted.keys())),
        changed=tuple(changed),
    )


def _same_value(wanted: Mapping[str, Any], found: Mapping[str, Any], field: str) -> bool:
    if field not in wanted or field not in found:
        return False
    # To Python True equals 1, but retry = True means 25 times.
    return wanted[field] == found[field] and type(wanted[field]) is type(found[field])


def expand_namespaces(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return each name, followed by every known queue of which it is the namespace, in the given order, each once."""
    ordered = sorted(known)
    expanded = ((name, *(queue for queue in ordered if queue.startswith(f"{name}:"))) for name in names)
    return list(dict.fromkeys(queue for group in expanded for queue in group))


def facts_order(declaration: Declaration) -> tuple[bool, str, str]:
    """Return the sort key of a worker's entry: namespaced ones first, then by queue and class (GitLab's order)."""
    return (declaration.queue_namespace is None, declaration.generated_queue, declaration.wire_name)
