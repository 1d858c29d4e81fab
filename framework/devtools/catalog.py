"""Build headers and lines of the generated files ``all_queues.yml`` and ``queues.yml``."""

from collections.abc import Iterable, Mapping
from itertools import groupby

from framework.declare.declaration import Declaration
from framework.declare.queue_facts import effective_weight, facts_order

SCHEMA_NAME = "all_queues.schema.json"
"""The schema in the folder of all_queues.yml, whose first line names it for the language servers of editors."""

ALL_QUEUES_HEADER = f"""\
# yaml-language-server: $schema={SCHEMA_NAME}
# This file is generated: run application-worker generate-queues after adding or changing a worker, and commit it.
# One entry per worker: what routing rules and queue selectors can ask about. `name` is the generated queue name,
# whatever the routing rules say. application-worker generate-queues --check fails when an entry is missing, surplus or changed.
"""

QUEUES_HEADER = """\
# This file is generated: run application-worker generate-queues after changing workers or routing rules, and commit it.
# The queues of a worker process without -q: [queue or namespace, weight]. A namespace stands for itself and for all
# its queues. While all have work, a queue is asked first with the chance weight / sum of weights; weights all 1 mean
# random order. Give a worker another `weight` (1 low, 2 medium, 3 high, 5 very high) rather than editing here.
"""


def shared_queues(declarations: Iterable[Declaration]) -> dict[str, list[str]]:
    """Return each generated queue name of several workers, which GitLab's guideline forbids, with those workers."""
    holders: dict[str, list[str]] = {}
    for declaration in sorted(declarations, key=facts_order):
        holders.setdefault(declaration.generated_queue, []).append(declaration.wire_name)
    return {queue: names for queue, names in holders.items() if len(names) > 1}


def queue_weights(
    declarations: Iterable[Declaration], routed: Mapping[str, int], namespace_weights: Mapping[str, int]
) -> list[tuple[str, int]]:
    """Return the lines of queues.yml: one line for a namespace whose workers have equal weights, else one per queue (GitLab).

    ``routed`` adds the queues that routing rules and overrides name, with their weights. A namespace and a queue of the
    same name share a line, with the larger weight.
    """
    weights: dict[str, int] = {}
    ordered = sorted(declarations, key=lambda declaration: declaration.queue_namespace or "")
    for namespace, group in groupby(ordered, key=lambda declaration: declaration.queue_namespace):
        members = {member.generated_queue: effective_weight(member, namespace_weights).value for member in group}
        alike = namespace is not None and len(set(members.values())) == 1
        for queue, weight in members.items():
            line = namespace if namespace is not None and alike else queue
            weights[line] = max(weights.get(line, 0), weight)
    for queue, weight in routed.items():
        if queue not in weights and queue.partition(":")[0] not in weights:
            weights[queue] = weight
    return sorted(weights.items())
