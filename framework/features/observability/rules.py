"""Build Prometheus rules, and their unit tests for promtool, from the table of ``alert_rules``.

An expression of the table is PromQL with two additions: ``<name>`` stands for a threshold, ``<name>*3`` for its multiple, and
``<5m>`` for the seconds of a window. Every window is multiplied by the scale of a rehearsal.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from framework.features.observability.alerts import ALERTS, Severity, runbook

SERVICE = "application-worker"
"""The label ``service`` of every alert."""

MIN_WINDOW_S = 5.0
"""No window is shorter: a rate needs two scrapes."""

_EVALUATE_EVERY = 5
"""The intervals of the test series between two evaluations: fewer make the tests fast."""

_METRIC = re.compile(
    r"(?<![\w:$\"/-])((?:sidekiq_|gitlab_|limited_capacity_worker_|application_worker_|application_worker:)[\w:]+)(?![\w:(])"
    r"(\{[^}]*\})?"
)
_EQUALITY = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_DURATION = re.compile(r"(\d+)(ms|[smhdw])")
_WINDOW = re.compile(r"(\[|offset )(\d+[smhd])(\]?)")
_PLACEHOLDER = re.compile(r"<(\w+)>(?:\*([\d.]+))?")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that an installation may set: ``--threshold NAME=VALUE``."""

    value: float
    meaning: str
    """With its unit."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One alerting rule, with the series that make it fire and those that do not."""

    alert: str
    """A name of ``ALERTS``."""
    expression: str
    wait: str
    """For how long the expression must be true: ``for``. Empty: at once."""
    summary: str
    """One line, with the labels of the series."""
    description: str
    """The figures, and what they mean."""
    firing: Mapping[str, str]
    """Values by series, as promtool reads them, one per minute: the alert fires."""
    quiet: Mapping[str, str]
    """The same for a healthy fleet: the alert does not fire."""
    severity: Severity | None = None
    """That of the alert, unless it is given."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    tested_after: str = "20m"
    """When the unit test looks, if that is longer than it must wait."""


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """What an installation chooses."""

    thresholds: Mapping[str, float]
    scale: float = 1.0
    """The factor of all windows and waits: below 1 for a rehearsal."""
    selector: str = ""
    """Matchers that are added to every series, such as ``environment="production"``."""
    owner: str = "platform"
    excluded: Sequence[str] = ()
    """The classes whose runs count for no service level."""


def metric_names(expression: str) -> set[str]:
    """Return the metrics of the framework that an expression or a series reads, without recorded series."""
    return {match[1] for match in _METRIC.finditer(expression) if ":" not in match[1]}


def with_selector(expression: str, selector: str) -> str:
    """Add matchers to each of the framework's metrics in an expression; to recorded series those of equality, their labels."""
    if not selector:
        return expression
    equal = ", ".join(f'{name}="{value}"' for name, value in _EQUALITY.findall(selector))

    def add(match: "re.Match[str]") -> str:
        own = (match[2] or "{}")[1:-1]
        return f"{match[1]}{{{', '.join(filter(None, (own, equal if ':' in match[1] else selector)))}}}"

    return _METRIC.sub(add, expression)


def seconds(duration: str) -> float:
    """Return the seconds of a duration of Prometheus, such as ``1h30m``."""
    return sum(int(number) * _UNITS[unit] for number, unit in _DURATION.findall(duration))


def duration(value: float) -> str:
    """Return seconds as a duration of Prometheus."""
    milliseconds = max(1, round(value * 1000))
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


