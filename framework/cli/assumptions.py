"""Read ``--assume`` of ``jobs explain``: a limit, a flag, or a routing rule that counts instead of what is in force."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from redis.exceptions import RedisError

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError
from framework.features.flags.flag import (
    Flag,
    FlagSource,
    LayeredFlags,
    check_flag_name,
    drop_flag,
    is_class_flag,
    pause_flag,
    run_flag,
)
from framework.features.flags.process_flags import serve_flags
from framework.features.flags.redis_flags import RedisFlags, ShardFlags
from framework.route.router import Router, open_router
from framework.settings.model import RoutingRule
from framework.shard.shard import Shard
from framework.terminal.project import Project
from framework.text import did_you_mean, join_names

_FORMS = "write limit=20, flag:NAME=50 or rule='QUERY,QUEUE,SHARD'"
_EVALUATIONS = 200
"""Evaluations of a limit while a flag is on for a share of them: one of 3 % is then missed once in 400 times."""


@dataclass(frozen=True, slots=True)
class AssumedLimits:
    """The limits of a class under the assumptions; several if a flag is on for a share of the evaluations."""

    worker: str
    found: Sequence[int]

    @property
    def counted(self) -> Mapping[str, int]:
        """The lowest limit, which is the one that counts, by the name of the class."""
        return {self.worker: self.found[0]} if self.found else {}

    @property
    def text(self) -> str:
        """The limits as text, empty if there is no choice."""
        return (
            "" if len(self.found) < 2 else f"{' or '.join(map(str, self.found))} by evaluation; {self.found[0]} counts"
        )


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The changes that an operator assumes."""

    limit: int | None = None
    flags: Mapping[str, Flag] = field(default_factory=dict[str, Flag])
    rule: RoutingRule | None = None

    @property
    def application_flags(self) -> Mapping[str, Flag]:
        """The flags that the code of the application asks."""
        return {name: flag for name, flag in self.flags.items() if not is_class_flag(name)}

    def limits(self, worker: str, declaration: Declaration | None, shard: Shard) -> AssumedLimits:
        """Return the limits that the class would have on a shard: none if nothing is assumed about them.

        Raises:
            click.UsageError: a flag of the application is assumed, and the limit of the class asks none.
        """
        if self.limit is not None or not self.application_flags:
            return AssumedLimits(worker, [] if self.limit is None else [self.limit])
        names = join_names(sorted(self.application_flags))
        if declaration is None:
            raise click.UsageError(
                f"--assume flag:{names}: the class {worker} is not loaded here; name its module with -r."
            )
        if not callable(declaration.facts.get("concurrency_limit")):
            raise click.UsageError(
                f"--assume flag:{names}: the concurrency_limit of {worker} is no function, so a flag of the application changes "
                f"nothing that this command can see. Flags of the class are {', '.join(_class_flags(worker))}."
            )
        try:
            return AssumedLimits(worker, _limits_under_flags(declaration, self.application_flags, shard))
        except (RedisError, OSError):
            raise
        except Exception as error:  # the application's own function may raise anything
            raise click.UsageError(
                f"--assume flag:{names}: the concurrency_limit of {worker} raises {error!r}."
            ) from error

    def router(self, project: Project) -> Router:
        """Return the router with the assumed rule before all others.

        Raises:
            click.UsageError: the rule is invalid.
        """
        if self.rule is None:
            return project.router
        rules = (self.rule, *project.settings.routing_rules)
        try:
            return open_router(project.settings.model_copy(update={"routing_rules": rules}))
        except ConfigurationError as error:
            # The rules of the project are valid: they were loaded.
            faults = "; ".join(problem.message for problem in error.problems)
            raise click.UsageError(f"--assume rule: {faults}") from error


def read_assumptions(texts: Sequence[str], worker: str) -> Assumptions:
    """Return the assumptions for a class.

    Raises:
        click.UsageError: a text is no assumption.
    """
    limit: int | None = None
    flags: dict[str, Flag] = {}
    rule: RoutingRule | None = None
    for text in texts:
        name, _, value = text.partition("=")
        if name == "limit":
            limit = _whole(text, value)
        elif name.startswith("flag:"):
            flag = _read_flag(text, name.removeprefix("flag:"), value, worker)
            flags[flag.name] = flag
        elif name == "rule" and value:
            rule = _read_rule(text, value)
        else:
            raise click.UsageError(f"--assume {text!r} is no assumption: {_FORMS}.")
    return Assumptions(limit, flags, rule)


def _read_flag(text: str, name: str, value: str, worker: str) -> Flag:
    known = _class_flags(worker)
    if is_class_flag(name) and name not in known:
        raise click.UsageError(
            f"--assume {text!r}: no flag {name!r} of {worker}{did_you_mean(name, known)}; there are {', '.join(known)}."
        )
    if not is_class_flag(name):
        try:
            check_flag_name(name)
        except ValueError as error:
            raise click.UsageError(f"--assume {text!r}: {error}.") from error
    percentage = _whole(text, value)
    if not 0 <= percentage <= 100:
        raise click.UsageError(f"--assume {text!r}: give a percentage from 0 to 100.")
    return Flag(name, percentage, "assumed")


def _class_flags(worker: str) -> tuple[str, ...]:
    return drop_flag(worker), run_flag(worker), pause_flag(worker)


def _read_rule(text: str, value: str) -> RoutingRule:
    # A query may have commas itself.
    parts = value.rsplit(",", 2)
    if len(parts) < 3:
        raise click.UsageError(
            f"--assume {text!r}: write rule='QUERY,QUEUE,SHARD'; an empty QUEUE is the generated name, an empty SHARD is main."
        )
    query, queue, shard = (part.strip() for part in parts)
    return RoutingRule(query, queue or None, shard or None)


def _whole(text: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise click.UsageError(f"--assume {text!r}: {value!r} is no whole number; {_FORMS}.") from None


class _AssumedFlags(FlagSource):
    """Flags that count instead of those in force."""

    def __init__(self, flags: Mapping[str, Flag]) -> None:
        self._flags = flags

    def find(self, name: str) -> Flag | None:
        return self._flags.get(name)

    def names(self) -> frozenset[str]:
        return frozenset(self._flags)

    def read(self) -> bool:
        return False


def _limits_under_flags(declaration: Declaration, flags: Mapping[str, Flag], shard: Shard) -> list[int]:
    """Return the limits that the function of a class returns on a shard if these flags of the application count, lowest first.

    Runs the function of the application in this process. Raises what it raises, and redis errors.
    """
    evaluate: Any = declaration.facts.get("concurrency_limit")
    stored = RedisFlags(shard.client, shard.name)
    stored.read()
    serve_flags(shard.name, ShardFlags(LayeredFlags(_AssumedFlags(flags), stored), stored))
    sampled = any(0 < flag.percentage < 100 for flag in flags.values())
    return sorted({int(evaluate() or 0) for _ in range(_EVALUATIONS if sampled else 1)})
