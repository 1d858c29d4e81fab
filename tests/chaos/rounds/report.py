"""Write the tables at the end, as Markdown, and ``report.json``."""

import argparse
import json
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.rounds.account import DOUBT, Kind, percentile
from tests.chaos.rounds.round_result import RoundResult

_ROUNDS = (
    "Round", "Injections", "Jobs", "Cut off", "Lost", "Forgotten", "Extra runs (most by one injection)",
    "Recovered p50, p99, max", "Standstill max", "Instants replayed", "Control: throughput, p99",
)  # fmt: skip
_KINDS = (
    "Fault",
    "Injections",
    "Cut off",
    "Forgotten",
    "Extra runs",
    "Recovered p50, p99, max (s)",
    "Resumed p50, max (s)",
)
_PRODUCERS = ("Round", "Accepted", "Refused", "In doubt", "Pushed again (ran twice)", "Slowest push", "Witnessed")
_POLICIES = (
    "Round", "Limited jobs/s", "Of those without faults", "Most at a time", "Pushes with keys", "Dropped", "Held, most",
)  # fmt: skip
_CHECKS = ("Promise", "Found", "Allowed", "")


def show(outcomes: Sequence[RoundResult], failed: Sequence[str] = ()) -> None:
    """Print the results; broken promises are marked. ``failed`` names the rounds that ended with an error."""
    for outcome in outcomes:
        print(f"\n### Round {outcome.title}\n")
        _print(_KINDS, (_kind_row(name, kind) for name, kind in sorted(outcome.account.kinds.items())))
        for violation in [one for history in outcome.histories for one in history.violations][:1]:
            print(f"{violation}\n")
        _print(_CHECKS, ((*check[:3], "ok" if check.held else "**BROKEN**") for check in outcome.checks))
    print("\n### All rounds\n")
    _print(_ROUNDS, map(_round_row, outcomes))
    _print(_PRODUCERS, map(_producer_row, outcomes))
    _print(_POLICIES, _policy_rows(outcomes))
    broken = sum(not outcome.held for outcome in outcomes)
    for name in failed:
        print(f"Round {name} failed with an error, and has no account.")
    if broken or not failed:
        print("Every promise held." if not broken else f"{broken} of {len(outcomes)} rounds broke a promise.")


def write(
    outcomes: Sequence[RoundResult],
    options: argparse.Namespace,
    seed: int,
    paths: Sequence[Path],
    failed: Sequence[str] = (),
) -> None:
    """Write the same as JSON, with the log lines by event and every injection."""
    content = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "options": {**vars(options), "seed": seed},
        "held": not failed and all(outcome.held for outcome in outcomes),
        "failed": list(failed),
        "rounds": [_as_json(outcome) for outcome in outcomes],
    }
    for path in paths:
        path.write_text(json.dumps(content, indent=1, default=_plain) + "\n")


def _round_row(outcome: RoundResult) -> Iterator[str]:
    found, other = outcome.account, outcome.impact
    yield outcome.title
    yield f"{len(outcome.injections):,}"
    yield f"{outcome.jobs:,}"
    yield f"{found.interrupted:,}"
    yield f"{len(found.lost):,}"
    yield f"{len(found.forgotten):,}"
    yield f"{found.repeated:,} ({found.worst})"
    yield _spread(found.recoveries, " s")
    yield f"{max(found.resumed):.2f} s" if found.resumed else ""
    yield f"{sum(history.groups for history in outcome.histories):,}"
    yield f"{other.throughput:.0%}, {other.p99_during * 1000:.0f} ms ({other.slower:.1f}x)"


def _producer_row(outcome: RoundResult) -> Iterator[str]:
    producer = outcome.faulty.producer
    doubtful = sum(count for name, count in producer.refusals.items() if "maybe written" in name)
    yield outcome.title
    yield f"{producer.accepted:,}"
    yield f"{sum(producer.refusals.values()) - doubtful:,}"
    yield f"{doubtful:,}"
    yield f"{len(producer.doubtful):,} ({outcome.account.extra[DOUBT]:,})"
    yield f"{producer.slowest_s:.2f} s"
    yield f"{len(producer.witnessed):,}"


def _policy_rows(outcomes: Sequence[RoundResult]) -> Iterator[Iterator[str]]:
    calm = next((one.policy_load.per_second for one in outcomes if one.policy_load and not one.injections), 0.0)
    for outcome in outcomes:
        if found := outcome.policy_load:
            share = f"{found.per_second / calm:.0%}" if calm and outcome.injections else ""
            facts = (f"{found.per_second:.0f}", share, f"{found.most_running}", f"{found.pushes:,}")
            yield iter((outcome.title, *facts, f"{found.dropped:,}", f"{found.held:,}"))


def _kind_row(name: str, kind: Kind) -> Iterator[str]:
    yield name
    for count in (kind.injections, kind.interrupted, kind.forgotten, kind.extra):
        yield f"{count:,}"
    yield _spread([*kind.recoveries, *kind.undeclared])
    yield f"{percentile(kind.resumed, 0.5):.2f}, {max(kind.resumed):.2f}" if kind.resumed else ""


def _spread(seconds: Sequence[float], unit: str = "") -> str:
    if not seconds:
        return ""
    return ", ".join(f"{percentile(seconds, share):.2f}" for share in (0.5, 0.99, 1.0)) + unit


def _print(head: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a Markdown table whose columns are aligned in plain text too."""
    table = [list(head), *(list(row) for row in rows)]
    if len(table) == 1:
        return
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    for row in table:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print()


def _as_json(outcome: RoundResult) -> dict[str, Any]:
    found, round_shards = outcome.account, (outcome.faulty, outcome.control)
    line_counts: Counter[str] = sum((round_shard.workers.line_counts for round_shard in round_shards), Counter())
    return {
        "round": outcome.name,
        "mode": outcome.mode,
        "held": outcome.held,
        **outcome.facts,
        "checks": [check._asdict() for check in outcome.checks],
        "kinds": {name: vars(kind) for name, kind in found.kinds.items()},
        "lost": found.lost,
        "forgotten": found.forgotten,
        "unexplained": found.unexplained,
        "keys left": outcome.keys_left,
        "rights refused": outcome.refused,
        "broken instants": [str(one) for history in outcome.histories for one in history.violations],
        "unexpected ends": [end for round_shard in round_shards for end in round_shard.workers.unexpected],
        "untyped errors": [error for round_shard in round_shards for error in round_shard.producer.untyped],
        "refusals by text": outcome.faulty.producer.reasons,
        "log lines": dict(line_counts.most_common()),
        "all recoveries (s)": sorted(round(seconds, 3) for seconds in found.recoveries),
        "all injections": [
            {
                **vars(injection),
                "forgotten": len(injection.forgotten),
                "forgotten_ends": len(injection.forgotten_ends),
            }
            for injection in outcome.injections
        ],
    }


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
