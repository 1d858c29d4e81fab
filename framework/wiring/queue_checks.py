"""Compare workers/all_queues.yml with the loaded workers at boot, as operators plan their fleets by that file."""

from pathlib import Path
from typing import Any

from framework.declare import queue_facts, registry
from framework.declare.declaration import Declaration
from framework.declare.queue_facts import QueueFileDiff
from framework.route.topology import regenerate_advice
from framework.settings.model import Settings
from framework.settings.yaml_file import YamlError, read_yaml
from framework.telemetry import logs
from framework.typeguards import is_list, is_mapping

MAX_BYTES = 16 * 1024 * 1024
"""The size limit of the file, enough for tens of thousands of workers."""

# Of each kind, so that the log line stays readable.
_MAX_NAMES = 5


def all_queues_path(settings: Settings) -> Path:
    """Return the path of the project's generated file."""
    return settings.generated_dir / "all_queues.yml"


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of the file. Raises YamlError when it is missing or malformed."""
    if not path.exists():
        raise YamlError("does not exist")
    found = read_yaml(path, max_bytes=MAX_BYTES)
    if not is_list(found):
        raise YamlError("is not a list of workers")
    return [item for item in found if is_mapping(item)]


def warn_stale_queues(settings: Settings) -> None:
    """Warn when the file differs from the loaded workers of ``workers_module``; raise nothing.

    Workers from other modules (``-r``, the application itself) have no entry. Only a process that has loaded all modules of the
    setting reports surplus entries, because a producer imports only the workers that it pushes. About 100 ms for 500 workers.
    """
    modules = settings.workers_module
    workers = [one for one in map(_declaration, registry.workers()) if _within(one.module, modules)]
    if not workers:
        return
    path, found, reason = all_queues_path(settings), list[dict[str, Any]](), None
    try:
        found = read_entries(path)
    except (YamlError, OSError) as error:
        reason = str(error)
    comparison = queue_facts.diff_queue_facts(queue_facts.all_queue_facts(workers, settings.namespace_weights), found)
    if not registry.loaded().issuperset(modules):
        comparison = comparison._replace(surplus=())
    if not comparison.is_empty:
        _log_difference(settings.generated_file_label("all_queues.yml"), comparison, reason)


def _log_difference(path: str, comparison: QueueFileDiff, reason: str | None) -> None:
    lists = {kind: list(names[:_MAX_NAMES]) for kind, names in comparison._asdict().items() if names}
    counts = {f"{kind}_count": len(names) for kind, names in comparison._asdict().items() if len(names) > _MAX_NAMES}
    logs.logger().warning(
        f"{path} differs from the loaded workers: {regenerate_advice()}",
        event_name="queues.stale",
        **({"reason": reason} if reason else lists | counts),
    )


def _declaration(worker: type[Any]) -> Declaration:
    declaration: Declaration = worker.declaration()
    return declaration


def _within(module: str, modules: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in modules)
