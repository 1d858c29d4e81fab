"""``scripts/worker``: one process that serves queues of one shard."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click
import yaml

from framework.cli.failure import explained
from framework.declare import registry
from framework.errors import ConfigurationError, Problem
from framework.settings.load import load
from framework.settings.model import Settings
from framework.telemetry import logs
from framework.wiring.connect import connect
from framework.wiring.server import Service, serve

MAX_CONCURRENCY = 10_000


@dataclass(frozen=True)
class FileOptions:
    """What ``-C FILE`` says (Sidekiq's keys); a section named after the environment lies over the top level."""

    concurrency: int | None = None
    timeout: float | None = None
    shard: str | None = None
    queues: tuple[tuple[str, int], ...] = ()
    require: tuple[str, ...] = field(default=())


class QueueOption(click.ParamType[tuple[str, int]]):
    """NAME or NAME,WEIGHT."""

    name = "NAME[,WEIGHT]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Return (name, weight); weight 0 = none given."""
        if isinstance(value, tuple):
            return cast("tuple[str, int]", value)
        name, comma, weight = str(value).partition(",")
        if not name.strip():
            self.fail(f"{value!r} names no queue; write -q NAME or -q NAME,WEIGHT", param, ctx)
        if not comma:
            return name.strip(), 0
        if not weight.strip().isdigit() or int(weight) < 1:
            self.fail(f"{weight!r} in {value!r} is no weight; write a whole number from 1 on", param, ctx)
        return name.strip(), int(weight)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-q", "--queue", "queues", type=QueueOption(), multiple=True, help="A queue or namespace to serve, repeatable."
)
@click.option("-c", "--concurrency", type=click.IntRange(1, MAX_CONCURRENCY), help="Jobs at a time (default 10).")
@click.option("--shard", help="The shard to serve (default main).")
@click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), help="Seconds that running jobs get at the end (default 25)."
)
@click.option(
    "-C", "--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML file."
)
@click.option(
    "-e", "--environment", type=click.Choice(["development", "test", "production"]), help="Sets FRAMEWORK_ENV."
)
@click.option(
    "-r", "--require", "modules", multiple=True, help="Module or package of workers instead of `workers`, repeatable."
)
@explained
def worker(
    queues: tuple[tuple[str, int], ...],
    concurrency: int | None,
    shard: str | None,
    timeout: float | None,
    config_file: Path | None,
    environment: str | None,
    modules: tuple[str, ...],
) -> None:
    """Run one worker process until TERM or INT; status 0 then. TSTP: take no more jobs. TTIN: log all stacks."""
    if environment:
        os.environ["FRAMEWORK_ENV"] = environment
    settings = load()
    chosen = read_file(config_file, settings.env_name) if config_file else FileOptions()
    log_descriptor = logs.claim_stdout()  # before the first foreign line of code may print
    registry.load(modules or chosen.require or settings.workers_module)
    connect(settings)
    service = Service(
        shard=_shard(settings, shard or chosen.shard or "main"),
        queues=queues or chosen.queues or tuple(settings.queues) or (("default", 0),),
        slots=concurrency or _environment(settings, "concurrency") or chosen.concurrency or settings.concurrency,
        timeout_s=next(
            float(value)
            for value in (timeout, _environment(settings, "timeout"), chosen.timeout, settings.timeout)
            if value is not None
        ),
    )
    sys.exit(serve(settings, service, log_descriptor))


def read_file(path: Path, environment: str) -> FileOptions:
    """Return the options in a ``-C`` file. Raises ConfigurationError for anything that is not of Sidekiq's form."""
    try:
        raw: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError([Problem(str(path), "", f"it is no YAML: {error}")]) from error
    if not isinstance(raw, Mapping):
        raise ConfigurationError([Problem(str(path), "", "it must be a mapping with Sidekiq's keys")])
    # Ruby's files write keys as symbols (`:concurrency:`); both forms are read.
    keyed = {str(key).lstrip(":"): value for key, value in cast("Mapping[Any, Any]", raw).items()}
    section = keyed.get(environment)
    merged = {**keyed, **cast("Mapping[str, Any]", section)} if isinstance(section, Mapping) else keyed
    problems: list[Problem] = []
    queues = tuple(_queue(path, entry, problems) for entry in _listed(merged.get("queues")))
    concurrency = _number(path, "concurrency", merged, problems)
    timeout = _number(path, "timeout", merged, problems)
    if problems:
        raise ConfigurationError(problems)
    return FileOptions(
        concurrency=None if concurrency is None else int(concurrency),
        timeout=timeout,
        shard=str(merged["shard"]) if merged.get("shard") else None,
        queues=queues,
        require=tuple(str(name) for name in _listed(merged.get("require"))),
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _queue(path: Path, entry: Any, problems: list[Problem]) -> tuple[str, int]:
    match entry:
        case str():
            return entry, 0
        case [str() as name, int() as weight] if weight > 0:
            return name, weight
        case _:
            problems.append(Problem(str(path), "queues", f"{entry!r} is no queue; write NAME or [NAME, WEIGHT]"))
            return "", 0


def _number(path: Path, key: str, merged: Mapping[str, Any], problems: list[Problem]) -> float | None:
    value = merged.get(key)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value < 0
        or (key == "concurrency" and value < 1)
    ):
        problems.append(
            Problem(str(path), key, f"{value!r} is not a number from {1 if key == 'concurrency' else 0} on")
        )
        return None
    return value


def _environment(settings: Settings, name: str) -> int | None:
    """Return a setting that the environment gave: it lies between the flags and the file."""
    return getattr(settings, name) if f"FRAMEWORK_{name.upper()}" in os.environ else None


def _shard(settings: Settings, name: str) -> str:
    if name not in settings.shards:
        known = ", ".join(sorted(settings.shards))
        raise click.UsageError(f"no shard is named {name!r}; config/redis.yml has: {known}")
    return name


def main() -> None:
    """Entry point of ``scripts/worker``."""
    worker(prog_name="worker")