class RuleWriter:
    """Write the rules of the tables for one installation."""

    def __init__(
        self,
        rules: Sequence[Rule],
        recorded: Mapping[str, str],
        thresholds: Mapping[str, Threshold],
        options: RuleOptions,
    ) -> None:
        self._rules = rules
        self._recorded = recorded
        self._options = options
        self._values = {name: options.thresholds.get(name, one.value) for name, one in thresholds.items()}
        self._severities: dict[str, Severity] = {one.name: one.severity for one in ALERTS}

    def rule_file(self) -> dict[str, Any]:
        """Return the content of ``alerts.yml``."""
        labels = dict(_EQUALITY.findall(self._options.selector))
        recorded = [
            {"record": name, "expr": self._expression(self._without(text)), **({"labels": labels} if labels else {})}
            for name, text in self._recorded.items()
        ]
        interval = {"interval": duration(self._interval_s())}
        return {
            "groups": [
                {"name": "application-worker-recorded", **interval, "rules": recorded},
                {"name": "application-worker", **interval, "rules": [self._rule(one) for one in self._rules]},
            ]
        }

    def test_file(self, rule_file: str) -> dict[str, Any]:
        """Return the content of ``alerts_test.yml``: for each rule, one test in which it fires and one in which it does not."""
        return {
            "rule_files": [rule_file],
            "evaluation_interval": duration(_EVALUATE_EVERY * self._interval_s()),
            "tests": [test for one in self._rules for test in self._tests(one)],
        }

    def _interval_s(self) -> float:
        return max(1.0, 60 * min(1.0, self._options.scale))

    def _rule(self, one: Rule) -> dict[str, Any]:
        return {
            "alert": one.alert,
            "expr": self._expression(one.expression),
            **({"for": self._scaled(one.wait)} if one.wait else {}),
            "labels": {
                "severity": self._severity(one),
                "owner": self._options.owner,
                "service": SERVICE,
                **one.labels,
            },
            "annotations": {
                "summary": self._filled(one.summary),
                "description": self._filled(one.description),
                "runbook": runbook(one.alert),
            },
        }

    def _severity(self, one: Rule) -> Severity:
        return one.severity or self._severities[one.alert]

    def _tests(self, one: Rule) -> Iterator[dict[str, Any]]:
        labels = "".join(
            f',{name}="{value}"' for name, value in {"severity": self._severity(one), **one.labels}.items()
        )
        query = f'count(ALERTS{{alertname="{one.alert}",alertstate="firing"{labels}}})'
        # At an evaluation, and two later than the alert must wait: it is pending first.
        period_s = _EVALUATE_EVERY * self._interval_s()
        wait_s = max(seconds(one.tested_after), seconds(one.wait)) * self._options.scale
        after_s = period_s * (2 + math.ceil(wait_s / period_s))
        # What the matchers of the selector accept.
        matched = ", ".join(f'{name}="{value}"' for name, value in _EQUALITY.findall(self._options.selector))
        for name, series, samples in (
            ("fires", one.firing, [{"labels": "{}", "value": 1}]),
            ("does not fire", one.quiet, []),
        ):
            yield {
                "name": f"{one.alert} {name}",
                "interval": duration(self._interval_s()),
                "input_series": [
                    {"series": with_selector(key, matched), "values": self._filled(values)}
                    for key, values in series.items()
                ],
                "promql_expr_test": [{"expr": query, "eval_time": duration(after_s), "exp_samples": samples}],
            }

    def _expression(self, text: str) -> str:
        scaled = _WINDOW.sub(lambda match: f"{match[1]}{self._scaled(match[2])}{match[3]}", text)
        return with_selector(self._filled(scaled), self._options.selector)

    def _without(self, text: str) -> str:
        excluded = "|".join(self._options.excluded)
        return with_selector(text, f'worker!~"{excluded}"') if excluded else text

    def _scaled(self, text: str) -> str:
        scaled = seconds(text) * self._options.scale
        return duration(scaled if self._options.scale >= 1 else max(MIN_WINDOW_S, scaled))

    def _filled(self, text: str) -> str:
        def value(match: "re.Match[str]") -> str:
            name, factor = match[1], float(match[2] or 1)
            number = seconds(self._scaled(name)) if name[0].isdigit() else self._values[name]
            return f"{number * factor:.10g}"

        return _PLACEHOLDER.sub(value, text)
