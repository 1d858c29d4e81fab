"""``generate_queues``: write ``workers/all_queues.yml`` and ``config/queues.yml`` from the workers, or check them."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from framework.cli.failure import EXIT_FAILED, explained
from framework.cli.project import Project, load_project
from framework.declare import catalog
from framework.declare.catalog import Comparison, Entry
from framework.declare.declaration import Declaration
from framework.settings.shapes import is_list, is_mapping
from framework.settings.yaml_file import YamlError, read_yaml

COMMAND = "scripts/generate_queues"


@click.command("generate-queues")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and list what differs.")
@click.option(
    "-r", "--require", "modules", multiple=True, metavar="MODULE", help="Load this instead of workers_module."
)
@explained
def generate_queues(*, check: bool, modules: Sequence[str]) -> None:
    """Write workers/all_queues.yml and config/queues.yml from the worker classes."""
    project = load_project(modules)
    settings, declarations = project.settings, list(project.declarations.values())
    _refuse_shared_queues(declarations)
    entries = catalog.entries(declarations, settings.namespace_weights)
    weights = [list(line) for line in queue_lines(project)]
    all_queues = settings.root / "workers" / "all_queues.yml"
    queues = settings.config_dir / "queues.yml"
    texts = {
        all_queues: catalog.ALL_QUEUES_HEADER + _dump(entries),
        queues: catalog.QUEUES_HEADER + _dump({"queues": weights}),
    }
    if check:
        _check(texts, {all_queues: _compare_workers(all_queues, entries), queues: _compare_weights(queues, weights)})
    else:
        for path, text in texts.items():
            _write(path, text)
            click.echo(f"wrote {_shown(path)}")


def queue_lines(project: Project) -> list[tuple[str, int]]:
    """The lines of config/queues.yml: generated queues and namespaces, and every queue that rules, overrides and retry queues
    name, with the largest weight among its workers.
    """
    table = project.settings.namespace_weights
    declarations = project.declarations.values()
    routed: dict[str, int] = {}
    for declaration in declarations:
        for queue in project.router.queues_of(declaration):
            if queue != declaration.generated_queue:
                routed[queue] = max(routed.get(queue, 1), catalog.weight_of(declaration, table).value)
    return catalog.queue_weights(declarations, routed, table)


def _refuse_shared_queues(declarations: Sequence[Declaration]) -> None:
    shared = catalog.shared_queues(declarations)
    for queue, names in shared.items():
        click.echo(
            f"{' and '.join(names)} have the same generated queue {queue}: rename one, or give it a wire_name.",
            err=True,
        )
    if shared:
        sys.exit(EXIT_FAILED)


def _compare_workers(path: Path, entries: Sequence[Entry]) -> list[str]:
    found = _read(path)
    if isinstance(found, str):
        return [found]
    if not is_list(found):
        return ["is no list of workers"]
    return _lines(catalog.compare(entries, [item for item in found if is_mapping(item)]))


def _compare_weights(path: Path, weights: Sequence[list[Any]]) -> list[str]:
    found = _read(path)
    if isinstance(found, str):
        return [found]
    present = found.get("queues") if is_mapping(found) else None
    if not is_list(present):
        return ["has no list under the key queues"]
    wanted = {str(name): weight for name, weight in weights}
    got = {str(line[0]): line[1] for line in present if is_list(line) and len(line) == 2}
    shared = sorted(wanted.keys() & got.keys())
    changed = tuple(f"{name}: weight {got[name]}, not {wanted[name]}" for name in shared if got[name] != wanted[name])
    missing, surplus = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
    return _lines(Comparison(tuple(missing), tuple(surplus), changed))


def _lines(comparison: Comparison) -> list[str]:
    return [f"{kind} {name}" for kind, names in zip(Comparison._fields, comparison, strict=True) for name in names]


def _check(texts: Mapping[Path, str], differences: Mapping[Path, list[str]]) -> None:
    stale = False
    for path, text in texts.items():
        found = differences[path]
        if not found and path.read_text(encoding="utf-8") != text:
            found = ["holds the right entries, but not as generated (order, layout or comments)"]
        for line in found:
            click.echo(f"{_shown(path)}: {line}", err=True)
        stale = stale or bool(found)
    if stale:
        click.echo(f"Run {COMMAND} and commit the files.", err=True)
        sys.exit(EXIT_FAILED)
    click.echo("The generated files are up to date.")


def _read(path: Path) -> Any:
    """The content, or a text saying why there is none."""
    if not path.exists():
        return "does not exist"
    try:
        return read_yaml(path)
    except YamlError as error:
        return str(error)


def _dump(content: object) -> str:
    return yaml.dump(
        content, Dumper=_Indented, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000
    )


class _Indented(yaml.SafeDumper):
    """Lists of plain values stand in one line, everything else in its own; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Equal lists are written out each time: a reference between workers would read oddly."""
        del data
        return True


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(text, encoding="utf-8")
    # A reader sees the old file or the new one, never half of one.
    beside.replace(path)


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
