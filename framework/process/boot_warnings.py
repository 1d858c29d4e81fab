"""Warn at the boot of a process of settings without effect, of a stale generated file, and of limits on several shards."""

from collections.abc import Collection, Iterable
from typing import Any

from framework.declare import queue_facts, registry
from framework.declare.declaration import Declaration
from framework.declare.queue_facts import QueueFileDiff
from framework.route.router import Router
from framework.route.topology import regenerate_advice, splits_by_rules
from framework.settings.files import YamlError, all_queues_path, read_entries
from framework.settings.model import CoreSettings
from framework.telemetry import logs
from framework.text import nearest

# Of each kind, so that the log line stays readable.
_MAX_NAMES = 5


# Warned about, not refused: a variable may belong to another program, and a refusal would stop workers and producers.
def warn_unknown_variables(settings: CoreSettings) -> None:
    """Warn of each variable without effect. The line never shows its value, which may be a secret of another program."""
    for name, near in settings.unknown_variables.items():
        hint = f" (did you mean {near}?)" if near is not None else ""
        logs.logger().warning(
            f"the variable {name} has no effect, because application-worker has no such setting{hint}. Rename it, or ignore this "
            "line if it belongs to another program",
            event_name="config.unknown_variable",
            variable=name,
            **({"nearest": near} if near is not None else {}),
        )


def warn_splits(settings: CoreSettings, router: Router) -> None:
    """Warn of each class or queue whose limits and locks hold on several shards."""
    declarations = [_declaration(worker) for worker in registry.workers()]
    source = settings.config_file_label("application.yml")
    for split in splits_by_rules(router, declarations, settings.limits, source=source):
        logs.logger().warning(
            str(split), event_name="boot.split", name=split.name, holds=list(split.controls), shards=list(split.shards)
        )


def warn_readable_keys() -> None:
    """Warn of each class that makes names in Redis of texts that its log lines hide.

    A key that a function makes of the arguments (``fair_by``, ``limiter.by``, ``ConcurrencyScope(by=...)``) is readable there, in log
    lines and in commands. Numbers are shown everywhere, and a class with ``encrypt`` has digests for keys.
    """
    for one in map(_declaration, registry.workers()):
        hidden = _hidden_texts(one)
        attributes = [name for name, by in _keys_of_jobs(one) if callable(by)]
        if one.encrypt or not hidden or not attributes:
            continue
        logs.logger().warning(
            f"{one.wire_name} makes keys of its arguments ({', '.join(attributes)}). Keys are readable in Redis and in log lines, "
            f"which hide {', '.join(hidden)}. Make the keys of ids, or list the arguments in loggable_arguments if all may see them",
            event_name="boot.readable_keys",
            name=one.wire_name,
            hidden_arguments=hidden,
        )


def _hidden_texts(one: Declaration) -> list[str]:
    typed = zip(one.signature.names, one.signature.annotations, strict=False)
    return [name for name, kind in typed if kind is str and name not in one.loggable_arguments]


def _keys_of_jobs(one: Declaration) -> list[tuple[str, object]]:
    scope = one.facts.get("concurrency_scope")
    return [
        ("fair_by", one.fair_by),
        ("limiter", getattr(one.limiter, "key_of_job", None)),
        ("concurrency_scope", None if scope is None else scope.by),
    ]


def warn_stale_queues(settings: CoreSettings) -> None:
    """Warn when workers/all_queues.yml differs from the loaded workers of ``workers_module``; raise nothing.

    Operators plan their processes by that file. Workers from other modules (``-r``, the application itself) have no entry. Only a
    process that has loaded all modules of the setting reports surplus entries, because a producer imports only the workers that
    it pushes. About 100 ms for 500 workers.
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


def warn_unknown_queues(settings: CoreSettings, queues: Iterable[str], known: Collection[str]) -> None:
    """Warn of options without effect: no worker class at all, or one of the served ``queues`` or limits with a misspelt name.

    An unknown name without a similar known one may be another producer's queue; config/queues.yml is generated.
    """
    if not registry.workers():
        logs.logger().warning(
            "no worker class is loaded, so no job can run in this process. Name the module of the workers with -r or the setting "
            "workers_module",
            event_name="boot.no_workers",
        )
    listed = {name for name, _ in settings.queues}
    names = {*known, *(name.partition(":")[0] for name in known if ":" in name)}
    for name in queues:
        warn_similar_queue(
            name,
            names,
            listed,
            "no worker is routed to the queue {} (did you mean {}?). The process serves it anyway, because other producers may "
            "push to it",
        )
    for setting, limits in (("limits", settings.limits), ("process_limits", settings.process_limits)):
        for name in limits:
            warn_similar_queue(
                name,
                known,
                listed,
                f"no worker is routed to the queue {{}} of the setting {setting} (did you mean {{}}?), so this limit has no "
                "effect on the application",
            )


def warn_similar_queue(name: str, known: Collection[str], listed: Collection[str], message: str) -> None:
    """Warn of a queue that is neither known nor listed if its name is similar to a known one."""
    near = None if name in known or name in listed else nearest(name, sorted(known), cutoff=0.8)
    if near is not None:
        logs.logger().warning(
            message.format(repr(name), repr(near)), event_name="boot.unknown_queue", queue=name, nearest=near
        )


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
