"""Build the rules of the service levels: how fast each urgency spends its error budget.

An alert fires where both a long and a short window spend the budget at the given rate (Site Reliability Workbook, chapter 5): the
long window is the evidence, the short one lets the alert end soon after the fault.
"""

from collections.abc import Iterator
from typing import NamedTuple

from framework.features.observability.alerts import Severity
from framework.features.observability.rules import Rule, Threshold

_BY = "urgency, destination_shard_redis"


class _Level(NamedTuple):
    """A service level: the counters of its good, or bad, and of all events."""

    alert: str
    record: str
    total: str
    good: str
    """Empty where ``bad`` is counted."""
    bad: str
    summary: str
    description: str


class _Burn(NamedTuple):
    """A pair of windows, and the rate at which they spend the budget of 30 days."""

    rate: str
    long: str
    short: str
    severity: Severity
    wait: str


_LEVELS = (
    _Level(
        "ExecutionApdexBurn",
        "execution_slow",
        "gitlab_sli_sidekiq_execution_apdex_total",
        "gitlab_sli_sidekiq_execution_apdex_success_total",
        "",
        "Jobs of urgency {{ $labels.urgency }} on {{ $labels.destination_shard_redis }} run too long",
        "{{ $value | humanizePercentage }} of the successful runs exceed the execution target of their urgency.",
    ),
    _Level(
        "ExecutionErrorBurn",
        "execution_failed",
        "gitlab_sli_sidekiq_execution_total",
        "",
        "gitlab_sli_sidekiq_execution_error_total",
        "Jobs of urgency {{ $labels.urgency }} on {{ $labels.destination_shard_redis }} fail",
        "{{ $value | humanizePercentage }} of the runs fail; each retry counts.",
    ),
    _Level(
        "QueueingApdexBurn",
        "queueing_slow",
        "gitlab_sli_sidekiq_queueing_apdex_total",
        "gitlab_sli_sidekiq_queueing_apdex_success_total",
        "",
        "Jobs of urgency {{ $labels.urgency }} on {{ $labels.destination_shard_redis }} wait too long",
        "{{ $value | humanizePercentage }} of the jobs wait longer than the queueing target of their urgency.",
    ),
)

_BURNS = (
    _Burn("14.4", "1h", "5m", "page", "2m"),
    _Burn("6", "6h", "30m", "page", "15m"),
    _Burn("1", "3d", "6h", "ticket", "1h"),
)

_WINDOWS = ("5m", "30m", "1h", "6h", "3d")

BURN_THRESHOLDS = {
    **{
        f"{record}_{urgency}": Threshold(value, f"share of the {events} of urgency {urgency} that may be {what}")
        for record, events, what, values in (
            (
                "execution_slow",
                "successful runs",
                "slower than the target",
                {"high": 0.005, "low": 0.01, "throttled": 0.01},
            ),
            ("execution_failed", "runs", "errors", {"high": 0.005, "low": 0.005, "throttled": 0.005}),
            ("queueing_slow", "jobs", "later than the target", {"high": 0.005, "low": 0.01}),
        )
        for urgency, value in values.items()
    },
    "bad_events": Threshold(10, "bad events in the long window, below which a service level does not alert"),
}


def recorded_series() -> dict[str, str]:
    """Return the expressions of the recorded rates by their names: of all events of a level, and of the bad ones."""
    return {
        name: text
        for level in _LEVELS
        for window in _WINDOWS
        for name, text in zip(_records(level, window), _rates(level, window), strict=True)
    }


def burn_rules() -> Iterator[Rule]:
    """Yield the rules of each service level: one for each pair of windows."""
    for level in _LEVELS:
        urgencies = [name.removeprefix(f"{level.record}_") for name in BURN_THRESHOLDS if name.startswith(level.record)]
        for burn in _BURNS:
            above = "\n  or\n".join(_above(level, burn, urgency) for urgency in urgencies)
            bad, _ = _records(level, burn.long)
            yield Rule(
                level.alert,
                f"(\n{above}\n)\nand {bad} * <{burn.long}> > <bad_events>",
                burn.wait,
                level.summary,
                f"{level.description} The error budget of 30 days is spent {burn.rate} times too fast.",
                _series(level, bad=9, good=1),
                _series(level, bad=0, good=10),
                burn.severity,
                {"burn_rate": burn.rate},
            )


def _records(level: _Level, window: str) -> tuple[str, str]:
    return f"application_worker:{level.record}:rate{window}", f"application_worker:{level.record}_judged:rate{window}"


def _rates(level: _Level, window: str) -> tuple[str, str]:
    total = f"sum by ({_BY}) (rate({level.total}[{window}]))"
    if level.bad:
        return f"sum by ({_BY}) (rate({level.bad}[{window}]))", total
    return f"{total} - sum by ({_BY}) (rate({level.good}[{window}]))", total


def _above(level: _Level, burn: _Burn, urgency: str) -> str:
    def share(window: str) -> str:
        bad, total = (f'{name}{{urgency="{urgency}"}}' for name in _records(level, window))
        return f"{bad} / {total} > <{level.record}_{urgency}>*{burn.rate}"

    return f"  ({share(burn.short)} and {share(burn.long)})"


def _series(level: _Level, *, bad: int, good: int) -> dict[str, str]:
    labels = '{urgency="high",destination_shard_redis="main",queue="mail",worker="MailWorker"}'
    counted = {level.total: bad + good, level.good or level.bad: good if level.good else bad}
    return {f"{name}{labels}": f"0+{step}x4000" for name, step in counted.items()}
