"""``application-worker monitoring write``: write dashboards for Grafana, and alerts for Prometheus."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import click

from framework.command_line import command
from framework.features.observability.alert_rules import RECORDED, RULES, THRESHOLDS
from framework.features.observability.dashboards import DASHBOARDS
from framework.features.observability.grafana import TAG, dashboard_json
from framework.features.observability.rules import RuleOptions, RuleWriter
from framework.terminal.generated_files import mark_of, write_generated, yaml_text
from framework.terminal.groups import CommandGroup
from framework.terminal.output import columns, echo_lines, reports_errors
from framework.text import did_you_mean
from framework.typeguards import short_repr

_MARK = mark_of("monitoring write")

_MATCHER = r'\s*[a-zA-Z_]\w*\s*(?:=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"\s*'
_SELECTOR = re.compile(rf"{_MATCHER}(?:,{_MATCHER})*,?\s*", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
_CLASS = re.compile(r"\w+(?:::\w+)*", re.ASCII)

_INHIBIT_RULES = [
    # A shard that is away explains the waits and failures of its jobs.
    {
        "source_matchers": ['alertname = "ShardAway"'],
        "target_matchers": [
            'alertname =~ "NoProgress|QueueNotProcessed|OldestJobTooOld|SchedulerStalled|HeartbeatLate"'
        ],
        "equal": ["shard"],
    },
    {
        "source_matchers": ['alertname = "ShardAway"'],
        "target_matchers": ['alertname =~ "QueueingApdexBurn|ExecutionErrorBurn"'],
        "equal": ["service"],
    },
    {
        "source_matchers": ['alertname = "NoProgress"'],
        "target_matchers": ['alertname =~ "QueueNotProcessed|OldestJobTooOld"'],
        "equal": ["shard"],
    },
    {
        "source_matchers": ['alertname = "RedisMemoryFull"'],
        "target_matchers": ['alertname = "RedisMemoryHigh"'],
        "equal": ["shard"],
    },
    # A service level pages once: the slower burn rates say the same.
    {
        "source_matchers": [f'service = "{TAG}"', 'severity = "page"'],
        "target_matchers": [f'service = "{TAG}"', 'severity = "ticket"'],
        "equal": ["alertname", "urgency", "destination_shard_redis"],
    },
]


@click.group("monitoring", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def monitoring() -> None:
    """Write dashboards and alerts for an installation."""


@monitoring.command("write")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a threshold of the alerts; repeatable. See `monitoring thresholds`.",
)
@click.option(
    "--selector",
    default="",
    metavar="MATCHERS",
    help='Add matchers to every series of the framework, such as environment="production".',
)
@click.option("--owner", default="platform", show_default=True, help="The label owner of the alerts.")
@click.option(
    "--exclude",
    "excluded",
    multiple=True,
    metavar="CLASS=DATE",
    help="Leave a slow or failing class out of the service levels until a date, such as 2026-12-31; repeatable.",
)
@click.option("--datasource", default="", metavar="UID", help="The data source of the dashboards, at first.")
@click.option(
    "--window-scale",
    type=click.FloatRange(0, 10, min_open=True),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Multiply all windows and waits of the alerts. For rehearsals: 0.005 makes 1 h of 18 s.",
)
@reports_errors
def write(
    folder: Path,
    *,
    thresholds: Sequence[str],
    selector: str,
    owner: str,
    excluded: Sequence[str],
    datasource: str,
    window_scale: float,
) -> None:
    """Write dashboards for Grafana, and rules for Prometheus, into the folder DIR.

    The file alerts.yml has the rules, alerts_test.yml their tests for promtool, alertmanager.yml an example of inhibition. The
    folder dashboards has one file per dashboard. A further run overwrites these files, and no file of another origin.

    Status 1: a file of the same name was not written by this command.
    """
    if selector and not _SELECTOR.fullmatch(selector):
        # The rules would be refused by Prometheus only.
        example = 'environment="production",region=~"eu-.*"'
        raise click.UsageError(
            f"--selector has matchers of Prometheus with their quotes, such as {example}, not {short_repr(selector)}."
        )
    options = RuleOptions(
        _thresholds(thresholds), window_scale, selector.strip().removesuffix(","), owner, _excluded(excluded)
    )
    texts = {folder / name: text for name, text in _texts(options, datasource).items()}
    write_generated(texts, _is_own)


@monitoring.command("thresholds")
def thresholds_() -> None:
    """List the thresholds of the alerts, with their values."""
    rows = [
        ("THRESHOLD", "VALUE", "MEANING"),
        *((name, f"{one.value:g}", one.meaning) for name, one in THRESHOLDS.items()),
    ]
    echo_lines(columns(rows))


def _texts(options: RuleOptions, datasource: str) -> dict[str, str]:
    writer = RuleWriter(RULES, RECORDED, THRESHOLDS, options)
    return {
        "alerts.yml": _yaml(writer.rule_file()),
        "alerts_test.yml": _yaml(writer.test_file("alerts.yml")),
        "alertmanager.yml": _yaml({"inhibit_rules": _INHIBIT_RULES}),
        **{
            f"dashboards/{one.name}.json": _json(dashboard_json(one, datasource=datasource, selector=options.selector))
            for one in DASHBOARDS
        },
    }


def _thresholds(words: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in THRESHOLDS:
            raise click.UsageError(
                f"there is no threshold {name!r}{did_you_mean(name, THRESHOLDS)}: `{command('monitoring thresholds')}` lists all."
            )
        if not _NUMBER.fullmatch(value):
            raise click.UsageError(f"the threshold {name} needs a number, not {value!r}.")
        found[name] = float(value)
    return found


def _excluded(words: Sequence[str]) -> list[str]:
    """Return the classes of exclusions, none of which has ended: an exclusion without an end is forgotten."""
    found: list[str] = []
    for word in words:
        name, _, end = word.partition("=")
        if not _CLASS.fullmatch(name):
            raise click.UsageError(f"{short_repr(name)} is no name of a class.")
        try:
            ends_on = date.fromisoformat(end)
        except ValueError:
            raise click.UsageError(
                f"the exclusion of {name} needs its last day: --exclude {name}=2026-12-31."
            ) from None
        if ends_on < datetime.now(UTC).date():
            raise click.UsageError(f"the exclusion of {name} has ended on {end}: remove it, or give it a new last day.")
        found.append(name)
    return found


def _is_own(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".json":
        return text.startswith(_MARK)
    try:
        return TAG in json.loads(text).get("tags", ())
    except (ValueError, AttributeError):
        return False


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"


def _yaml(value: Mapping[str, Any]) -> str:
    return _MARK + yaml_text(value)
