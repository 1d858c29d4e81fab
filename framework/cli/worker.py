"""``worker``: run one process that serves queues of one shard."""

import os
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from framework.all_settings import Settings, load
from framework.cli.process_options import (
    FileOptions,
    capsule_option,
    capsules_of_option,
    health_options,
    read_config_file,
    read_health_address,
    with_own_slots,
)
from framework.command_line import command
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.process import own_queues
from framework.process.own_queues import CapsuleOptions, OwnQueues, without_capsules
from framework.process.reload import FileChanges, Reloader, WatchedFolder
from framework.process.signals import SignalQueue, bind_to_supervisor
from framework.process.worker_options import HealthAddress, WorkerOptions
from framework.route.router import MAIN, Router, load_workers
from framework.settings.base import ENV_PREFIX
from framework.settings.model import MAX_CONCURRENCY
from framework.telemetry import logs
from framework.terminal.groups import run_from_checkout
from framework.terminal.options import (
    EnvironmentOption,
    QueueOption,
    WeightedQueue,
    check_shard,
    conflicting_weights,
    modules_option,
    tag_options,
    timeout_option,
    unknown_shard_message,
)
from framework.terminal.output import echo, reports_errors
from framework.wiring.client import connect
from framework.wiring.worker_process import run_worker

_FILE_SETTINGS = ("limits", "process_limits", "blocking_queues")
"""Settings that the file of ``-C`` may have too."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-q",
    "--queue",
    "queues",
    type=QueueOption(),
    multiple=True,
    help="Serve this queue, or the queues of this namespace. Repeatable. Default: config/queues.yml, else the queues of all classes.",
)
@capsule_option
@click.option("--only-capsules", is_flag=True, help="Serve the queues of the capsules, and no others.")
@click.option(
    "--no-namespaces", is_flag=True, help="Read each name of -q and --capsule only as a queue, not also as a namespace."
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    help="Run this number of jobs at a time. Default: the setting concurrency, 10.",
)
@click.option("--shard", metavar="NAME", help="Serve this shard. Default: main.")
@timeout_option
@click.option(
    "-C",
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read options from this YAML file, which has Sidekiq's keys.",
)
@click.option("-e", "--environment", type=EnvironmentOption(), help="Set FRAMEWORK_ENV to this.")
@modules_option
@tag_options
@health_options
@click.option("--watch", is_flag=True, help="Restart the process when a Python file below the working folder changes.")
@reports_errors
def worker(
    queues: tuple[WeightedQueue, ...],
    capsules: tuple[tuple[str, int, str], ...],
    concurrency: int | None,
    shard: str | None,
    timeout: float | None,
    config_file: Path | None,
    environment: str | None,
    modules: tuple[str, ...],
    tag: str | None,
    labels: tuple[str, ...],
    health_host: str | None,
    health_port: int | None,
    *,
    only_capsules: bool,
    no_namespaces: bool,
    watch: bool,
) -> None:
    """Run one worker process, which serves queues of one shard until TERM or INT.

    On TSTP it fetches no more jobs; on USR2 it also ends after the running jobs; on TTIN it logs all stacks.
    The exit status is 0 after a stop.
    """
    supervisor = bind_to_supervisor()
    named = _capsules(queues, capsules, only_capsules=only_capsules, no_namespaces=no_namespaces)
    if environment:
        os.environ["FRAMEWORK_ENV"] = environment
    settings = load()
    in_file = read_config_file(config_file, settings.env_name, settings.config_label) if config_file else FileOptions()
    for line in in_file.ignored_keys:
        echo(f"{config_file}: {line}", err=True)
    limits = {name: _effective_value(settings, name, None, getattr(in_file, name)) for name in _FILE_SETTINGS}
    settings = settings.model_copy(update=limits)
    chosen = _shard(settings, shard, config_file, in_file.shard)
    health = read_health_address(settings, health_host, health_port)
    timeout_s = float(_effective_value(settings, "timeout", timeout, in_file.timeout))
    if watch and supervisor is None:
        sys.exit(_watch(settings, timeout_s, health))
    # Before load_workers: code of the application may print.
    log_descriptor = logs.redirect_stdout()
    load_workers(settings, _effective_value(settings, "workers_module", modules or None, in_file.require or None))
    slots = _effective_value(settings, "concurrency", concurrency, in_file.concurrency)
    further = with_own_slots(named or in_file.capsules, slots)
    own = _own_queues(settings, chosen, queues, in_file.queues, config_file, further, only_capsules=only_capsules)
    service = WorkerOptions(
        shard=chosen,
        queues=own.weights,
        slots=slots,
        timeout_s=timeout_s,
        no_namespaces=no_namespaces or own.source == own_queues.FROM_CLASSES,
        tag=_effective_value(settings, "tag", tag, in_file.tag),
        labels=tuple(_effective_value(settings, "labels", labels or None, in_file.labels or None)),
        queues_from=own.source,
        newer_queues=own.added,
        health=health,
        capsules=further,
    )
    sys.exit(run_worker(settings, service, log_descriptor, supervisor))


def _watch(settings: Settings, timeout_s: float, health: HealthAddress | None) -> int:
    """Run this command as a child that restarts at each change; return its exit status."""
    if health is not None:
        raise click.UsageError("--watch serves no health checks: leave --health-port and the setting health.port out.")
    signals = SignalQueue()
    signals.install()
    folder = Path.cwd()
    echo(f"{command('worker')} --watch: the worker restarts when a Python file below {folder} changes", err=True)
    folders = [WatchedFolder(folder, (".py",)), WatchedFolder(settings.config_dir, (".yml", ".yaml"))]
    tell = partial(echo, err=True)
    return Reloader(_own_command(), FileChanges(folders), signals, timeout_s, tell).run()


def _own_command() -> list[str]:
    """Return this command, for a child. Without -P Python would run a folder ``framework`` of the working folder."""
    in_group = click.get_current_context().parent is not None
    return [sys.executable, "-P", "-m", "framework", "worker", *sys.argv[2 if in_group else 1 :]]


def _capsules(
    queues: Sequence[WeightedQueue],
    capsules: Sequence[tuple[str, int, str]],
    *,
    only_capsules: bool,
    no_namespaces: bool,
) -> tuple[CapsuleOptions, ...]:
    """Return the capsules of the options. Raises click.UsageError for contradictory options."""
    conflict = conflicting_weights(queues)
    if conflict is not None:
        raise click.UsageError(f"{conflict}.")
    if no_namespaces and not (queues or capsules):
        raise click.UsageError("--no-namespaces belongs to -q and --capsule.")
    if only_capsules and queues:
        raise click.UsageError("--only-capsules and -q do not go together: with -q the process serves other queues.")
    return tuple(one._replace(no_namespaces=no_namespaces) for one in capsules_of_option(capsules))


def _own_queues(
    settings: Settings,
    shard: str,
    flags: Sequence[WeightedQueue],
    in_file: Sequence[WeightedQueue],
    config_file: Path | None,
    capsules: Sequence[CapsuleOptions],
    *,
    only_capsules: bool,
) -> OwnQueues:
    """Return the queues of the capsule ``default``: none with ``only_capsules``, else the given ones, or those of no other."""
    if only_capsules:
        if not capsules:
            raise click.UsageError("--only-capsules needs --capsule, or capsules in the file of -C.")
        return OwnQueues((), "--only-capsules")
    own = _queues(settings, connect(settings), shard, flags, in_file, config_file)
    return own._replace(weights=without_capsules(own.weights, capsules)) if own.is_implicit else own


def _queues(
    settings: Settings,
    router: Router,
    shard: str,
    flags: Sequence[WeightedQueue],
    in_file: Sequence[WeightedQueue],
    config_file: Path | None,
) -> OwnQueues:
    """Return the queues to serve: from options, else from the generated file, else those of the loaded classes."""
    if flags:
        return OwnQueues(tuple(flags), "-q")
    if _in_environment("queues", settings.unknown_variables) and settings.queues:
        return OwnQueues(tuple(settings.queues), f"{ENV_PREFIX}QUEUES")
    if in_file:
        return OwnQueues(tuple(in_file), f"-C {config_file}")
    if settings.queues:
        return own_queues.of_file(settings, router, shard)
    return own_queues.of_loaded_classes(settings, router, shard)


def _effective_value(settings: Settings, name: str, flag: Any, from_file: Any) -> Any:
    """Return the value of a setting: the option, else the environment, else the file of ``-C``, else the settings."""
    if flag is not None:
        return flag
    return (
        getattr(settings, name) if _in_environment(name, settings.unknown_variables) or from_file is None else from_file
    )


def _in_environment(name: str, unknown: Collection[str]) -> bool:
    variable = f"{ENV_PREFIX}{name.upper()}"
    return any(one == variable or one.startswith(f"{variable}__") for one in os.environ.keys() - unknown)


def _shard(settings: Settings, flag: str | None, config_file: Path | None, in_file: str | None) -> str:
    if flag is None and in_file is not None and in_file not in settings.shards:
        raise ConfigurationError(
            [ConfigurationProblem(str(config_file), "shard", unknown_shard_message(settings, in_file))]
        )
    return check_shard(settings, flag if flag is not None else in_file or MAIN)


def main() -> None:
    run_from_checkout(worker)
