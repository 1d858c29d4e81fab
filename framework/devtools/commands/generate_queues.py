"""``generate-queues``: write the generated files and their schema from the workers, check them, or explain one worker's entry."""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import click
import yaml

from framework.application_worker import ATTRIBUTES
from framework.command_line import EXIT_FAILED, command
from framework.declare import check, queue_facts, validators
from framework.declare.declaration import NOT_OWNED, Declaration
from framework.declare.misuse import declared_value
from framework.declare.names import queue_name
from framework.declare.policy_options import DeduplicateStrategy
from framework.declare.queue_facts import QueueFacts, QueueFileDiff, effective_weight, facts_order
from framework.devtools.compat.json_schema import JSON_SCHEMA_DIALECT
from framework.devtools.compat.manifest import read_manifest
from framework.settings.files import YamlError, read_entries, read_yaml
from framework.terminal.options import modules_option
from framework.terminal.output import (
    display_path,
    echo,
    echo_lines,
    refuse_unknown,
    reports_errors,
    unknown_worker_message,
    write_all,
)
from framework.terminal.project import Project, load_project
from framework.typeguards import is_list, is_mapping, qualified_name


@click.command("generate-queues")
@click.option(
    "--check", is_flag=True, help="Write nothing, and list the differences. The exit status is 1 when there are any."
)
@click.option(
    "--explain",
    "named",
    metavar="WORKER",
    help="Write nothing, and show the source of each fact in this worker's entry.",
)
@modules_option
@reports_errors
def generate_queues(*, check: bool, named: str | None, modules: Sequence[str]) -> None:
    """Write all_queues.yml, its JSON schema and queues.yml from the worker classes.

    The first two go to the folder of generated files, workers; the third goes to the config folder.
    """
    if check and named is not None:
        raise click.UsageError("--check and --explain do not go together.")
    project = load_project(modules)
    _refuse_shared_queues(project.declarations.values())
    if named is not None:
        refuse_unknown([named], project.workers, unknown_worker_message)
        echo_lines(explain_entry(project, named, dict(queue_lines(project))).split("\n"))
        return
    entries, weights = generated_content(project)
    texts = {
        project.all_queues: ALL_QUEUES_HEADER + _dump(entries),
        project.all_queues.with_name(SCHEMA_NAME): _schema_text(project),
        project.queues: QUEUES_HEADER + _dump({"queues": weights}),
    }
    if check:
        differences = {
            project.all_queues: _compare_workers(project.all_queues, entries),
            project.queues: _compare_weights(project.queues, weights),
        }
        _report_differences(texts, differences)
        return
    write_all(texts)
    for path in texts:
        echo(f"wrote {display_path(path)}")


def generated_content(project: Project) -> tuple[list[QueueFacts], list[list[Any]]]:
    """Return the current content of workers/all_queues.yml and config/queues.yml."""
    entries = queue_facts.all_queue_facts(project.declarations.values(), project.settings.namespace_weights)
    return entries, [list(line) for line in queue_lines(project)]


def queue_lines(project: Project) -> list[tuple[str, int]]:
    """Return the lines of config/queues.yml.

    They have generated queues and namespaces, and every queue of rules, overrides and retry queues with the largest weight among
    its workers. Jobs of earlier releases may wait in the generated queues of retired classes and in those of
    workers/released.yml.
    """
    table = project.settings.namespace_weights
    declarations = project.declarations.values()
    routed: dict[str, int] = {}
    for declaration in declarations:
        for queue in project.router.queues_of(declaration):
            if queue != declaration.generated_queue:
                routed[queue] = max(routed.get(queue, 1), queue_facts.effective_weight(declaration, table).value)
    for name in project.settings.retired_workers:
        routed.setdefault(queue_name(name, None), 1)
    last = read_manifest(project.released, display_path(project.released))
    for queue in last.queues if last is not None else ():
        routed.setdefault(queue, 1)
    return queue_weights(declarations, routed, table)


def _refuse_shared_queues(declarations: Iterable[Declaration]) -> None:
    shared = shared_queues(declarations)
    for queue, names in shared.items():
        echo(
            f"{' and '.join(names)} have the same generated queue {queue}: rename one, or give it a wire_name.",
            err=True,
        )
    if shared:
        sys.exit(EXIT_FAILED)


def _compare_workers(path: Path, entries: Sequence[QueueFacts]) -> list[str]:
    try:
        return _difference_lines(queue_facts.diff_queue_facts(entries, read_entries(path)))
    except YamlError as error:
        return [str(error)]


