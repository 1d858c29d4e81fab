"""Read ``--assume`` of ``jobs explain``: a limit, a flag, or a routing rule that counts instead of what is in force."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click

from framework.cli.project import Project
from framework.errors import ConfigurationError
from framework.feature_flags.flag import Flag, drop_flag, pause_flag, run_flag
from framework.messages import did_you_mean
from framework.route.router import Router
from framework.settings.model import RoutingRule
from framework.wiring.client import open_router

_FORMS = "write limit=20, flag:NAME=50 or rule='QUERY,QUEUE,SHARD'"


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What an operator would change."""

    limit: int | None = None
    flags: Mapping[str, Flag] = field(default_factory=dict[str, Flag])
    rule: RoutingRule | None = None

    def limits(self, worker: str) -> Mapping[str, int]:
        """Return the assumed limit by the name of the class."""
        return {} if self.limit is None else {worker: self.limit}

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
        click.UsageError: a text is none.
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
    known = (drop_flag(worker), run_flag(worker), pause_flag(worker))
    if name not in known:
        hint = did_you_mean(name, known)
        raise click.UsageError(
            f"--assume {text!r}: no flag {name!r} of {worker}{hint}; there are {', '.join(known)}. Other flags decide in the code of "
            "the application, which this command does not run."
        )
    percentage = _whole(text, value)
    if not 0 <= percentage <= 100:
        raise click.UsageError(f"--assume {text!r}: give a percentage from 0 to 100.")
    return Flag(name, percentage, "assumed")


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
