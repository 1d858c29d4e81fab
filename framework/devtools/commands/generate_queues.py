"""``generate-queues``: write the generated files from the workers, check them, or explain one worker's entry."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from framework.command_line import command
from framework.declare import queue_facts
from framework.declare.declaration import Declaration
from framework.declare.names import queue_name
from framework.declare.queue_facts import QueueFacts, QueueFileDiff
from framework.devtools import catalog
from framework.devtools.compat.manifest import read_manifest
from framework.devtools.explain_entry import explain_entry
from framework.devtools.queues_schema import all_queues_schema
from framework.exit_codes import EXIT_FAILED
from framework.settings.all_queues import read_entries
from framework.settings.yaml_file import YamlError, read_yaml
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
from framework.typeguards import is_list, is_mapping


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
        project.all_queues: catalog.ALL_QUEUES_HEADER + _dump(entries),
        project.all_queues.with_name(catalog.SCHEMA_NAME): _schema_text(project),
        project.queues: catalog.QUEUES_HEADER + _dump({"queues": weights}),
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
    return catalog.queue_weights(declarations, routed, table)


def _refuse_shared_queues(declarations: Iterable[Declaration]) -> None:
    shared = catalog.shared_queues(declarations)
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