def _compare_weights(path: Path, weights: Sequence[list[Any]]) -> list[str]:
    if not path.exists():
        return ["does not exist"]
    try:
        found = read_yaml(path)
    except YamlError as error:
        return [str(error)]
    present = found.get("queues") if is_mapping(found) else None
    if not is_list(present):
        return ["has no list under the key queues"]
    wanted = {str(name): weight for name, weight in weights}
    got = {str(line[0]): line[1] for line in present if is_list(line) and len(line) == 2}
    shared = sorted(wanted.keys() & got.keys())
    changed = tuple(f"{name}: weight {got[name]}, not {wanted[name]}" for name in shared if got[name] != wanted[name])
    missing, surplus = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
    return _difference_lines(QueueFileDiff(tuple(missing), tuple(surplus), changed))


def _difference_lines(comparison: QueueFileDiff) -> list[str]:
    return [f"{kind} {name}" for kind, names in zip(QueueFileDiff._fields, comparison, strict=True) for name in names]


def _report_differences(texts: Mapping[Path, str], differences: Mapping[Path, list[str]]) -> None:
    stale = False
    for path, text in texts.items():
        found = differences.get(path, [] if path.exists() else ["does not exist"])
        if not found and _bytes_of_file(path) != text.encode():
            found = ["holds the right entries, but not as generated (order, layout or comments)"]
        for line in found:
            echo(f"{display_path(path)}: {line}", err=True)
        stale = stale or bool(found)
    if stale:
        echo(f"Run {command('generate-queues')} and commit the files.", err=True)
        sys.exit(EXIT_FAILED)
    echo("The generated files are up to date.")


def _bytes_of_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _schema_text(project: Project) -> str:
    return json.dumps(all_queues_schema(project.settings.feature_categories), indent=2) + "\n"


def _dump(content: object) -> str:
    return yaml.dump(
        content, Dumper=_InlineListDumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000
    )


class _InlineListDumper(yaml.SafeDumper):
    """Write a list of plain values in one line, other values in lines of their own, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal lists out each time, because a reference between two workers would be confusing."""
        del data
        return True


_FIELDS = (
    *("name", "worker_name", "feature_category", "has_external_dependencies", "urgency", "resource_boundary", "weight"),
    *(
        "idempotent",
        "tags",
        "queue_namespace",
        "version",
        "retry",
        "concurrency_limit",
        "deduplicate",
        "defer_on_health",
    ),
    *("data_consistency", "pause_control", "shard", "queue", "retry_queue", "aliases"),
)

_FIELD_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "name": validators.queue.schema,
    "worker_name": validators.wire_name.schema,
    "feature_category": validators.identifier.schema,
    "weight": validators.integer(1).schema,
    "concurrency_limit": {"anyOf": [{"type": "integer"}, {"const": "computed"}, {"type": "null"}]},
    "deduplicate": validators.optional(validators.one_of(*get_args(DeduplicateStrategy))).schema,
    "defer_on_health": validators.optional(validators.identifier).schema,
}
"""Fields that are no attribute, or have another form in the file than in the class."""


def all_queues_schema(categories: Collection[str]) -> dict[str, Any]:
    """Return the schema (draft 2020-12) of the file: a list of entries with exactly these fields; ``options``, ``chosen_queues``
    and ``spread`` are optional.

    ``categories`` come from config/feature_categories.yml; without any, every name is allowed. The schema does not list shards,
    because their names may differ between environments and the generated files may not.
    """
    properties = {field: dict(_FIELD_SCHEMAS.get(field) or ATTRIBUTES[field].validator.schema) for field in _FIELDS}
    properties["options"] = {"type": "object", "additionalProperties": {"type": ["boolean", "number", "string"]}}
    properties["chosen_queues"] = {"type": "array", "items": dict(validators.queue.schema)}
    properties["spread"] = {"type": "array", "items": dict(validators.shard.schema), "minItems": 2}
    if categories:
        properties["feature_category"] = {"enum": [*sorted(categories), NOT_OWNED]}
    return {
        "$schema": JSON_SCHEMA_DIALECT,
        "title": "all_queues.yml",
        "description": "Every worker class of the application and what it declares. Generated together with all_queues.yml.",
        "type": "array",
        "items": {
            "type": "object",
            "properties": properties,
            "required": list(_FIELDS),
            "additionalProperties": False,
        },
    }


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
    shards = ", ".join(project.router.shards_of(declaration))
    for queue in project.router.queues_of(declaration):
        uses = (
            (queue == declaration.generated_queue, "its generated name"),
            (
                queue == route.queue,
                f"its jobs go there, on shard {shards} ({_route_reason(declaration, route.rule)})",
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
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
