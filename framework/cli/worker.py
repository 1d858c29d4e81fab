"""``scripts/worker``: one process that serves queues of one shard."""

import os
import sys
from pathlib import Path
from typing import Any, get_args

import click

from framework.cli.failure import explained
from framework.cli.options import (
    ModuleOption,
    QueueOption,
    SecondsOption,
    WeightedQueue,
    WordOption,
    check_shard,
    conflicting_weights,
    unknown_shard,
)
from framework.cli.sidekiq_file import FileOptions, read_file
from framework.declare import registry
from framework.errors import ConfigurationError, Problem
from framework.process.parent import bind_to_supervisor
from framework.route.router import MAIN
from framework.settings.load import load
from framework.settings.model import ENV_PREFIX, MAX_CONCURRENCY, EnvName, Settings
from framework.telemetry import logs
from framework.wiring.connect import connect
from framework.wiring.server import Service, serve


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-q", "--queue", "queues", type=QueueOption(), multiple=True, help="A queue or namespace to serve, repeatable."
)
@click.option("--exact", is_flag=True, help="A NAME is one queue only, and does not stand for its namespace as well.")
@click.option("-c", "--concurrency", type=click.IntRange(1, MAX_CONCURRENCY), help="Jobs at a time (default 10).")
@click.option("--shard", help="The shard to serve (default main).")
@click.option("-t", "--timeout", type=SecondsOption(), help="Seconds that running jobs get at the end (default 25).")
@click.option(
    "-C", "--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML file."
)
@click.option("-e", "--environment", type=WordOption(get_args(EnvName)), help="Sets FRAMEWORK_ENV.")
@click.option(
    "-r",
    "--require",
    "modules",
    type=ModuleOption(),
    multiple=True,
    help="Module or package of workers instead of `workers`, repeatable.",
)
@explained
def worker(
    queues: tuple[WeightedQueue, ...],
    concurrency: int | None,
    shard: str | None,
    timeout: float | None,
    config_file: Path | None,
    environment: str | None,
    modules: tuple[str, ...],
    *,
    exact: bool,
) -> None:
    """Run one worker process until TERM or INT; status 0 then.

    TSTP: take no more jobs. USR2: take no more, let those in hand finish, then end. TTIN: log all stacks.
    """
    supervisor = bind_to_supervisor()
    conflict = conflicting_weights(queues)
    if conflict is not None:
        raise click.UsageError(f"{conflict}.")
    if exact and not queues:
        raise click.UsageError("--exact belongs to -q.")
    if environment:
        os.environ["FRAMEWORK_ENV"] = environment
    settings = load()
    in_file = read_file(config_file, settings.env_name) if config_file else FileOptions()
    for line in in_file.without_effect:
        click.echo(f"{config_file}: {line}", err=True)
    limits = {name: _chosen(settings, name, None, getattr(in_file, name)) for name in ("limits", "process_limits")}
    settings = settings.model_copy(update=limits)
    chosen = _shard(settings, shard, config_file, in_file.shard)
    log_descriptor = logs.claim_stdout()  # before the first foreign line of code may print
    registry.load(_chosen(settings, "workers_module", modules or None, in_file.require or None))
    connect(settings)
    service = Service(
        shard=chosen,
        queues=tuple(_chosen(settings, "queues", queues or None, in_file.queues or None)) or (("default", 0),),
        slots=_chosen(settings, "concurrency", concurrency, in_file.concurrency),
        timeout_s=float(_chosen(settings, "timeout", timeout, in_file.timeout)),
        exact=exact,
    )
    sys.exit(serve(settings, service, log_descriptor, supervisor))


def _chosen(settings: Settings, name: str, flag: Any, from_file: Any) -> Any:
    """What counts of a setting: a flag beats the environment, which beats the file of ``-C``, which beats the settings."""
    if flag is not None:
        return flag
    in_environment = any(
        variable == f"{ENV_PREFIX}{name.upper()}" or variable.startswith(f"{ENV_PREFIX}{name.upper()}__")
        for variable in os.environ
    )
    return getattr(settings, name) if in_environment or from_file is None else from_file


def _shard(settings: Settings, flag: str | None, config_file: Path | None, in_file: str | None) -> str:
    if flag is None and in_file is not None and in_file not in settings.shards:
        raise ConfigurationError([Problem(str(config_file), "shard", unknown_shard(settings, in_file))])
    return check_shard(settings, flag if flag is not None else in_file or MAIN)


def main() -> None:
    """Entry point of ``scripts/worker``."""
    worker(prog_name="worker")
