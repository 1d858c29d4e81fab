"""Options of several commands; the message for a wrong value names the allowed values and the nearest spelling."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import click

from framework.all_settings import Settings
from framework.command_line import use_modules
from framework.settings import validators
from framework.settings.model import MAX_PORT, MAX_TIMEOUT_S
from framework.store.steps import SHARE, UNPACED
from framework.terminal.output import is_terminal
from framework.text import did_you_mean, join_names, parse_duration
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT

WeightedQueue = tuple[str, int]
"""A queue or namespace, and its weight; 0 = none given."""


def read_queue(text: str) -> WeightedQueue:
    """Parse NAME or NAME,WEIGHT. Raises ValueError."""
    name, comma, weight = text.partition(",")
    if not QUEUE_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not a queue name: {QUEUE_NAME_FORMAT}; write NAME or NAME,WEIGHT")
    if comma and (re.fullmatch(r"\d+", weight, re.ASCII) is None or int(weight) < 1):
        raise ValueError(f"{weight!r} in {text!r} is not a weight: give a whole number from 1 up")
    return name, int(weight) if comma else 0


def conflicting_weights(queues: Iterable[WeightedQueue]) -> str | None:
    """Return the message for a queue that is given twice with different weights; else None.

    A queue that is given twice with the same weight has twice the weight, as in older Sidekiq.
    """
    seen: dict[str, int] = {}
    for name, weight in queues:
        if seen.setdefault(name, weight) != weight:
            first, second = (str(one) if one else "no weight" for one in (seen[name], weight))
            return f"the queue {name!r} is given twice, with {first} and with {second}: give it once"
    return None


class QueueOption(click.ParamType[WeightedQueue]):
    name = "NAME[,WEIGHT]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WeightedQueue:
        if isinstance(value, tuple):
            return cast("WeightedQueue", value)
        try:
            return read_queue(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SecondsOption(click.ParamType[float]):
    """A number of seconds up to the longest timeout."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, which is finite and at most a week."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= MAX_TIMEOUT_S:
            self.fail(f"{value!r} is not a number of seconds from 0 to {MAX_TIMEOUT_S:,g}", param, ctx)
        return seconds


class DurationOption(click.ParamType[float]):
    """A duration: ``90s``, ``15m``, ``2h``, ``1d``, ``1h30m``."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds: more than 0, at most a year."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class RateOption(click.ParamType[float]):
    """A number of jobs per second, or ``max``."""

    name = "N|max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the rate, ``UNPACED`` for ``max``."""
        if value in ("max", UNPACED):
            return UNPACED
        try:
            rate = float(value)
        except ValueError:
            rate = math.nan
        if not 0.001 <= rate < math.inf:
            self.fail(f"{value!r} is no rate: give a number of jobs per second, or max", param, ctx)
        return rate


