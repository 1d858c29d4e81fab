"""Explain the source of each fact in one worker's entry, for ``generate-queues --explain``."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from framework.declare import check, queue_facts
from framework.declare.declaration import Declaration
from framework.declare.misuse import declared_value
from framework.terminal.project import Project
from framework.typeguards import qualified_name

_MAX_NAMES_SHOWN = 5
"""How many workers one line names."""


def explain_entry(project: Project, name: str, lines: Mapping[str, int]) -> str:
    """Return the explanation of the worker with this wire name; ``lines`` are those of config/queues.yml."""
    worker = project.workers[name]
    declaration: Declaration = worker.declaration()
    owners = check.defining_classes(worker)
    entry = queue_facts.queue_facts(declaration, project.settings.namespace_weights)
    origins = {field: _origin(project, declaration, owners, field) for field in entry}
    shown = {field: _yaml(value) for field, value in entry.items()}
    for attribute in sorted(owners.keys() - entry.keys() - {"wire_name"}):
        owner = owners[attribute]
        shown[attribute], origins[attribute] = repr(declared_value(owner, attribute)), _declared_by(owner)
    widths = max(map(len, shown)), max(map(len, shown.values()))
    table = [f"  {field:{widths[0]}}  {shown[field]:{widths[1]}}  {origins[field]}" for field in shown]
    places = [f"  {text}" for text in _queue_lines(project, declaration, lines)]
    return "\n".join(
        [f"{name} is {declaration.qualified_name}", *table, project.settings.config_file_label("queues.yml"), *places]
    )


def _origin(project: Project, declaration: Declaration, owners: Mapping[str, type[Any]], field: str) -> str:
    if field == "name":
        return _name_origin(declaration)
    if field == "worker_name":
        own = "wire_name" in owners and owners["wire_name"].wire_name is not None
        return "declared as its wire_name" if own else f"made from the place of the class: {declaration.qualified_name}"
    if field == "weight":
        return _weight_origin(project, declaration, owners)
    if field in owners:
        return _declared_by(owners[field])
    if field == "deduplicate" and declaration.deduplicate is not None:
        return f"follows from idempotent = True, {_declared_by(owners['idempotent'])}"
    return "default"


def _name_origin(declaration: Declaration) -> str:
    stem = "made from the wire name: without the suffix Worker, underscored"
    return f"{stem}, behind its queue_namespace and a colon" if declaration.queue_namespace else stem


def _weight_origin(project: Project, declaration: Declaration, owners: Mapping[str, type[Any]]) -> str:
    rule = queue_facts.effective_weight(declaration, project.settings.namespace_weights).source
    if rule == "attribute":
        return _declared_by(owners["weight"])
    if rule == "namespace_weights":
        return f"by the setting namespace_weights: {declaration.queue_namespace}; the class declares no weight"
    missing = f", nor has namespace_weights {declaration.queue_namespace}" if declaration.queue_namespace else ""
    return f"by urgency {declaration.urgency}; the class declares no weight{missing}"


def _declared_by(owner: type[Any]) -> str:
    return f"declared by {qualified_name(owner)}"


def _queue_lines(project: Project, declaration: Declaration, lines: Mapping[str, int]) -> Iterator[str]:
    """Yield each queue in which its jobs may wait, with the line by which a process serves it."""
    route = project.router.route(declaration)
    for queue in project.router.queues_of(declaration):
        uses = (
            (queue == declaration.generated_queue, "its generated name"),
            (
                queue == route.queue,
                f"its jobs go there, on shard {route.shard} ({_route_reason(declaration, route.rule)})",
            ),
            (queue == declaration.retry_queue, "its retries go there"),
            *(
                (
                    queue in project.router.queues_of_alias(declaration, alias),
                    f"jobs of its alias {alias} may wait there",
                )
                for alias in declaration.aliases
            ),
        )
        line = queue if queue in lines else queue.partition(":")[0]
        reason = _line_reason(project, declaration, queue, line)
        yield f"[{line}, {lines[line]}] serves {queue} ({', '.join(text for holds, text in uses if holds)}): {reason}"


def _route_reason(declaration: Declaration, rule: str | None) -> str:
    if declaration.queue is not None:
        return f"the class has queue = {declaration.queue!r}"
    return f"rule {rule}" if rule is not None else "no rule matches"


def _line_reason(project: Project, declaration: Declaration, queue: str, line: str) -> str:
    namespace = declaration.queue_namespace
    if queue != declaration.generated_queue:
        return "a line of its own" if line == queue else f"in the line of the namespace {line}"
    if namespace is None:
        return "a line of its own, as the worker has no namespace"
    table = project.settings.namespace_weights
    members = {
        name: queue_facts.effective_weight(one, table).value
        for name, one in project.declarations.items()
        if one.queue_namespace == namespace
    }
    if line == namespace:
        return f"in the line of its namespace, as all workers of it weigh {min(members.values())}"
    listed = ", ".join(f"{name} {weight}" for name, weight in list(members.items())[:_MAX_NAMES_SHOWN])
    more = f" and {len(members) - _MAX_NAMES_SHOWN} more" if len(members) > _MAX_NAMES_SHOWN else ""
    return f"a line of its own, as the workers of {namespace} do not weigh the same: {listed}{more}"


def _yaml(value: Any) -> str:
    """Return the value in the YAML of the entry, in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