class EnvironmentOption(click.ParamType[str]):
    name = "ENV"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return validators.environment_name(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class ModuleOption(click.ParamType[str]):
    name = "MODULE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return validators.module_name(str(value))
        except ValueError as error:
            # Ruby's -r takes the path of a file.
            dotted = str(value).removeprefix("./").removesuffix(".py").rstrip("/").replace("/", ".")
            hint = f" (did you mean {dotted!r}?)" if _is_module(dotted) else ""
            self.fail(f"{value!r} {error}{hint}", param, ctx)


class TagOption(click.ParamType[str]):
    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return validators.process_label(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


REASON_HELP = "Give the reason. It is stored, and shown with each effect."
DURATION_HELP = "End after this time: 90s, 15m, 2h, 1d or 1h30m."


def _note_modules(_context: click.Context, _option: click.Parameter, modules: tuple[str, ...]) -> tuple[str, ...]:
    use_modules(modules)
    return modules


modules_option = click.option(
    "-r",
    "--require",
    "modules",
    type=ModuleOption(),
    multiple=True,
    callback=_note_modules,
    help="Load the workers of this module or package instead of those of the setting workers_module. Repeatable.",
)
shard_option = click.option(
    "--shard", "names", metavar="NAME", multiple=True, help="Use only this shard. Repeatable. Default: every shard."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the changes, and make none.")
rate_option = click.option(
    "--rate",
    type=RateOption(),
    help=f"Move this number of jobs per second; max: without a wait. Default: {SHARE:.0%} of Redis's time.",
)
time_limit_option = click.option(
    "--time-limit", "budget_s", type=DurationOption(), default=30.0, help="Stop after this time. Default: 30s."
)
timeout_option = click.option(
    "-t",
    "--timeout",
    type=SecondsOption(),
    help="Seconds for running jobs when the process stops. Default: the setting timeout, 25.",
)


def reason_and_duration_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--reason`` and ``--for``, which every flag and every limit that an operator sets must have."""
    command = click.option(
        "--for",
        "lasts_s",
        type=DurationOption(),
        required=True,
        help=DURATION_HELP,
    )(command)
    return click.option("--reason", required=True, help=REASON_HELP)(command)


def check_reason(reason: str) -> str:
    """Return the reason without spaces around it; an empty one is wrong usage."""
    if not reason.strip():
        raise click.UsageError("--reason is empty: give the reason, for the next operator.")
    return reason.strip()


def check_jids(jids: Iterable[str]) -> None:
    """End the command with status 2 if an id is empty: a variable of a script may be."""
    if not all(jid.strip() for jid in jids):
        raise click.UsageError("JID is empty: give the id that perform_async returned, or the field jid of a log line.")


def tag_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--tag`` and ``--label``, which name a process on dashboards."""
    label = click.option(
        "--label",
        "labels",
        type=TagOption(),
        multiple=True,
        help="Show this text with the tag on dashboards. Repeatable.",
    )
    tag = click.option(
        "-g",
        "--tag",
        type=TagOption(),
        help="Name the process on dashboards. Default: the setting tag, else the folder's name.",
    )
    return tag(label(command))


class AddressOption(click.ParamType[tuple[str, int]]):
    """Where to listen: ``HOST:PORT``, an IPv6 address in brackets."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Return the host, without brackets, and the port."""
        if isinstance(value, tuple):
            return cast("tuple[str, int]", value)
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([\w.-]+)):(\d{1,5})", str(value), re.ASCII)
        if found is None or int(found[3]) > MAX_PORT:
            self.fail(f"{value!r} is no address: write HOST:PORT, for example 0.0.0.0:9168 or [::]:9168", param, ctx)
        return found[1] or found[2], int(found[3])


class ChoiceOption(click.Choice[str]):
    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return click's message with the nearest word."""
        return f"{super().get_invalid_choice_message(value, ctx).rstrip('.')}{did_you_mean(value, self.choices)}."


def check_shard(settings: Settings, name: str) -> str:
    """Return the name of a shard; an unknown name is wrong usage."""
    if name not in settings.shards:
        raise click.UsageError(unknown_shard_message(settings, name))
    return name


def unknown_shard_message(settings: Settings, name: str) -> str:
    """Return the message for a shard that does not exist."""
    known: Sequence[str] = sorted(settings.shards)
    file = settings.config_file_label("redis.yml")
    return f"no shard is named {name!r}{did_you_mean(name, known)}; {file} has: {join_names(known)}"


def _is_module(name: str) -> bool:
    try:
        return bool(validators.module_name(name))
    except ValueError:
        return False


yes_option = click.option("--yes", is_flag=True, help="Make the change without a question.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask the question, unless ``--yes`` was given; end the command with status 1 for another answer than yes.

    Raises:
        click.UsageError: the input is no terminal, so nothing can be asked.
    """
    if yes:
        return
    if not is_terminal():
        raise click.UsageError(
            f"{question} Nothing was changed: the input is no terminal. Give --yes to make the change."
        )
    click.confirm(question, abort=True, err=True)
